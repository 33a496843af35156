"""Compress with Zstandard in bounded memory: with the module of Python 3.14, or its backport on earlier Pythons."""

from __future__ import annotations

import sys
from typing import IO

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Values are compressed in the loop, where time counts more than size.
LEVEL = 1
WINDOW_MAX_LOG = 27
"""Largest window of a stream: what `zstd --long` writes; a larger one would cost more memory."""
ZstdError = zstd.ZstdError


def compress(plain: bytes) -> bytes:
    return zstd.compress(plain, LEVEL)


def decompress(value: bytes, most_bytes: int) -> bytes:
    """Return what one frame holds.  Raise ValueError for one that is damaged, cut short, or holds more."""
    try:
        size = zstd.get_frame_info(value).decompressed_size
        if size is not None and size > most_bytes:
            raise ValueError(f"compressed value is larger than {most_bytes} bytes")
        frame = zstd.ZstdDecompressor()
        # A frame need not state its size, and may lie about it: this is the bound that holds.
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
    """Return what a file of frames holds, as a file.  Reading raises ZstdError, or EOFError where it is cut short."""
    return zstd.open(source, options={zstd.DecompressionParameter.window_log_max: WINDOW_MAX_LOG})
