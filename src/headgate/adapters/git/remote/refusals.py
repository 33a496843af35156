"""Remember commits that a remote lists and cannot deliver, so that not every look requests them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 900.0
"""Pause before the object is requested again; it grows from the first value to the second."""
KEPT_MAX = 10_000
SURE_AFTER = 5
"""Failed attempts after which the failure is no accident."""


class RemoteRefusal(NamedTuple):
    why: str
    times: int
    again_s: float
    """Time of the next request, in monotonic seconds."""


class Refusals:
    """Remember what one remote refused to send, so that it is not asked at every look."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[str, RemoteRefusal] = {}

    def add(self, commit: str, why: str) -> None:
        known = self._known.pop(commit, None)
        times = known.times + 1 if known else 1
        while len(self._known) >= KEPT_MAX:
            del self._known[next(iter(self._known))]
        pause_s: float = min(PAUSE_MAX_S, PAUSE_MIN_S * 4 ** min(times - 1, 10))
        self._known[commit] = RemoteRefusal(why, times, self._now_s() + pause_s)

    def is_due(self, commit: str) -> bool:
        known = self._known.get(commit)
        return known is None or known.again_s <= self._now_s()

    def why(self, commit: str) -> str:
        """Return why a commit was refused, or an empty string if it was not."""
        known = self._known.get(commit)
        return known.why if known else ""

    def is_sure(self, commit: str) -> bool:
        known = self._known.get(commit)
        return known is not None and known.times >= SURE_AFTER
