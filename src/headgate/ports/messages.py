"""Define the interfaces through which messages are read and posted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.base.errors import HeadgateError
from headgate.queueing.ids import Position
from headgate.queueing.message import Message
from headgate.queueing.partitions import QueuePartition


class SourceDown(HeadgateError, OSError):
    """Report that the server gave no answer or an invalid one; a message may have been posted nevertheless."""


class QueueFull(SourceDown):
    """Report that the server has no room or limits the rate: nothing was posted."""

    def __init__(self, why: str, again_s: float) -> None:
        super().__init__(why)
        self.again_s = again_s
        """Seconds after which the request may be repeated."""


class QueueGone(HeadgateError, LookupError):
    """Report that the server has no such queue."""


class LeaseGone(HeadgateError, LookupError):
    """Report that the lease expired, was released, or belongs to another worker: nothing was written."""


class PostRefused(HeadgateError, ValueError):
    """Report that the server rejects this message and always will."""


class PostedAlready(PostRefused):
    """Report that another message was posted under this key before; the server keeps that one."""


class NoStream(HeadgateError):
    """Report that the server offers no notifications and must be polled."""


@dataclass(frozen=True, slots=True)
class MessageNews:
    """Name the partitions that have new messages. None means that any partition may have some, even a new one."""

    partitions: frozenset[QueuePartition] | None


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """Describe the backlog of one partition behind a position."""

    waiting: int
    """Number of messages that wait, counted up to a limit of the server."""
    newest: str
    """Id of the newest message of the partition, empty when there is none."""
    oldest_waiting: str
    """Timestamp of the first message that waits, in seconds since 1970; empty when none waits."""
    delayed: int = 0
    """Number of messages that are not due yet, regardless of the position, counted up to the same limit."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """Describe a message to post. However often it is posted under the same key, the queue has it once."""

    queue: str
    body: str
    key: str
    partition: int | None = None
    ttl_s: int | None = None
    of: str = ""
    """Key that selects the partition: messages with equal keys go to the same partition."""
    delay_s: float = 0.0
    """Seconds between posting and delivery."""
    at: str = ""
    """Time of delivery, instead of a delay: seconds since 1970, or ISO 8601."""
    hold: bool = False
    """Whether messages posted later to the same partition wait until this one is delivered."""
    priority: str = ""
    """high | normal | low, or a number from 1, the highest; empty: the default."""


class Poster(Protocol):
    """Post messages. Every method raises SourceDown."""

    async def create(self, queue: str, partitions: int = 1) -> None:
        """Create the queue if it does not exist."""
        ...

    async def partition_count(self, queue: str) -> int:
        """Return the number of the queue's partitions. Raise QueueGone."""
        ...

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        """Post bodies, each with its partition (None: any), in order, once, and either all or none. Raise QueueGone or
        PostRefused."""
        ...


class MessageSource(Protocol):
    """Read and post messages. Every method raises SourceDown; those that name a queue also raise QueueGone."""

    async def partitions(self) -> Sequence[QueuePartition]:
        """Return every partition of every queue."""
        ...

    async def priorities(self) -> Mapping[str, int]:
        """Return the number of priorities of the queues that have more than one. Called after `partitions`, it covers
        all of them."""
        ...

    async def read(self, partition: QueuePartition, after: Position, limit: int) -> Sequence[Message]:
        """Return messages in order, starting after the one at `after`."""
        ...

    async def get(self, partition: QueuePartition, id: str) -> Message | None: ...
    async def post(self, message: NewMessage) -> None:
        """Post a message. Raise PostRefused."""
        ...

    async def create(self, queue: str, partitions: int = 1) -> None:
        """Create the queue if it does not exist."""
        ...

    async def backlog(self, partition: QueuePartition, after: Position) -> PartitionBacklog: ...
    def happenings(self) -> AsyncIterator[MessageNews]:
        """Yield news from now on; the first names all partitions. Raise NoStream; end with SourceDown."""
        ...
