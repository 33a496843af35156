"""Partitions leased to workers over HTTP: who has which until when, how far each is, and what is to be tried again.

A lease is one row, which every write of its holder checks: whoever lost it writes nothing.  As with other workers, what
was fetched by a holder that did not come back is handed out again alone, so that it is known whose process it ends.
All of it runs in the transaction of the writer.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headgate.adapters.messages import queues
from headgate.adapters.messages.database import Database, Row
from headgate.adapters.messages.posting import Post, post_group
from headgate.adapters.messages.reading import read, read_ids
from headgate.adapters.messages.records import Draft, NoQueue, Queue, Refused, Stored
from headgate.queueing.ids import START, Position, position_of
from headgate.queueing.lanes import DEAD_LETTERS, Lane
from headgate.queueing.letters import DEAD_TTL_S, ERROR_MAX_CHARS, DeadLetter, letter_of
from headgate.queueing.policy import Policy

CREW = "workers"
"""Of leases that name no group."""
USUAL = Policy()
RETRYING_MAX = 100
"""Failed messages of one partition that wait; with more, the partition waits for the first of them."""


class LeaseLost(LookupError):
    """It ran out, was given back, or is another's: nothing was written."""


class Lease(msgspec.Struct, frozen=True):
    """What a worker holds."""

    lease: str
    """Its name; whoever knows it is the holder."""
    partition: int
    epoch: int
    """One more with every holder."""
    expires_in: float
    """Seconds."""
    processed: str
    """The newest message that is done, and all before it; empty: none."""


class Handed(msgspec.Struct, frozen=True):
    """A message as workers are given it."""

    message_id: str
    timestamp: str
    body: str
    partition: int
    attempt: int


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker says of a message whose job failed."""

    message_id: str
    error: str = ""
    retry_after: float | None = None
    reject: bool = False


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of messages."""

    done: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    ttl: float = 30.0
    attempts: int = USUAL.attempts


