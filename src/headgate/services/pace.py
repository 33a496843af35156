"""Limit how fast a worker starts new work, so that no project's flood leaves the others without processors."""

from __future__ import annotations

from asyncio import get_running_loop
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

BEGINNING_S = 1.0
"""Longest time for which a piece of work counts as starting."""
REST_MAX_S = 0.5
"""Longest time for which a project waits after a start."""
LATELY_S = 5.0
"""Time for which starts are remembered."""


def _loop_s() -> float:
    return get_running_loop().time()


class _Beginning(NamedTuple):
    since_s: float
    """Time of the start; all times here are the clock's."""
    project: str


class _Rest(NamedTuple):
    until_s: float
    project: str


class Pace:
    """Decide who may start, and when.

    Everybody who began something lately has an equal part of the beginnings.  While a project has begun more than its
    part, it rests after each beginning for as long as the others' parts would take, to those who come with little.
    """

    def __init__(self, beginning_max: int, clock: Callable[[], float] = _loop_s) -> None:
        """Let this many start at once, of one project half as many; 0: any number. `clock` returns seconds."""
        self._max, self._clock = beginning_max, clock
        self._beginning: dict[str, _Beginning] = {}
        """Request -> its start."""
        self._rests: list[_Rest] = []
        self._lately: deque[_Beginning] = deque()
        self._counts: Counter[str] = Counter()
        """Project -> number of its recent starts."""

    def begins(self, request: str, project: str) -> None:
        """Count a piece of work as one that is starting."""
        if self._max:
            one = _Beginning(self._clock(), project)
            self._beginning[request] = one
            self._lately.append(one)
            self._counts[project] += 1

    def begun(self, request: str) -> bool:
        """Stop counting the work as one that is starting; return whether it was counted."""
        one = self._beginning.pop(request, None)
        if one is None:
            return False
        now_s = self._clock()
        if self._greedy(one.project, now_s):
            # The longer a beginning took, the scarcer processors are, and the longer the others' parts would take.
            rest_s = min((now_s - one.since_s) * (len(self._counts) - 1), REST_MAX_S)
            self._rests.append(_Rest(now_s + rest_s, one.project))
        return True

    def wait_s(self, project: str | None = None) -> float:
        """Return the seconds until one more piece of work of the project, or of any (None), may start; 0: now."""
        if not self._max:
            return 0.0
        now_s = self._clock()
        # A beginning that hangs must not keep others out for ever.
        self._beginning = {id: one for id, one in self._beginning.items() if one.since_s + BEGINNING_S > now_s}
        ends = [one.since_s + BEGINNING_S for one in self._beginning.values() if project in (None, one.project)]
        if project is not None:
            self._rests = [one for one in self._rests if one.until_s > now_s]
            ends += [one.until_s for one in self._rests if one.project == project]
        # One project leaves half of the beginnings to others, even if there are none yet: whoever comes need not wait.
        room = self._max if project is None else max(1, self._max // 2)
        return min(ends) - now_s if len(ends) >= room else 0.0

    def _greedy(self, project: str, now_s: float) -> bool:
        """Return whether the project has recently started more than its share."""
        while self._lately and self._lately[0].since_s + LATELY_S <= now_s:
            gone = self._lately.popleft().project
            self._counts[gone] -= 1
            if not self._counts[gone]:
                del self._counts[gone]
        # More than an equal part: own * projects > total, without a division.
        return self._counts[project] * len(self._counts) > self._counts.total()
