"""Connections that have no changes of their own, but messages or objects: what happens there starts pipelines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple, Protocol

from headgate.config.model import TriggerFilter
from headgate.gate.change import EventKind, Occasion


class SourceUnavailable(OSError):
    """Report that the source does not answer; a later call may succeed."""


class OccasionLane(NamedTuple):
    """Name an ordered stream of occasions."""

    source: str
    """Name of a queue, or a type of objects."""
    name: str = ""


class NextOccasion(NamedTuple):
    """Describe what comes next in a lane."""

    position: str
    """How far a pipeline is that has taken it."""
    kind: EventKind
    occasion: Occasion | None
    """The occasion; None when the event starts nothing."""


class OccasionSource(Protocol):
    """Read the occasions of one connection. The source is level-triggered, like a forge: what happened while nobody
    watched is found at the first look."""

    name: str
    of_a_lane_max: int
    """Limit of occasions of one lane that one pipeline works on at a time."""

    async def lanes(self, trigger: TriggerFilter) -> Sequence[OccasionLane]:
        """Return where there may be something for a trigger.  Raise SourceUnavailable."""
        ...

    async def start(self, trigger: TriggerFilter, lane: OccasionLane) -> str:
        """Return the position from which a trigger that is new takes what it sees.  Raise SourceUnavailable."""
        ...

    async def after(
        self, trigger: TriggerFilter, lane: OccasionLane, position: str, limit: int
    ) -> Sequence[NextOccasion]:
        """Return the next ones behind a position, in order.  Raise SourceUnavailable."""
        ...

    def stirs(self) -> AsyncIterator[Collection[OccasionLane] | None]:
        """Say where something may be new, again and again; None: anywhere, first of all.  Raise SourceUnavailable."""
        ...
