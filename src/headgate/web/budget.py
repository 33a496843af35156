"""How much of the loop the statuses of a tenant may take."""

from __future__ import annotations

from dataclasses import dataclass

SHARE, BURST_S = 0.02, 1.0
"""Statuses are made of each tenant as often as they are asked for until that has cost so many seconds of the processor,
and then for so much of the time: however many ask, it costs a fiftieth of the loop.  Between two of them the last one
is shown."""


@dataclass(slots=True)
class Spent:
    """What the statuses of one tenant cost."""

    left_s: float = BURST_S
    """Of the processor; below 0: more than there was."""
    at_s: float = 0.0
    """By the clock of the process."""

    def may(self, now_s: float) -> bool:
        """Return whether another may be made."""
        self.left_s = min(BURST_S, self.left_s + SHARE * (now_s - self.at_s))
        self.at_s = now_s
        return self.left_s > 0.0

    def once_more(self) -> None:
        """Allow one, however much was spent."""
        self.left_s = max(self.left_s, SHARE)
