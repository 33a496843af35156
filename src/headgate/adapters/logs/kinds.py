"""Determine the media type of a build's file by its name and beginning: the same on every machine."""

from __future__ import annotations

import codecs

HEAD_SIZE_BYTES = 4_096
"""Length of a file's beginning that determines its kind."""
TEXT, BYTES = "text/plain; charset=utf-8", "application/octet-stream"
# Python's `mimetypes` also reads tables of the machine, so two executors could store one file under different types.
_BY_END = {
    "css": "text/css; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "htm": "text/html; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "svg": "image/svg+xml",
    "xml": "application/xml",
    "avif": "image/avif",
    "gif": "image/gif",
    "ico": "image/x-icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "pdf": "application/pdf",
    "wasm": "application/wasm",
    "bz2": "application/x-bzip2",
    "gz": "application/gzip",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "whl": "application/zip",
    "xz": "application/x-xz",
    "zip": "application/zip",
    "zst": "application/zstd",
}
_LARGE_TEXT = ("text/", "application/json", "application/xml", "application/wasm", "image/svg+xml")


def kind_of(name: str, head: bytes) -> str:
    """Return the media type of a file that begins with `head`, of `HEAD_SIZE_BYTES` or its whole content."""
    known = _BY_END.get(name.rpartition("/")[2].rpartition(".")[2].lower())
    return known or (TEXT if _is_text(head) else BYTES)


def shrinks(kind: str) -> bool:
    """Return whether compression makes a file of this kind smaller."""
    return kind.startswith(_LARGE_TEXT)


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except UnicodeDecodeError:
        return False
    return True
