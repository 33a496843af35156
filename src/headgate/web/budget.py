"""Limit how much of the loop the statuses of a tenant may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SHARE, BURST_S = 0.02, 0.2
"""Statuses of each tenant are made as often as they are asked for until that has cost so many seconds of the processor,
and then for so much of the time: however many ask, they cost a fiftieth of the loop. Between two of them the last one
is shown."""
LEAST_S = 0.005
"""Each counts at least as much, for what follows from it: it is encoded, compressed and sent. So four a second are made
where they cost next to nothing, which nobody can tell from more."""


@dataclass(slots=True)
class Spent:
    """Account for the processor time that the statuses of one tenant have cost."""

    left_s: float = BURST_S
    """Of the processor; below 0: more than there was."""
    at_s: float = 0.0
    """By the clock of the process."""

    def may(self, now_s: float) -> bool:
        """Return whether another may be made, and count it."""
        self.left_s = min(BURST_S, self.left_s + SHARE * (now_s - self.at_s))
        self.at_s = now_s
        if self.left_s <= 0.0:
            return False
        self.left_s -= LEAST_S
        return True

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what the block costs, in which nothing is waited for."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.left_s -= max(0.0, time.thread_time() - began_s - LEAST_S)

    def once_more(self) -> None:
        """Allow one, however much was spent."""
        self.left_s = max(self.left_s, SHARE)
