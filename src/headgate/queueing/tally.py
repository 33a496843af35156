"""Count how often a message was handed to a job, and how each of those attempts ended.

Only what a job was handed counts against a limit.  A try whose beginning was recorded, and of which nothing more was
heard, may never have begun: it counts apart, and ends a message only after more of them than any limit asks for.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.queueing.policy import Policy

UNSURE_MORE = 2
"""Tries that may not have begun, beyond the limit of those that did, after which a message is given up."""

Ending = Literal["failed", "died", "lost", "left"]


class Unheard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an attempt without a recorded end."""

    by: str
    """The worker that made it."""
    handed: bool = False
    """A job had it for certain; else only its beginning was about to come."""


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """Count the attempts of one message."""

    failed: int = 0
    """The job raised."""
    died: int = 0
    """The process ended while the job had it."""
    lost: int = 0
    """The worker lost its session meanwhile, and lived."""
    left: int = 0
    """The worker was asked to stop, and the job did not end in time."""
    unheard: tuple[Unheard, ...] = ()
    """The attempts without a known outcome, in order; the last may be running."""
    rejected: bool = False
    error: str = ""
    """The last failure."""

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
        told = replace(self.unopened(), error=error or self.error)
        match ending:
            case "failed":
                return replace(told, failed=self.failed + 1)
            case "died":
                return replace(told, died=self.died + 1)
            case "lost":
                return replace(told, lost=self.lost + 1)
            case "left":
                return replace(told, left=self.left + 1)

    def excused(self, alive: Container[str]) -> Tally:
        """Excuse the attempts of workers in `alive`, which lost their sessions but live on under other names."""
        lost = sum(one.handed for one in self.unheard if one.by in alive)
        return replace(self, lost=self.lost + lost, unheard=tuple(one for one in self.unheard if one.by not in alive))

    def spent(self, policy: Policy) -> str:
        """Return why the message is not tried again, or an empty string if it is."""
        died = self.died + sum(one.handed for one in self.unheard)
        unsure = sum(not one.handed for one in self.unheard)
        if self.rejected or self.failed >= policy.attempts:
            return self.error or f"its job failed {self.failed} times"
        if died >= policy.deaths_max:
            return f"the process that ran it did not come back, {died} times"
        if unsure and died + unsure >= policy.deaths_max + UNSURE_MORE:
            return f"the process that began it did not come back, {died + unsure} times"
        if self.lost >= policy.losses:
            return f"the worker that ran it lost its session, {self.lost} times"
        if self.left >= policy.departures:
            return f"the worker that ran it was asked to stop before it had ended, {self.left} times"
        return ""
