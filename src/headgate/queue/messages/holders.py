"""Define leases and the outcomes that workers report, and hand out failed messages again."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headgate.base.errors import HeadgateError
from headgate.queue.messages import queues
from headgate.queue.messages.bounds import FULL_AGAIN_S
from headgate.queue.messages.database import ROW_BYTES, Database, DataRefused, Row
from headgate.queue.messages.posts import MessagePost, post_group
from headgate.queue.messages.records import MessageDraft, NoQueue, PartitionFull, QueueRecord, StoredMessage
from headgate.queue.messages.storage import read, read_ids
from headgate.queueing.ids import Position
from headgate.queueing.message import DEAD_TTL_S, ERROR_MAX_CHARS, DeadLetter, format_dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition
from headgate.queueing.policy import Policy

DEFAULT_GROUP = "workers"
"""Group of leases that name none."""
USUAL = Policy()
DEAD_BYTES = 1_000
"""Bytes that a dead letter has in addition to its message, with the answer that is stored for it."""

PLACE = "queue = ? and crew = ? and partition = ?"
_VANISHED = "Vanished: its lease expired each time before its job had ended"


class LeaseLost(HeadgateError, LookupError):
    """Report that the lease expired, was returned, or belongs to another worker: nothing was written."""


class MessageLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe what a worker has leased."""

    lease: str
    """Name of the lease; a worker that presents it counts as the holder."""
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
    """Hold the time and the random number that a transaction uses."""

    now_ns: int
    node: int
    chance: random.Random
    no_room: str = ""
    """Why the application has no room for dead letters and new groups; empty: it has some."""

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


def behind(
    database: Database, queue: int, partition: int, at: Position, limit: int, now_ms: int
) -> list[StoredMessage]:
    """Return the messages that come behind a position."""
    return read(database, queue, partition, at, limit, False, now_ms, exclusive=True)


def until(moment: LeaseMoment, ttl_s: float) -> int:
    """Return the time `ttl_s` seconds from now, in milliseconds since 1970."""
    return moment.now_ms + int(ttl_s * 1000)


def write(database: Database, held: HeldLease, what: str, *values: object) -> None:
    """Change the row of a valid lease."""
    # The epoch keeps a former holder from changing the row of its successor.
    database.execute(f"update lease set {what} where {PLACE} and epoch = ?", (*values, *held.place, held.epoch))


def as_handed(one: StoredMessage, attempt: int) -> Handed:
    """Return the message in the form that workers receive."""
    return Handed(one.message_id, one.timestamp, one.body, one.partition, attempt)


class DeadLetterSize(NamedTuple):
    """Hold the number of dead letters, and the bytes of their messages."""

    messages: int = 0
    bytes: int = 0

    @property
    def counted(self) -> tuple[int, int]:
        """Return the messages and bytes that they count."""
        return self.messages, self.bytes + self.messages * (2 * ROW_BYTES + DEAD_BYTES)


class AttemptRecord(NamedTuple):
    """Hold the failures of a message, and when its next attempt is due, in milliseconds since 1970; 0: never."""

    failed: int = 0
    due_ms: int = 0


def attempts(database: Database, held: HeldLease, ids: Collection[str]) -> dict[str, AttemptRecord]:
    """Return the recorded attempts of these messages."""
    # Only those that are asked for: a group may have any number of failed messages.
    marks = ", ".join("?" * len(ids))
    sql = f"select id, failed, due_ms from tried where {PLACE} and id in ({marks})"
    return {id: AttemptRecord(*row) for id, *row in database.execute(sql, (*held.place, *ids))}


def due_one(database: Database, held: HeldLease, moment: LeaseMoment) -> Handed | None:
    """Return a failed message that is due. An empty body means that it is dropped, because it has expired or is
    given up."""
    due = f"from tried where {PLACE} and due_ms between 1 and ? order by due_ms limit 1"
    rows = database.execute(f"select id, failed, died, handed {due}", (*held.place, moment.now_ms))
    if not rows:
        return None
    # `handed` is the epoch under which it was handed out last; 0 means that no attempt is open.
    id, failed, died, handed = rows[0]
    found = read_ids(database, held.queue.id, [(held.partition, id)], moment.now_ms)
    died += 0 < handed < held.epoch
    if not found:
        forget(database, held, id)
        return Handed(id, "", "", held.partition, 0)
    if died >= USUAL.deaths_max:
        _vanished(database, held, found[0], failed, died, moment)
        return Handed(id, "", "", held.partition, 0)
    _mark(database, held, id, died)
    return as_handed(found[0], failed + died + 1)


def alone(database: Database, held: HeldLease, one: StoredMessage, moment: LeaseMoment) -> Handed | None:
    """Return a message that may have been started, or None if it has ended its process too often and is given up."""
    rows = database.execute(
        f"select failed, died, handed from tried where {PLACE} and id = ?", (*held.place, one.message_id)
    )
    # Without a row it was in a page that an earlier holder fetched. `died` stays 0, because one message at most of that
    # page ended the process, and nobody knows which.
    failed, died, handed = rows[0] if rows else (0, 0, 0)
    died += 0 < handed < held.epoch
    if died >= USUAL.deaths_max:
        _vanished(database, held, one, failed, died, moment)
        return None
    if not rows:
        _insert(database, held, one.message_id, 0, 0, 0, "")
    _mark(database, held, one.message_id, died)
    # The page counts as the first attempt, recorded or not.
    return as_handed(one, max(failed + died, 1) + 1)


