"""Compress with Zstandard in bounded memory: with the module of Python 3.14, or its backport on earlier Pythons."""

from __future__ import annotations

import sys
from typing import IO

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Values are compressed in the event loop, where speed matters more than size.
LEVEL = 1
WINDOW_MAX_LOG = 27
"""Largest window of a stream: what `zstd --long` writes; a larger one would cost more memory."""
ZstdError = zstd.ZstdError


def compress(plain: bytes) -> bytes:
    return zstd.compress(plain, LEVEL)


def decompress(value: bytes, most_bytes: int) -> bytes:
    """Return the content of one frame.  Raise ValueError if it is damaged, truncated, or larger than `most_bytes`."""
    try:
        size = zstd.get_frame_info(value).decompressed_size
        if size is not None and size > most_bytes:
            raise ValueError(f"compressed value is larger than {most_bytes} bytes")
        frame = zstd.ZstdDecompressor()
        # A frame need not state its size, and may lie about it: this limit is the one that counts.
        plain = frame.decompress(value, max_length=most_bytes)
        if not frame.eof and frame.needs_input:
            raise ValueError("compressed value is damaged: it is cut short")
        # Output of exactly the limit may leave the decoder just before the end of the frame.
        if not frame.eof and frame.decompress(b"", max_length=1):
            raise ValueError(f"compressed value is larger than {most_bytes} bytes")
    except (ZstdError, MemoryError) as error:
        raise ValueError(f"compressed value is damaged: {error}") from error
    if not frame.eof:
        raise ValueError("compressed value is damaged: it is cut short")
    return plain


def reader(source: IO[bytes]) -> zstd.ZstdFile:
    """Return a file object that decompresses a file of frames.  Reading it raises ZstdError, or EOFError if the file is
    truncated."""
    return zstd.open(source, options={zstd.DecompressionParameter.window_log_max: WINDOW_MAX_LOG})
