"""State which files of a build are in the log store, and their media types.

The store has the files of a build under `BUILD/PATH`, the parts of its output that were stored while it ran under
`_parts/BUILD/NUMBER`, and this record under `_builds/BUILD.json`.  The id of a build has no underscore.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

import msgspec

MEMBER_SIZE_BYTES = 1_000_000
"""Uncompressed length of the pieces of a compressed file; each can be read without the earlier ones."""
OUTPUT = "job-output.txt"
FILES_MAX = 10_000
"""Limit on the files of one build."""
SIZE_MAX_BYTES = 20_000_000
"""Size limit of one record."""
RECORDS, _PARTS = "_builds", "_parts"
HEAD_SIZE_BYTES = 4_096
"""Number of bytes at the beginning of a file that determine its kind."""
TEXT, BYTES = "text/plain; charset=utf-8", "application/octet-stream"
# Python's `mimetypes` also reads tables of the machine, so two executors could give the same file different types.
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


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a file that is in the store completely."""

    path: str
    size_bytes: int
    kind: str
    """Media type."""
    digest: str
    """SHA-256 of the content."""
    members: tuple[int, ...] = ()
    """Compressed sizes of the pieces of the file's gzip stream. Uncompressed, each except the last has
    `MEMBER_SIZE_BYTES`. Empty if the file is stored uncompressed."""


class OutputPart(msgspec.Struct, frozen=True, array_like=True):
    """Describe a part of the output, which is stored compressed."""

    size_bytes: int
    stored_bytes: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    build: str
    at_ms: int
    host: str = ""
    """Name of the executor that wrote the record."""
    complete: bool = False
    """Whether the store has all files that the build will ever have."""
    files: tuple[StoredFile, ...] = ()
    """All files of the build; until the record is complete, only the output of earlier runs on lost executors."""
    parts: tuple[OutputPart, ...] = ()
    """Parts of the output, until the record is complete."""
    lost: tuple[str, ...] = ()
    """Messages about files that are not stored."""

    def file(self, path: str) -> StoredFile | None:
        return next((file for file in self.files if file.path == path), None)


def manifest_key(build: str) -> str:
    return f"{RECORDS}/{build}.json"


def parts_of(build: str) -> str:
    """Return the path below which the parts of a build are stored."""
    return f"{_PARTS}/{build}"


def part_key(build: str, number: int) -> str:
    return f"{parts_of(build)}/{number:05}"


def file_key(build: str, path: str) -> str:
    return f"{build}/{path}"


def build_of(key: str) -> tuple[str, str]:
    """Return the build of a key and the path of its file; the path is empty for the key of a record or a part. Both are
    empty if the key belongs to no build."""
    first, _, rest = key.partition("/")
    if first == RECORDS:
        return rest.removesuffix(".json"), ""
    if first == _PARTS:
        return rest.partition("/")[0], ""
    # A store may be shared: keys that do not begin with the id of a build belong to others, and are never deleted.
    return (first, rest) if first.isalnum() and first.isascii() and rest else ("", "")


def written(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def parsed(content: bytes) -> Manifest:
    """Decode the manifest. Raise ValueError."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def spans(sizes: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces that contain the bytes from `start` to before `end`, given the sizes of all pieces: number of
    the piece, start within it, end within it."""
    at = 0
    for number, size in enumerate(sizes):
        low, high = max(start, at), min(end, at + size)
        if low < high:
            yield number, low - at, high - at
        at += size


def member_sizes(file: StoredFile) -> list[int]:
    """Return the uncompressed sizes of the file's pieces."""
    last = file.size_bytes - MEMBER_SIZE_BYTES * (len(file.members) - 1)
    return [*[MEMBER_SIZE_BYTES] * (len(file.members) - 1), last] if file.members else []


def kind_of(name: str, head: bytes) -> str:
    """Return the media type of a file that begins with `head`: `HEAD_SIZE_BYTES`, or less if the file is shorter."""
    known = _BY_END.get(name.rpartition("/")[2].rpartition(".")[2].lower())
    return known or (TEXT if _is_text(head) else BYTES)


def shrinks(kind: str) -> bool:
    """Return whether compression makes files of this kind smaller."""
    return kind.startswith(_LARGE_TEXT)


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except UnicodeDecodeError:
        return False
    return True
