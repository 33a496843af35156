"""Create and parse message ids and times: version-1 UUIDs in 32 hex digits, ordered by time, then by text.

The time is in ticks: 100 ns since 1582-10-15 00:00 UTC, the `time` field of such a UUID.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

UNIX_EPOCH_TICKS = 122_192_928_000_000_000
TICKS_A_SECOND = 10_000_000
TICKS_MAX = (1 << 60) - 1
BEHIND_ALL = "g"
"""Text that sorts behind every hex digit: `Position(ticks, BEHIND_ALL)` is behind all messages of that tick."""

_ID = re.compile(r"[0-9a-f]{32}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,20})?")
# Python 2 wrote long integers with an L.
_TICKS = re.compile(r"([0-9]{15,19})L?")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Name a position in the order of a partition. As a cursor it covers all messages up to and including it."""

    ticks: int
    id: str = BEHIND_ALL


START = Position(-1, "")
"""Position before every message."""


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def make_id(ticks: int, clock: int, node: int) -> str:
    """Make an id. `clock` has 14 bits and `node` 48; they distinguish ids of equal ticks."""
    low, mid, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000
    # 0x1000 says version 1, and 0x8000 the usual variant of UUIDs (RFC 4122).
    return f"{low:08x}{mid:04x}{high:04x}{clock & 0x3FFF | 0x8000:04x}{node:012x}"


def ticks_of(id: str) -> int:
    """Return the ticks of an id. Raise ValueError if it is not an id."""
    if not is_id(id):
        raise ValueError(f"{id!r} is not a message id, which has 32 hex digits")
    return int(id[12:16], 16) % 0x1000 << 48 | int(id[8:12], 16) << 32 | int(id[:8], 16)


# Cursors are compared for every message, mostly with the same few ids.
@lru_cache(4096)
def position_of(id: str) -> Position:
    """Return the position of an id. Raise ValueError if it is not an id."""
    return Position(ticks_of(id), id)


def ticks_of_unix_ns(unix_ns: int) -> int:
    return unix_ns // 100 + UNIX_EPOCH_TICKS


def unix_ms_of(id: str) -> int:
    """Return the time of an id, in milliseconds since 1970.  Raise ValueError when it is not an id."""
    return (ticks_of(id) - UNIX_EPOCH_TICKS) // 10_000


def unix_text(ticks: int) -> str:
    """Format ticks as seconds since the Unix epoch, exactly, with seven decimals."""
    seconds, part = divmod(ticks - UNIX_EPOCH_TICKS, TICKS_A_SECOND)
    return f"{seconds}.{part:07d}"


def ticks_of_unix(text: str) -> int:
    """Parse decimal Unix seconds; cut off what is finer than a tick. Raise ValueError."""
    if not _SECONDS.fullmatch(text):
        raise ValueError(f"{text!r} is not a time: write seconds since 1970 as decimal digits")
    seconds, _, part = text.partition(".")
    ticks = int(seconds) * TICKS_A_SECOND + int(f"{part[:7]:0<7}") + UNIX_EPOCH_TICKS
    if ticks > TICKS_MAX:
        raise ValueError(f"{text!r} is further in the future than a message id can represent")
    return ticks


def parse_last(text: str) -> Position:
    """Parse `last` of a progress record in every form that any version wrote: empty, ticks (with or without a
    trailing L), Unix seconds, or a message id. Raise ValueError."""
    if not text:
        return START
    if is_id(text):
        return position_of(text)
    if (ticks := _TICKS.fullmatch(text)) is not None and int(ticks[1]) <= TICKS_MAX:
        return Position(int(ticks[1]))
    # "0" and "0.0" mean the beginning, and not the first moment of 1970.
    return START if text.strip("0") in ("", ".") else Position(ticks_of_unix(text))
