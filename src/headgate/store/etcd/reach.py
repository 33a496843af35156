"""How far a page reaches.  etcd counts every key of the range it is asked for, however few of them it is to answer
with; so a page is asked for in blocks of keys that begin alike, about as large as earlier pages of the directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KNOWN_MAX = 1_000
"""Directories."""


@dataclass(frozen=True, slots=True)
class EtcdDirectorySize:
    """Of a directory: its first key when last seen, and how many bytes the keys of one page have alike."""

    least: bytes
    alike: int


class Reach:
    def __init__(self) -> None:
        self._known: dict[bytes, EtcdDirectorySize] = {}

    def blocks(self, first: bytes, start: bytes, end: bytes, level: int) -> list[bytes]:
        """Return where the next two blocks of the directory `first` end, from `start` on; the last one is `end` at the
        latest. Each `level` makes them larger."""
        known = self._known.get(first)
        if known is None or known.alike - level <= len(first):
            return [end]
        alike = known.alike - level
        begin = start if len(start) >= alike else known.least
        one = after(begin[:alike])
        return [one, min(after(one), end)] if start < one < end else [end]

    def learn(self, first: bytes, start: bytes, keys: Sequence[bytes]) -> None:
        """Of a full page."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        known = self._known.get(first)
        least = keys[0] if known is None or start == first else known.least
        self._known[first] = EtcdDirectorySize(least, _alike(keys[0], keys[-1]))


def after(prefix: bytes) -> bytes:
    """Return the first key that does not begin so.  No path ends in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes they begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
