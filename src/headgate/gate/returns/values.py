"""Limits of the data that a job returns: JSON that is not too deep or too large, and that every program can write
again."""

from __future__ import annotations

import math

import msgspec

from headgate.base.texts import line

SIZE_MAX_BYTES = 256_000
"""Size limit of returned data, which the store keeps and every later job receives."""
DEPTH_MAX = 50
INTEGER_MAX_BITS = 256
SHOWN_MAX = 100


_DEEP = f"it is more than {DEPTH_MAX} levels deep"
_LARGE = f"it is more than {SIZE_MAX_BYTES // 1000} kB of data, which is the limit"


class Unfit(ValueError):
    """Report that what a job returned cannot be used. The text is for the job's author."""


def parsed(text: bytes, size_max_bytes: int = SIZE_MAX_BYTES) -> object:
    """Parse JSON within the bounds. Raise Unfit."""
    if len(text) > size_max_bytes:
        raise Unfit(_LARGE)
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise Unfit(_DEEP) from error
    except ValueError as error:
        raise Unfit(f"it is not JSON: {line(str(error))}") from error


def bounded(value: object) -> None:
    """Check a value against the bounds. Raise Unfit."""
    level, count = [value], 0
    # Level by level instead of by recursion, so that no depth can end the interpreter's stack.
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                _keys(one)
                below += one.values()
            elif isinstance(one, list | tuple):
                below += one
            else:
                _leaf(one)
        level, count = below, count + len(below)
        if count > SIZE_MAX_BYTES:
            raise Unfit(_LARGE)
    if level:
        raise Unfit(_DEEP)
    if len(msgspec.json.encode(value)) > SIZE_MAX_BYTES:
        raise Unfit(_LARGE)


def _keys(value: dict[object, object]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise Unfit(f"it has a key that is not a text: {line(repr(key), SHOWN_MAX)}")
        _leaf(key)


def _leaf(value: object) -> None:
    match value:
        case None | bool():
            return
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise Unfit(f'it has text that is half a character: "{line(value, SHOWN_MAX)}"') from error
        case int():
            # Python refuses to print integers of thousands of digits, and other readers of the data accept even fewer.
            if value.bit_length() > INTEGER_MAX_BITS:
                raise Unfit(f"it has a number of more than {INTEGER_MAX_BITS} bits")
        case float():
            if not math.isfinite(value):
                raise Unfit(f"it has {value}, which is not a number in JSON")
        case _:
            raise Unfit(f"it has a {type(value).__name__}, which is not JSON")
