"""Count how often a message was handed to a job, and how each of those attempts ended.

Only attempts that reached a job count against a limit. An attempt that was about to begin, and of which no outcome
is known, may never have begun: it counts separately, and the message is given up only after more of them than any
limit allows.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.queueing.policy import Policy

UNSURE_MORE = 2
"""Attempts above the limit of deaths after which a message is given up, if some of them may not have begun."""

Ending = Literal["failed", "died", "lost", "left"]


class Unheard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an attempt without a recorded end."""

    by: str
    """Name of the worker that made the attempt."""
    handed: bool = False
    """Whether a job certainly received the message; otherwise the attempt may not have begun."""


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """Count the attempts of one message."""

    failed: int = 0
    """Attempts in which the job raised an exception."""
    died: int = 0
    """Attempts during which the process ended."""
    lost: int = 0
    """Attempts during which the worker lost its session, but lived on."""
    left: int = 0
    """Attempts that had not ended in time when the worker was asked to stop."""
    unheard: tuple[Unheard, ...] = ()
    """Attempts without a known outcome, in order; the last may still be running."""
    rejected: bool = False
    error: str = ""
    """Text of the last failure."""

    @property
    def begun(self) -> int:
        """Return how many attempts certainly reached a job."""
        return self.failed + self.died + self.lost + self.left + sum(one.handed for one in self.unheard)

    @property
    def recorded(self) -> int:
        """Return how many attempts may have started."""
        return self.begun + sum(not one.handed for one in self.unheard)

    def opened(self, by: str, *, handed: bool = False) -> Tally:
        """Add an attempt by this worker."""
        return replace(self, unheard=(*self.unheard, Unheard(by, handed)))

    def handed(self) -> Tally:
        """Record that the current attempt has reached its job."""
        return self.unopened().opened(self.unheard[-1].by, handed=True)

    def unopened(self) -> Tally:
        """Remove the current attempt."""
        return replace(self, unheard=self.unheard[:-1])

    def closed(self, ending: Ending, error: str = "") -> Tally:
        """Record how the current attempt ended."""
        tally = replace(self.unopened(), error=error or self.error)
        match ending:
            case "failed":
                return replace(tally, failed=self.failed + 1)
            case "died":
                return replace(tally, died=self.died + 1)
            case "lost":
                return replace(tally, lost=self.lost + 1)
            case "left":
                return replace(tally, left=self.left + 1)

    def excused(self, alive: Container[str]) -> Tally:
        """Excuse the attempts of workers in `alive`, which lost their sessions but live on under other names."""
        # An attempt of theirs that was not handed over never began, and is dropped without counting.
        lost = sum(one.handed for one in self.unheard if one.by in alive)
        return replace(self, lost=self.lost + lost, unheard=tuple(one for one in self.unheard if one.by not in alive))

    def spent(self, policy: Policy) -> str:
        """Return why the message is given up, or an empty string if it gets another attempt."""
        # A job that had the message and was never heard of again may have ended its process, as with a lack of memory.
        died = self.died + sum(one.handed for one in self.unheard)
        unsure = sum(not one.handed for one in self.unheard)
        if self.rejected or self.failed >= policy.attempts:
            return self.error or f"its job failed {self.failed} times"
        if died >= policy.deaths_max:
            return f"the process that ran it did not come back, {died} times"
        # Otherwise a message that ends the process while it is handed over would be tried for ever.
        if unsure and died + unsure >= policy.deaths_max + UNSURE_MORE:
            return f"the process that began it did not come back, {died + unsure} times"
        if self.lost >= policy.losses:
            return f"the worker that ran it lost its session, {self.lost} times"
        if self.left >= policy.departures:
            return f"the worker that ran it was asked to stop before it had ended, {self.left} times"
        return ""