def _mark(database: Database, held: HeldLease, id: str, died: int) -> None:
    sql = f"update tried set died = ?, handed = ? where {PLACE} and id = ?"
    database.execute(sql, (died, held.epoch, *held.place, id))


def _insert(database: Database, held: HeldLease, id: str, failed: int, died: int, due_ms: int, error: str) -> None:
    values = (*held.place, id, failed, died, 0, due_ms, error)
    database.insert("tried", "queue, crew, partition, id, failed, died, handed, due_ms, error", [values])
    database.growth.add_extra(held.queue.id, 1, len(error.encode()))


def forget(database: Database, held: HeldLease, id: str) -> None:
    """Delete the record of a message's attempts: it is done, or no longer exists."""
    gone = database.execute(
        f"delete from tried where {PLACE} and id = ? returning octet_length(error)", (*held.place, id)
    )
    for (size,) in gone:
        database.growth.add_extra(held.queue.id, -1, -size)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Represent a message that is given up."""

    message: StoredMessage
    failed: int
    died: int
    error: str


def fail(
    database: Database,
    held: HeldLease,
    one: StoredMessage,
    failure: Failure,
    tries: int,
    attempts: int,
    moment: LeaseMoment,
) -> GivenUp | None:
    """Let a message whose job failed wait for its next attempt; return it if it is given up instead."""
    row = database.execute(f"select died from tried where {PLACE} and id = ?", (*held.place, one.message_id))
    died = row[0][0] if row else 0
    if failure.reject or tries >= attempts:
        return GivenUp(one, tries, died, failure.error)
    delay_s = USUAL.delay_s(tries, moment.chance.random()) if failure.retry_after is None else failure.retry_after
    # The old row is deleted because `insert` copies rows and cannot replace one.
    forget(database, held, one.message_id)
    # In the table, 0 means that no attempt is due.
    due_ms = max(until(moment, delay_s), 1)
    _insert(database, held, one.message_id, tries, died, due_ms, _storable(failure.error))
    return None


def _storable(error: str) -> str:
    """Return the text of an error without what databases cannot store: NUL and halves of characters."""
    return error[:ERROR_MAX_CHARS].replace("\x00", "?").encode(errors="replace").decode()


def _vanished(
    database: Database, held: HeldLease, one: StoredMessage, failed: int, died: int, moment: LeaseMoment
) -> None:
    """Give up a message that has ended its process too often. Raise PartitionFull if there is no room for its dead
    letter."""
    if moment.no_room:
        raise PartitionFull(moment.no_room, FULL_AGAIN_S)
    bury(database, held, [GivenUp(one, failed, died, _VANISHED)], moment)


def bury(database: Database, held: HeldLease, given_up: Sequence[GivenUp], moment: LeaseMoment) -> None:
    """Move messages to the application's dead letters, in the transaction that forgets their attempts."""
    (app,) = database.execute("select app from queue where id = ?", (held.queue.id,))[0]
    try:
        queues.find(database, app, DEAD_LETTERS)
    except NoQueue:
        queues.create(database, app, QueueRecord(0, DEAD_LETTERS, 1, "user", "strong", "", moment.now_ms))
    posts = [_dead_message(app, held, one, moment) for one in given_up]
    try:
        answers = post_group(database, posts, moment.now_ns, moment.node, moment.chance)
    except NoQueue as error:
        # Another server has just removed the queue. An answer to the caller would commit half of the outcome.
        raise DataRefused("the queue of dead letters has just been removed") from error
    if refused := [answer for answer in answers if isinstance(answer, Exception)]:
        raise AssertionError("the queue was made, and no post of others has such a key") from refused[0]
    for one in given_up:
        forget(database, held, one.message.message_id)


def _dead_message(app: str, held: HeldLease, one: GivenUp, moment: LeaseMoment) -> MessagePost:
    partition = QueuePartition(held.queue.name, held.partition)
    head = DeadLetter(
        queue=partition.queue,
        partition=partition.number,
        message_id=one.message.message_id,
        timestamp=one.message.timestamp,
        attempts=one.failed + one.died,
        error=_storable(one.error) or "its job failed",
        worker=held.worker,
        dead_ms=moment.now_ms,
        died=one.died,
    )
    draft = MessageDraft(format_dead_letter(head, one.message.body), DEAD_TTL_S, 1)
    # Each group gives a message up for itself, so its name is part of the key. No header has line breaks: an
    # application that posts under such a key in advance would make every attempt to give the message up fail.
    key = f"dead\n{held.group}\n{partition}\n{one.message.message_id}"
    # The key also stands for the digest: the letter contains the time, so a repetition would differ from the first.
    return MessagePost(app, DEAD_LETTERS, (draft,), key, key)
