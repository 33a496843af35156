"""Record how far a lane has been processed: one record, replaced as a whole by whoever owns the lane.

Every step below gives a new record; none goes backwards except `sought`, which people ask for.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headgate.queueing.ids import START, Position, parse_last, position_of, ticks_of
from headgate.queueing.tally import Tally

PARKED_MAX = 100
"""Failed messages of one lane waiting for their next try; with more, the lane waits instead."""


class Parked(msgspec.Struct, frozen=True):
    """Represent a failed message that waits for its next attempt while later messages continue."""

    id: str
    attempts: int
    """Begun so far."""
    due_ms: int
    error: str = ""
    """The last failure, if there is no tally."""
    tally: Tally | None = None
    """None: written by a version that only counted."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record that everything up to `last` is done, except parked messages."""

    last: str
    """The time of the newest message done, in ticks; empty: nothing was done yet."""
    id: str = ""
    """Which message of that time; counts only together with the `last` it was written with."""
    owner: str = ""
    epoch: int = 0
    """One more at every change of owner."""
    ahead: str = ""
    """Messages up to this one may have been begun.  Empty: none behind `last`."""
    trying: str = ""
    """The message behind `last` whose tries are counted: it failed, or nothing was heard of its last run."""
    attempts: int = 0
    """How many attempts at `trying` have started."""
    tally: Tally | None = None
    """The tally of `trying`, or None in a record of a version that only counted."""
    failed: str = ""
    """Messages behind `last`, up to this one, have failed once, together."""
    parked: tuple[Parked, ...] = ()
    gone_ms: int = 0
    """Since when the queue has not existed; 0 means it exists."""


NEW = Progress("")


def position(progress: Progress) -> Position:
    """Return the position of `last`. Raise ValueError if it cannot be understood."""
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
    """Return what is known about the attempts of a message that is not done, parked or not."""
    for waits in progress.parked:
        if waits.id == id:
            return waits.tally or _counted(waits.attempts, waits.error)
    if progress.trying == id:
        return progress.tally or _counted(progress.attempts, "")
    return Tally(failed=1) if progress.failed and position_of(id) <= position_of(progress.failed) else Tally()


def _counted(attempts: int, error: str) -> Tally:
    """Return the tally of a bare count, which grew before each attempt: the last may not have started."""
    return Tally(failed=max(attempts - 1, 0), error=error)


def tried(progress: Progress, id: str, tally: Tally) -> Progress:
    """Record the attempts of `id`, parked or not."""
    for waits in progress.parked:
        if waits.id == id:
            return parked(progress, replace(waits, attempts=tally.begun, error="", tally=tally))
    return replace(progress, trying=id, attempts=tally.begun, tally=tally)


def untried(progress: Progress) -> Progress:
    """Mark the message after `last` as not started."""
    return replace(progress, trying="", attempts=0, tally=None)


def done(progress: Progress, id: str) -> Progress:
    """Mark `id` and everything before it as done."""
    at = position_of(id)
    if at <= position(progress):
        raise ValueError(f"{id} is not behind {progress.id or progress.last}: progress never goes back")
    left = progress.failed if progress.failed and at < position_of(progress.failed) else ""
    return replace(progress, last=str(at.ticks), id=id, trying="", attempts=0, tally=None, failed=left)


def parked(progress: Progress, waits: Parked) -> Progress:
    """Park a message, in place of what was parked under this id before."""
    return replace(unparked(progress, waits.id), parked=(*unparked(progress, waits.id).parked, waits))


def unparked(progress: Progress, id: str) -> Progress:
    return replace(progress, parked=tuple(p for p in progress.parked if p.id != id))


def released(progress: Progress) -> Progress:
    """Give the partition back; what may have been started stays marked."""
    return replace(progress, owner="")


def sought(progress: Progress, last: str) -> Progress:
    """Continue as if everything up to `last` (in any form of `parse_last`) were done and nothing after it started."""
    at = parse_last(last)
    text, id = ("", "") if at == START else (str(at.ticks), at.id if len(at.id) == 32 else "")
    return Progress(text, id, progress.owner, progress.epoch, gone_ms=progress.gone_ms)
