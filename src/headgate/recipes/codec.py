"""Records as bytes: JSON an operator can read; above PLAIN_MAX_BYTES compressed, told apart by zstd's magic."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import zstandard

R = TypeVar("R")

PLAIN_MAX_BYTES = 2_000
SIZE_MAX_BYTES = 64_000_000
"""Of a decoded value; more is damage, not data."""
_MAGIC = b"\x28\xb5\x2f\xfd"


def encode(record: object) -> bytes:
    return pack(msgspec.json.encode(record))


def pack(plain: bytes) -> bytes:
    return plain if len(plain) <= PLAIN_MAX_BYTES else zstandard.ZstdCompressor(level=1).compress(plain)


def unpack(value: bytes) -> bytes:
    """Raises ValueError when the value is cut short or no zstd."""
    if not value.startswith(_MAGIC):
        return value
    try:
        return zstandard.ZstdDecompressor().decompress(value, max_output_size=SIZE_MAX_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"compressed value is damaged: {error}") from error


def decode(value: bytes, type: type[R]) -> R:
    """Raises ValueError (msgspec's errors are of that kind) saying what does not fit."""
    return msgspec.json.decode(unpack(value), type=type)