@dataclass(frozen=True, slots=True)
class Wish:
    """For a lease."""

    app: str
    queue: str
    worker: str
    crew: str = CREW
    partition: int | None = None
    ttl_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What a transaction knows of the world."""

    now_ns: int
    node: int
    chance: random.Random

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class _Held:
    """A row of a lease that holds."""

    queue: Queue
    crew: str
    partition: int
    epoch: int
    worker: str
    at: Position
    ahead: Position
    """What was fetched lies up to here."""
    ahead_epoch: int

    @property
    def place(self) -> Row:
        return self.queue.id, self.crew, self.partition


_VANISHED = "Vanished: its lease ran out, each time, before its job had ended"
_PLACE = "queue = ? and crew = ? and partition = ?"


def take(database: Database, wish: Wish, moment: Moment) -> Lease | None:
    """A partition that nobody holds and where something is to be done.  Raises NoQueue, Refused."""
    queue = queues.find(database, wish.app, wish.queue)
    if wish.partition is not None and not 1 <= wish.partition <= queue.partitions:
        raise Refused({"partition": f"the queue has partitions 1 to {queue.partitions}"})
    wanted = range(1, queue.partitions + 1) if wish.partition is None else (wish.partition,)
    sql = "select partition, epoch, ticks, id, expires_ms from lease where queue = ? and crew = ?"
    known = {row[0]: row for row in database.execute(sql, (queue.id, wish.crew))}
    free = [known.get(n, (n, 0, START.ticks, START.id, 0)) for n in wanted]
    for n, epoch, ticks, id, _ in sorted((row for row in free if row[4] <= moment.now_ms), key=lambda row: row[4]):
        if not _waits(database, (queue.id, wish.crew, n), Position(ticks, id), moment.now_ms):
            continue
        if n not in known:
            values = (queue.id, wish.crew, n, 0, "", "", 0, START.ticks, START.id, START.ticks, START.id, 0)
            marks = ", ".join("?" * len(values))
            database.execute(f"insert into lease values ({marks}) on conflict do nothing", values)
        token = secrets.token_hex(16)
        taken = database.execute(
            "update lease set epoch = ?, token = ?, worker = ?, expires_ms = ?"
            f" where {_PLACE} and epoch = ? returning 1",
            (epoch + 1, token, wish.worker, _until(moment, wish.ttl_s), queue.id, wish.crew, n, epoch),
        )
        if taken:  # else another server was quicker
            return Lease(token, n, epoch + 1, wish.ttl_s, id)
    return None


def _waits(database: Database, place: Row, at: Position, now_ms: int) -> bool:
    due = database.execute(f"select 1 from tried where {_PLACE} and due_ms between 1 and ? limit 1", (*place, now_ms))
    queue, _, partition = place
    return bool(due) or bool(_behind(database, queue, partition, at, 1, now_ms))


def _behind(database: Database, queue: int, partition: int, at: Position, limit: int, now_ms: int) -> list[Stored]:
    found = read(database, queue, partition, at, limit + 1, False, now_ms)
    return [one for one in found if one.message_id != at.id][:limit]


def _until(moment: Moment, ttl_s: float) -> int:
    return moment.now_ms + int(ttl_s * 1000)


def _held(database: Database, app: str, name: str, token: str, now_ms: int) -> _Held:
    """Raises LeaseLost, NoQueue."""
    queue = queues.find(database, app, name)
    rows = database.execute(
        "select crew, partition, epoch, worker, ticks, id, ahead_ticks, ahead_id, ahead_epoch from lease"
        " where queue = ? and token = ? and expires_ms > ?",
        (queue.id, token, now_ms),
    )
    if not rows or not token:
        raise LeaseLost("this lease is no more: take another, and forget what was fetched under it")
    crew, partition, epoch, worker, ticks, id, ahead_ticks, ahead_id, ahead_epoch = rows[0]
    ahead = Position(ahead_ticks, ahead_id)
    return _Held(queue, crew, partition, epoch, worker, Position(ticks, id), ahead, ahead_epoch)


def _extended(database: Database, held: _Held, ttl_s: float, moment: Moment) -> None:
    _set(database, held, "expires_ms = ?", _until(moment, ttl_s))


def _set(database: Database, held: _Held, what: str, *values: object) -> None:
    database.execute(f"update lease set {what} where {_PLACE} and epoch = ?", (*values, *held.place, held.epoch))


def release(database: Database, app: str, queue: str, token: str, moment: Moment) -> None:
    """What was fetched and is not done was not begun, says who gives a lease back.  Raises LeaseLost, NoQueue."""
    held = _held(database, app, queue, token, moment.now_ms)
    place = (*held.place, held.epoch)
    database.execute(f"update tried set handed = 0 where {_PLACE} and handed = ?", place)
    if held.ahead_epoch == held.epoch:
        _set(database, held, "ahead_ticks = ticks, ahead_id = id")
    _set(database, held, "token = '', expires_ms = 0")


def fetch(database: Database, app: str, queue: str, token: str, limit: int, moment: Moment) -> list[Handed]:
    """The next messages; asked again, the same.  One whose last try failed, or was never heard of, comes alone.  Raises
    LeaseLost, NoQueue."""
    held = _held(database, app, queue, token, moment.now_ms)
    while (due := _due(database, held, moment)) is not None:
        if due.body:
            return [due]
    at = held.at
    while at < held.ahead and held.ahead_epoch < held.epoch:
        found = _behind(database, held.queue.id, held.partition, at, 1, moment.now_ms)
        if not found or position_of(found[0].message_id) > held.ahead:
            break
        handed = _alone(database, held, found[0], moment)
        if handed is not None:
            return [handed]
        at = position_of(found[0].message_id)
        _set(database, held, "ticks = ?, id = ?", at.ticks, at.id)
    page = _behind(database, held.queue.id, held.partition, at, limit, moment.now_ms)
    if page:
        ahead = position_of(page[-1].message_id)
        sql = "ahead_ticks = ?, ahead_id = ?, ahead_epoch = epoch"
        _set(database, held, sql, ahead.ticks, ahead.id)
    return [_as_handed(one, 1) for one in page]


def _as_handed(one: Stored, attempt: int) -> Handed:
    return Handed(one.message_id, one.timestamp, one.body, one.partition, attempt)


def _due(database: Database, held: _Held, moment: Moment) -> Handed | None:
    """A failed one whose time has come; with an empty body: one that is forgotten, as it has expired or is given up."""
    due = f"from tried where {_PLACE} and due_ms between 1 and ? order by due_ms limit 1"
    rows = database.execute(f"select id, failed, died, handed {due}", (*held.place, moment.now_ms))
    if not rows:
        return None
    id, failed, died, handed = rows[0]
    found = read_ids(database, held.queue.id, [(held.partition, id)], moment.now_ms)
    died += 0 < handed < held.epoch
    if not found:
        _forget(database, held, id)
        return Handed(id, "", "", held.partition, 0)
    if died >= USUAL.deaths_max:
        _bury(database, held, found[0], failed, died, _VANISHED, moment)
        return Handed(id, "", "", held.partition, 0)
    _mark(database, held, id, died)
    return _as_handed(found[0], failed + died + 1)


def _alone(database: Database, held: _Held, one: Stored, moment: Moment) -> Handed | None:
    """One that may have been begun; None when it has ended its process too often, and is given up."""
    rows = database.execute(
        f"select failed, died, handed from tried where {_PLACE} and id = ?", (*held.place, one.message_id)
    )
    failed, died, handed = rows[0] if rows else (0, 0, 0)
    died += 0 < handed < held.epoch
    if died >= USUAL.deaths_max:
        _bury(database, held, one, failed, died, _VANISHED, moment)
        return None
    if not rows:
        values = (*held.place, one.message_id, 0, 0, 0, 0, "")
        database.insert("tried", "queue, crew, partition, id, failed, died, handed, due_ms, error", [values])
    _mark(database, held, one.message_id, died)
    return _as_handed(one, max(failed + died, 1) + 1)


def _mark(database: Database, held: _Held, id: str, died: int) -> None:
    sql = f"update tried set died = ?, handed = ? where {_PLACE} and id = ?"
    database.execute(sql, (died, held.epoch, *held.place, id))


def _forget(database: Database, held: _Held, id: str) -> None:
    database.execute(f"delete from tried where {_PLACE} and id = ?", (*held.place, id))


def commit(database: Database, app: str, queue: str, token: str, outcome: Outcome, moment: Moment) -> Lease:
    """Everything up to the last message named is done, or waits for its next try; the lease holds on.

    Raises LeaseLost, NoQueue, Refused.
    """
    held = _held(database, app, queue, token, moment.now_ms)
    named = {*outcome.done, *(one.message_id for one in outcome.failed)}
    known: dict[str, int] = dict(database.execute(f"select id, failed from tried where {_PLACE}", held.place))
    waiting = {id for (id,) in database.execute(f"select id from tried where {_PLACE} and due_ms > 0", held.place)}
    ahead = sorted(position_of(id) for id in named if position_of(id) > held.at)
    _check(database, held, named, ahead, waiting, moment)
    found = {one.message_id: one for one in _read_failed(database, held, outcome, moment)}
    for id in outcome.done:
        if id in known:
            _forget(database, held, id)
    for failure in outcome.failed:
        if failure.message_id in found:
            tries = known.get(failure.message_id, 0) + 1
            _failed(database, held, found[failure.message_id], failure, tries, outcome.attempts, moment)
        elif failure.message_id in known:
            _forget(database, held, failure.message_id)
    last = ahead[-1] if ahead else held.at
    _set(database, held, "ticks = ?, id = ?", last.ticks, last.id)
    _extended(database, held, outcome.ttl, moment)
    return Lease(token, held.partition, held.epoch, outcome.ttl, last.id)


def _read_failed(database: Database, held: _Held, outcome: Outcome, moment: Moment) -> Sequence[Stored]:
    ids = [(held.partition, one.message_id) for one in outcome.failed]
    return read_ids(database, held.queue.id, ids, moment.now_ms)


def _check(
    database: Database, held: _Held, named: set[str], ahead: list[Position], waiting: set[str], moment: Moment
) -> None:
    """Nothing is skipped, and nothing is named that was not fetched.  Raises Refused."""
    behind = {id for id in named if position_of(id) <= held.at} - waiting
    if behind:
        raise Refused({"done": f"{min(behind)} is done already, and waits for no other try"})
    if not ahead:
        return
    if ahead[-1] > held.ahead:
        raise Refused({"done": f"{ahead[-1].id} was not fetched"})
    between = _behind(database, held.queue.id, held.partition, held.at, len(ahead) + 1, moment.now_ms)
    for one in between:
        if position_of(one.message_id) < ahead[-1] and one.message_id not in named:
            raise Refused({"done": f"{one.message_id} comes before the last one named, and is neither done nor failed"})


def _failed(
    database: Database, held: _Held, one: Stored, said: Failure, tries: int, attempts: int, moment: Moment
) -> None:
    row = database.execute(f"select died from tried where {_PLACE} and id = ?", (*held.place, one.message_id))
    died = row[0][0] if row else 0
    if said.reject or tries >= attempts:
        _bury(database, held, one, tries, died, said.error, moment)
        return
    delay_s = USUAL.delay_s(tries, moment.chance.random()) if said.retry_after is None else said.retry_after
    _forget(database, held, one.message_id)
    due_ms = max(_until(moment, delay_s), 1)
    values = (*held.place, one.message_id, tries, died, 0, due_ms, said.error[:ERROR_MAX_CHARS])
    database.insert("tried", "queue, crew, partition, id, failed, died, handed, due_ms, error", [values])


def _bury(database: Database, held: _Held, one: Stored, failed: int, died: int, error: str, moment: Moment) -> None:
    """To the dead letters of the application, in the transaction that forgets it here."""
    (app,) = database.execute("select app from queue where id = ?", (held.queue.id,))[0]
    lane = Lane(held.queue.name, held.partition)
    head = DeadLetter(
        queue=lane.queue,
        partition=lane.partition,
        message_id=one.message_id,
        timestamp=one.timestamp,
        attempts=failed + died,
        error=error[:ERROR_MAX_CHARS] or "its job failed",
        worker=held.worker,
        dead_ms=moment.now_ms,
        died=died,
    )
    try:
        queues.find(database, app, DEAD_LETTERS)
    except NoQueue:
        queues.create(database, app, Queue(0, DEAD_LETTERS, 1, "user", "strong", "", moment.now_ms))
    key = f"dead-{held.crew}-{lane}-{one.message_id}"
    draft = Draft(letter_of(head, one.body), DEAD_TTL_S, 1)
    post = Post(app, DEAD_LETTERS, (draft,), key, key)
    (answer,) = post_group(database, [post], moment.now_ns, moment.node, moment.chance)
    if isinstance(answer, Exception):
        raise AssertionError("the queue was made, and a key comes with one letter") from answer
    _forget(database, held, one.message_id)
