"""Record how far a partition has been processed, and how each attempt at a message ended.

Every step returns a new record. No step moves progress back except `sought`, which an operator requests.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.queueing.ids import START, Position, parse_last, position_of, ticks_of
from headgate.queueing.policy import Policy

UNSURE_MORE = 2
"""Attempts beyond the limit of deaths before a message is given up, if some of the attempts may never have begun."""
PARKED_MAX = 100
"""Limit on the failed messages of one partition that wait for their next attempt; when it is reached, the partition
waits instead."""

Ending = Literal["failed", "died", "lost", "left"]


class Unheard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an attempt without a recorded end."""

    by: str
    """Name of the worker that made the attempt."""
    handed: bool = False
    """Whether a job certainly received the message; otherwise the attempt may not have begun."""


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """Count the attempts of one message.

    Only attempts that reached a job count against a limit. An attempt that was about to begin, and of which no outcome
    is known, may never have begun: it counts separately, and the message is given up only after more of them than any
    limit allows.
    """

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
        """Return the number of attempts that certainly reached a job."""
        return self.failed + self.died + self.lost + self.left + sum(one.handed for one in self.unheard)

    @property
    def recorded(self) -> int:
        """Return the number of attempts that may have started."""
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
            return f"its process disappeared {died} times"
        # Otherwise a message that ends the process while it is handed over would be tried forever.
        if unsure and died + unsure >= policy.deaths_max + UNSURE_MORE:
            return f"its process disappeared {died + unsure} times at the start"
        if self.lost >= policy.losses:
            return f"its worker lost the session {self.lost} times"
        if self.left >= policy.departures:
            return f"its worker stopped before the job had ended, {self.left} times"
        return ""


class Parked(msgspec.Struct, frozen=True):
    """Represent a failed message that waits for its next attempt while later messages continue."""

    id: str
    attempts: int
    """Attempts that have started."""
    due_ms: int
    error: str = ""
    """The last failure; used only without a tally."""
    tally: Tally | None = None
    """Tally of the attempts; None in a record of a version that only counted."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record that everything up to `last` is done, except parked messages."""

    last: str
    """Time of the newest message that is done, in ticks; empty when none is."""
    id: str = ""
    """Id of the newest message that is done; valid only if its time is `last`: other programs may write `last`
    alone."""
    owner: str = ""
    epoch: int = 0
    """Grows by one at every change of owner."""
    ahead: str = ""
    """Id of the last message that may have been started; empty when none after `last` may have been."""
    attempted: str = msgspec.field(default="", name="trying")
    """Id of the message after `last` whose attempts are counted: it failed, or the outcome of its last attempt is
    unknown."""
    attempts: int = 0
    """Number of attempts at `attempted` that have started."""
    tally: Tally | None = None
    """The tally of `attempted`, or None in a record of a version that only counted."""
    failed: str = ""
    """Messages after `last`, up to this id, have failed once, as one batch; empty when there is no such batch."""
    parked: tuple[Parked, ...] = ()
    gone_ms: int = 0
    """Time since which the queue has not existed, in milliseconds since 1970; 0 means it exists."""


NEW = Progress("")


def position(progress: Progress) -> Position:
    """Return the position of `last`. Raise ValueError if it cannot be understood."""
    # If they differ, another program has moved `last` and left `id` behind, so `last` counts.
    if progress.id and progress.last == str(ticks_of(progress.id)):
        return position_of(progress.id)
    return parse_last(progress.last)


def suspects(progress: Progress) -> Position:
    """Return the position of the last message that may have been started without a known outcome."""
    return position_of(progress.ahead) if progress.ahead else START


def taken(progress: Progress, owner: str) -> Progress:
    return replace(progress, owner=owner, epoch=progress.epoch + 1)


def failed_together(progress: Progress, id: str) -> Progress:
    """Record that all messages up to `id` were started and failed, as one batch."""
    return replace(progress, ahead=id, failed=id)


def begun(progress: Progress, ahead: str) -> Progress:
    """Record that messages up to `ahead` may be started once this is stored."""
    return replace(progress, ahead=ahead)


def tally_of(progress: Progress, id: str) -> Tally:
    """Return the tally of a message that is not done, whether parked or not."""
    for waits in progress.parked:
        if waits.id == id:
            return waits.tally or _counted(waits.attempts, waits.error)
    if progress.attempted == id:
        return progress.tally or _counted(progress.attempts, "")
    # The failure of a batch counts once for each of its messages, which are then tried one by one.
    return Tally(failed=1) if progress.failed and position_of(id) <= position_of(progress.failed) else Tally()


def _counted(attempts: int, error: str) -> Tally:
    """Return the tally for a mere count, which old versions increased before each attempt: the last may not have
    started."""
    return Tally(failed=max(attempts - 1, 0), error=error)


def tried(progress: Progress, id: str, tally: Tally) -> Progress:
    """Record the attempts of message `id`, whether parked or not."""
    for waits in progress.parked:
        if waits.id == id:
            return parked(progress, replace(waits, attempts=tally.begun, error="", tally=tally))
    return replace(progress, attempted=id, attempts=tally.begun, tally=tally)


def untried(progress: Progress) -> Progress:
    """Mark the message after `last` as not started."""
    return replace(progress, attempted="", attempts=0, tally=None)


def done(progress: Progress, id: str) -> Progress:
    """Mark `id` and everything before it as done."""
    at = position_of(id)
    # A step back would deliver messages twice without anybody noticing, so a wrong caller must fail here.
    if at <= position(progress):
        raise ValueError(f"{id} is not behind {progress.id or progress.last}: progress never goes back")
    # `ahead` stays: messages beyond this one may have been started too.
    left = progress.failed if progress.failed and at < position_of(progress.failed) else ""
    return replace(progress, last=str(at.ticks), id=id, attempted="", attempts=0, tally=None, failed=left)


def parked(progress: Progress, waits: Parked) -> Progress:
    """Park a message, replacing an older record under the same id."""
    return replace(unparked(progress, waits.id), parked=(*unparked(progress, waits.id).parked, waits))


def unparked(progress: Progress, id: str) -> Progress:
    return replace(progress, parked=tuple(p for p in progress.parked if p.id != id))


def released(progress: Progress) -> Progress:
    """Give the partition back; what may have been started stays marked."""
    return replace(progress, owner="")


def sought(progress: Progress, last: str) -> Progress:
    """Continue as if everything up to `last` (in any form of `parse_last`) were done and nothing after it started."""
    at = parse_last(last)
    # A position given as a time has BEHIND_ALL in place of an id.
    text, id = ("", "") if at == START else (str(at.ticks), at.id if len(at.id) == 32 else "")
    return Progress(text, id, progress.owner, progress.epoch, gone_ms=progress.gone_ms)
