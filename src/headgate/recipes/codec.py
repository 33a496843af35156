"""Records as bytes: JSON an operator can read; above PLAIN_MAX_BYTES compressed, told apart by zstd's magic.

A type with `to_wire` and `from_wire` has a form of its own: one that other programs know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import zstandard

R = TypeVar("R")

PLAIN_MAX_BYTES = 2_000
SIZE_MAX_BYTES = 64_000_000
"""Of a decoded value; more is damage, not data."""
_MAGIC = b"\x28\xb5\x2f\xfd"


def encode(record: object) -> bytes:
    own = getattr(type(record), "to_wire", None)
    if own is not None:
        return bytes(own(record))
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
    own: Callable[[bytes], R] | None = getattr(type, "from_wire", None)
    if own is not None:
        return _own(value, own)
    return msgspec.json.decode(unpack(value), type=type)


def _own(value: bytes, read: Callable[[bytes], R]) -> R:
    try:
        return read(value)
    except Exception as error:  # whatever the format's own decoder raises for bytes that are not of it
        raise ValueError(f"not in the form of its place: {error}") from error
