"""Encode records as bytes.

They are JSON that an operator can read. JSON above PLAIN_MAX_BYTES is compressed; readers recognise that by zstd's
magic number.

A type with `to_wire` and `from_wire` has its own wire format, which other programs know. When the format of a record
changes, its type supports the old form alongside the new one: `to_format(number)` returns the record for readers of
that format, `of_format(number, plain)` decodes a record written in it. Bytes of a format above 1 begin with its number,
so that a program that does not know the format reports that instead of misreading the record."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headgate.base.errors import HeadgateError
from headgate.base.zstd import compress, decompress
from headgate.store.types import Entry

log = logging.getLogger("headgate")

R = TypeVar("R")

FORMAT = 1
"""Newest format that this program knows. It increases with every change of a record that older programs would
misread or, because they drop fields they do not know, write back incomplete."""
PLAIN_MAX_BYTES = 2_000
SIZE_MAX_BYTES = 64_000_000
"""Size limit of a decoded value in bytes; a larger one counts as damaged."""
_NUMBER = re.compile(rb'{"format":([0-9]+)[,}]')
_MAGIC = b"\x28\xb5\x2f\xfd"


REPORTED_MAX = 10_000
_reported: set[tuple[str, int]] = set()
"""Path and version of each record that the log has already reported as unreadable."""


class Newer(HeadgateError, ValueError):
    """Report a record that a newer program wrote."""


def encode(record: object, format: int = 1) -> bytes:
    """Encode a record. `format` is the newest form that every reader knows; it has no effect on a record with a
    single form."""
    own = getattr(type(record), "to_wire", None)
    if own is not None:
        return bytes(own(record))
    in_format = getattr(type(record), "to_format", None)
    if in_format is None or format == 1:
        return pack(msgspec.json.encode(record if in_format is None else in_format(record, 1)))
    plain = msgspec.json.encode(in_format(record, format))
    # The number takes the place of the opening brace, so `_NUMBER` finds it without decoding the rest.
    return pack(b'{"format":%d,%b' % (format, plain[1:]))


def pack(plain: bytes) -> bytes:
    return plain if len(plain) <= PLAIN_MAX_BYTES else compress(plain)


def unpack(value: bytes) -> bytes:
    """Decompress a value. Raise ValueError if it is cut short or not zstd."""
    if not value.startswith(_MAGIC):
        return value
    # Jobs and proposers determine parts of what is stored; a few bytes of zstd could expand to fill the memory.
    return decompress(value, SIZE_MAX_BYTES)


def decode(value: bytes, type: type[R]) -> R:
    """Decode a record. Raise ValueError (msgspec's errors are subclasses), which names the invalid part."""
    own: Callable[[bytes], R] | None = getattr(type, "from_wire", None)
    if own is not None:
        return _own(value, own)
    plain = unpack(value)
    number = _format(plain)
    of_format: Callable[[int, bytes], R] | None = getattr(type, "of_format", None)
    try:
        return msgspec.json.decode(plain, type=type) if of_format is None else of_format(number, plain)
    # A document with thousands of nested brackets raises this.
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def readable(entry: Entry, type: type[R]) -> R | None:
    """Return the record, or None if it is damaged. A damaged record stays in the store for a person to repair, the log
    reports it once, and the caller continues without it."""
    try:
        return decode(entry.value, type)
    except ValueError as error:
        # Turns read the same records repeatedly, and must not fill the log.
        if (entry.path, entry.version) not in _reported:
            if len(_reported) >= REPORTED_MAX:
                _reported.clear()
            _reported.add((entry.path, entry.version))
            log.error("%s cannot be read, and is left alone: %s; repair or remove it", entry.path, error)
        return None


def _format(plain: bytes) -> int:
    """Return the format of a record. Raise Newer when this program does not know it."""
    found = _NUMBER.match(plain)
    number = int(found[1]) if found else 1
    if number > FORMAT:
        raise Newer(f"written in format {number}; this Headgate knows those up to {FORMAT}: upgrade it")
    return number


def _own(value: bytes, read: Callable[[bytes], R]) -> R:
    try:
        return read(value)
    except Exception as error:  # the format's own decoder may raise anything for bytes in another format
        raise ValueError(f"not in the form of its place: {error}") from error
