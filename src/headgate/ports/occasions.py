"""Define sources whose messages or objects, instead of changes, start items in pipelines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple, Protocol

from headgate.base.errors import HeadgateError
from headgate.config.model import TriggerFilter
from headgate.gate.state.change import EventKind, Occasion


class SourceUnavailable(HeadgateError, OSError):
    """Report that the source does not answer; a later call may succeed."""


class OccasionPartition(NamedTuple):
    """Name a part of a source that is read in order: a partition of a queue, or all objects of a type."""

    source: str
    """Name of a queue, or a type of objects."""
    name: str = ""
    """Number of the partition; empty for objects."""


class NextOccasion(NamedTuple):
    """Describe what comes next in a partition."""

    position: str
    """Position of a pipeline once it has taken this occasion."""
    kind: EventKind
    occasion: Occasion | None
    """The occasion; None when the event starts nothing."""


class OccasionSource(Protocol):
    """Read the occasions of one connection. The source is level-triggered, like a forge: the first poll finds
    everything that happened while nobody polled."""

    name: str
    of_a_partition_max: int
    """Largest number of occasions of one partition that may be in one pipeline at the same time."""

    async def partitions(self, trigger: TriggerFilter) -> Sequence[OccasionPartition]:
        """Return the partitions that may have occasions for a trigger.  Raise SourceUnavailable."""
        ...

    async def start(self, trigger: TriggerFilter, partition: OccasionPartition) -> str:
        """Return the position at which a new trigger begins to read the partition.  Raise SourceUnavailable."""
        ...

    async def after(
        self, trigger: TriggerFilter, partition: OccasionPartition, position: str, limit: int
    ) -> Sequence[NextOccasion]:
        """Return the next occasions after a position, in order.  Raise SourceUnavailable."""
        ...

    def stirs(self) -> AsyncIterator[Collection[OccasionPartition] | None]:
        """Yield, repeatedly, the partitions that may have new occasions, or None for all partitions; the first
        value is None.  Raise SourceUnavailable."""
        ...
