"""Define leases: who has leased a partition, until when and how far processed, and what holders report."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.pages import read
from headgate.queue.messages.records import QueueRecord, StoredMessage
from headgate.queueing.ids import Position
from headgate.queueing.policy import Policy

DEFAULT_GROUP = "workers"
"""Group of leases that name none."""
USUAL = Policy()


class LeaseLost(LookupError):
    """Report that the lease expired, was given back, or belongs to another worker: nothing was written."""


class MessageLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe what a worker has leased."""

    lease: str
    """Name of the lease; whoever presents it counts as the holder."""
    partition: int
    epoch: int
    """Grows by one with every holder."""
    expires_in: float
    """Seconds until the lease expires."""
    processed: str
    """Id of the message up to which everything is done; empty: nothing is."""
    priorities: int = 1
    """Number of priorities of the queue: as many partitions, from `partition` on, are held together."""


class Handed(msgspec.Struct, frozen=True):
    """Represent a message as workers receive it."""

    message_id: str
    timestamp: str
    body: str
    partition: int
    attempt: int


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Report a message whose job failed."""

    message_id: str
    error: str = ""
    retry_after: float | None = None
    reject: bool = False


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Report the outcome of messages."""

    done: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    ttl: float = 30.0
    attempts: int = USUAL.attempts


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Request a lease."""

    app: str
    queue: str
    worker: str
    group: str = DEFAULT_GROUP
    partition: int | None = None
    ttl_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LeaseMoment:
    """Hold a transaction's view of time and chance."""

    now_ns: int
    node: int
    chance: random.Random

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class HeldLease:
    """Represent the row of a valid lease of one partition."""

    queue: QueueRecord
    group: str
    partition: int
    epoch: int
    worker: str
    at: Position
    ahead: Position
    """Position of the last message that was fetched."""
    ahead_epoch: int

    @property
    def place(self) -> Row:
        return self.queue.id, self.group, self.partition


PLACE = "queue = ? and crew = ? and partition = ?"


def behind(
    database: Database, queue: int, partition: int, at: Position, limit: int, now_ms: int
) -> list[StoredMessage]:
    """Return the messages that come behind a position."""
    # The read includes the message at the position, which may have expired by now: hence one more, and the filter.
    found = read(database, queue, partition, at, limit + 1, False, now_ms)
    return [one for one in found if one.message_id != at.id][:limit]


def until(moment: LeaseMoment, ttl_s: float) -> int:
    """Return the time `ttl_s` seconds from now, in milliseconds since 1970."""
    return moment.now_ms + int(ttl_s * 1000)


def write(database: Database, held: HeldLease, what: str, *values: object) -> None:
    """Change the row of a valid lease."""
    # The epoch keeps a former holder from changing the row of its successor.
    database.execute(f"update lease set {what} where {PLACE} and epoch = ?", (*values, *held.place, held.epoch))
