"""Where messages come from, and where they are posted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.queueing.ids import Position
from headgate.queueing.lanes import Lane
from headgate.queueing.message import Message


class SourceDown(OSError):
    """The server did not answer, or not as it should; what was posted is perhaps there."""


class QueueFull(SourceDown):
    """The server has no room for it, or it comes too fast: nothing was posted."""

    def __init__(self, why: str, again_s: float) -> None:
        super().__init__(why)
        self.again_s = again_s
        """It may be tried again after so many seconds."""


class QueueGone(LookupError):
    """The server knows no such queue."""


class LeaseGone(LookupError):
    """The lease ran out, was given back, or is another's: nothing was written."""


class PostRefused(ValueError):
    """The server will not take this message, however often it is posted."""


class PostedAlready(PostRefused):
    """Something else was posted under this key: what it stands for is there."""


class NoStream(Exception):
    """The server tells nobody when something is posted: it has to be asked now and then."""


@dataclass(frozen=True, slots=True)
class MessageNews:
    """`lanes` have something new; None: any may have, also some that were not there before."""

    lanes: frozenset[Lane] | None


@dataclass(frozen=True, slots=True)
class LaneBacklog:
    """Of one lane, behind a position."""

    waiting: int
    newest: str
    oldest_waiting: str
    """Seconds since 1970; empty when nothing waits."""
    delayed: int = 0
    """Messages that are not due yet, wherever the position is."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to post.  The same key posts it once, however often it is tried."""

    queue: str
    body: str
    key: str
    partition: int | None = None
    ttl_s: int | None = None
    of: str = ""
    """In place of a partition: letters of one such key are in one partition."""
    delay_s: float = 0.0
    """It is delivered so long after it was posted."""
    at: str = ""
    """Or at this time: seconds since 1970, or ISO 8601."""
    hold: bool = False
    """Until it is delivered, those posted after it to its partition wait behind it."""
    priority: str = ""
    """high | normal | low, or a number from 1, the highest; empty: the usual one."""


class Poster(Protocol):
    """Where something is posted.  Every method raises SourceDown."""

    async def create(self, queue: str, partitions: int = 1) -> None:
        """If it is not there."""
        ...

    async def partitions(self, queue: str) -> int:
        """How many it has.  Raises QueueGone."""
        ...

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        """Bodies, each with its partition (None: any); all or none, once, in order.  Raises QueueGone, PostRefused."""
        ...


class MessageSource(Protocol):
    """Every method raises SourceDown; those that name a queue QueueGone."""

    async def lanes(self) -> Sequence[Lane]:
        """Every partition of every queue."""
        ...

    async def priorities(self) -> Mapping[str, int]:
        """How many the queues have that have more than one; asked after `lanes`, it tells of all those."""
        ...

    async def read(self, lane: Lane, after: Position, limit: int) -> Sequence[Message]:
        """In order, the message at `after` not included."""
        ...

    async def get(self, lane: Lane, id: str) -> Message | None: ...
    async def post(self, letter: Letter) -> None:
        """Raises PostRefused."""
        ...

    async def create(self, queue: str, partitions: int = 1) -> None:
        """If it is not there."""
        ...

    async def backlog(self, lane: Lane, after: Position) -> LaneBacklog: ...
    def happenings(self) -> AsyncIterator[MessageNews]:
        """From now on, beginning with one of everything.  Raises NoStream; ends with SourceDown."""
        ...
