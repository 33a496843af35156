"""Estimate how far a page reaches. etcd counts every key of the requested range, however few of them it is to return;
so a page is requested in blocks of keys with a common prefix, about as large as earlier pages of the directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KNOWN_MAX = 1_000
"""Limit of directories whose size is remembered."""


@dataclass(frozen=True, slots=True)
class EtcdDirectorySize:
    """Describe a directory: its first key when last read, and how many leading bytes the keys of one page share."""

    least: bytes
    alike: int


class PageEstimate:
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
        """Learn the directory's size from a full page."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        known = self._known.get(first)
        least = keys[0] if known is None or start == first else known.least
        self._known[first] = EtcdDirectorySize(least, _alike(keys[0], keys[-1]))


def after(prefix: bytes) -> bytes:
    """Return the first key that does not have this prefix. No path ends in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _alike(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
