"""Lease partitions to workers over HTTP: record their holders and expiry, and the progress of each group.

A lease is one row, which every write of its holder checks: a holder that lost the lease writes nothing. As with
other workers, messages that were fetched by a holder that did not come back are handed out again one by one, to
find out which of them ends the process. Where a queue has priorities, a lease covers a strand: a row for each of
its partitions, the first of which has the token. All of it runs in the transaction of the writer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from headgate.queue.messages import holders, queues
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import InvalidPost, KeyReused
from headgate.queue.messages.storage import read_ids
from headgate.queueing.ids import START, Position, position_of, unix_ms_of
from headgate.queueing.partitions import QueuePartition, comes_next, head_of


def take(database: Database, wanted: holders.LeaseRequest, moment: holders.LeaseMoment) -> holders.MessageLease | None:
    """Lease a partition, or a strand, that nobody holds and that has something to do; return None if there is none.
    Raise NoQueue, InvalidPost."""
    queue = queues.find(database, wanted.app, wanted.queue)
    if wanted.partition is not None and not 1 <= wanted.partition <= queue.partitions:
        raise InvalidPost({"partition": f"the queue has partitions 1 to {queue.partitions}"})
    heads: Sequence[int] = range(1, queue.partitions + 1, queue.priorities)
    if wanted.partition is not None:
        heads = (head_of(QueuePartition(queue.name, wanted.partition), queue.priorities).number,)
    sql = "select partition, epoch, ticks, id, expires_ms from lease where queue = ? and crew = ?"
    known = {row[0]: row for row in database.execute(sql, (queue.id, wanted.group))}
    every = [[known.get(n, _unknown(n)) for n in range(head, head + queue.priorities)] for head in heads]
    # Those returned or never held (0) come first, then the one whose lease ran out first.
    for strand in sorted((rows for rows in every if rows[0][4] <= moment.now_ms), key=lambda rows: rows[0][4]):
        places = [((queue.id, wanted.group, row[0]), Position(*row[2:4])) for row in strand]
        if not any(_waits(database, place, at, moment.now_ms) for place, at in places):
            continue
        # Another server may insert the same rows now; neither fails, and the update below decides.
        for place in (place for place, _ in places if place[2] not in known):
            values = (*place, 0, "", "", 0, START.ticks, START.id, START.ticks, START.id, 0)
            marks = ", ".join("?" * len(values))
            database.execute(f"insert into lease values ({marks}) on conflict do nothing", values)
        head, epoch, _, id, _ = strand[0]
        # A worker that presents the name counts as the holder, so nobody must be able to guess it.
        token, taken = secrets.token_hex(16), "update lease set epoch = ?, worker = ?, expires_ms = ?, token = ?"
        whose = (epoch + 1, wanted.worker, holders.until(moment, wanted.ttl_s))
        # Two servers may see the same free strand; the epoch lets one of them win, and its rows of lower priority
        # follow. The holder may also have extended its lease at the last moment.
        free = f"{taken} where {holders.PLACE} and epoch = ? and expires_ms <= ? returning 1"
        if database.execute(free, (*whose, token, *places[0][0], epoch, moment.now_ms)):
            for place, _ in places[1:]:
                database.execute(f"{taken} where {holders.PLACE}", (*whose, "", *place))
            return holders.MessageLease(token, head, epoch + 1, wanted.ttl_s, id, queue.priorities)
        # another server was quicker
    return None


def _unknown(partition: int) -> Row:
    """Return the row of a partition that nobody has ever held."""
    return partition, 0, START.ticks, START.id, 0


def _waits(database: Database, place: Row, at: Position, now_ms: int) -> bool:
    """Return whether the partition has a message that is due or new."""
    due = database.execute(
        f"select 1 from tried where {holders.PLACE} and due_ms between 1 and ? limit 1", (*place, now_ms)
    )
    queue, _, partition = place
    return bool(due) or bool(holders.behind(database, queue, partition, at, 1, now_ms))


@dataclass(frozen=True, slots=True)
class _Strand:
    """Represent what one lease covers: a strand, or one partition if the queue has no priorities."""

    leases: tuple[holders.HeldLease, ...]
    """Those of the partitions of the strand, the highest priority first."""
    handed: int = 0
    """Partition of the message that was handed out last; 0: none was."""
    passed: int = 0
    """Argument `passed` for the next call of `comes_next`."""
    then_passed: int = 0
    """Value of `passed` once the message handed out last has an outcome."""

    def write(self, database: Database, what: str, *values: object) -> None:
        """Change the rows of all its partitions."""
        for held in self.leases:
            holders.write(database, held, what, *values)

    def keep(self, database: Database) -> None:
        """Store whose turn it is."""
        database.execute(
            "insert into turn (queue, crew, partition, handed, passed, then_passed) values (?, ?, ?, ?, ?, ?)"
            " on conflict (queue, crew, partition) do update set handed = excluded.handed, passed = excluded.passed,"
            " then_passed = excluded.then_passed",
            (*self.leases[0].place, self.handed, self.passed, self.then_passed),
        )


def _held(database: Database, app: str, name: str, token: str, now_ms: int) -> _Strand:
    """Return the partitions that this lease covers. Raise LeaseLost, NoQueue."""
    queue = queues.find(database, app, name)
    columns = "crew, partition, epoch, worker, ticks, id, ahead_ticks, ahead_id, ahead_epoch"
    sql = f"select {columns} from lease where queue = ?"
    # Locked: another server could otherwise lease the partition again before this transaction has written what the
    # holder reports.
    valid = f"{sql} and token = ? and expires_ms > ?{database.for_update}"
    rows = database.execute(valid, (queue.id, token, now_ms))
    # The rows of lower priorities have an empty token and a time that has not passed: an empty name must not match
    # them.
    if not rows or not token:
        raise holders.LeaseLost("this lease has ended: take another, and discard what was fetched under it")
    turn: list[Row] = []
    if queue.priorities > 1:
        group, head, *_ = rows[0]
        turn = database.execute(
            f"select handed, passed, then_passed from turn where {holders.PLACE}", (queue.id, group, head)
        )
        between = f"{sql} and crew = ? and partition between ? and ? order by partition"
        rows = database.execute(between, (queue.id, group, head, head + queue.priorities - 1))
    leases = tuple(
        holders.HeldLease(
            queue, group, n, epoch, worker, Position(ticks, id), Position(ahead_ticks, ahead_id), ahead_epoch
        )
        for group, n, epoch, worker, ticks, id, ahead_ticks, ahead_id, ahead_epoch in rows
    )
    return _Strand(leases, *turn[0]) if turn else _Strand(leases)


def release(database: Database, app: str, queue: str, token: str, moment: holders.LeaseMoment) -> None:
    """Give a lease back. This declares that fetched messages that are not done were not started. Raise LeaseLost or
    NoQueue."""
    strand = _held(database, app, queue, token, moment.now_ms)
    for held in strand.leases:
        place = (*held.place, held.epoch)
        database.execute(f"update tried set handed = 0 where {holders.PLACE} and handed = ?", place)
        # What an earlier holder fetched and never answered for remains suspect: this holder may not have got to it.
        if held.ahead_epoch == held.epoch:
            holders.write(database, held, "ahead_ticks = ticks, ahead_id = id")
    strand.write(database, "token = '', expires_ms = 0")


def fetch(
    database: Database, app: str, queue: str, token: str, limit: int, moment: holders.LeaseMoment
) -> list[holders.Handed]:
    """Return the next messages. A repeated call returns the same ones, unless one of a higher priority has arrived.
    A message whose last attempt failed, or has no known outcome, comes alone; in a queue with priorities each
    message does. Raise LeaseLost, NoQueue."""
    strand = _held(database, app, queue, token, moment.now_ms)
    if len(strand.leases) == 1:
        return _fetch(database, strand.leases[0], limit, moment)
    while True:
        since_ms = [_since_ms(database, held, moment.now_ms) for held in strand.leases]
        following = comes_next(since_ms, moment.now_ms, strand.passed)
        if following is None:
            return []
        held = strand.leases[following.which]
        if found := _fetch(database, held, 1, moment):
            replace(strand, handed=held.partition, then_passed=following.passed).keep(database)
            return found
        strand = _held(database, app, queue, token, moment.now_ms)  # it was given up, or has expired


def _since_ms(database: Database, held: holders.HeldLease, now_ms: int) -> int | None:
    """Return when the next message of a partition was posted."""
    due = f"select id from tried where {holders.PLACE} and due_ms between 1 and ? order by due_ms limit 1"
    ids = [id for (id,) in database.execute(due, (*held.place, now_ms))]
    found = ids or [
        one.message_id for one in holders.behind(database, held.queue.id, held.partition, held.at, 1, now_ms)
    ]
    return unix_ms_of(found[0]) if found else None


def _fetch(
    database: Database, held: holders.HeldLease, limit: int, moment: holders.LeaseMoment
) -> list[holders.Handed]:
    """Return the next messages of one partition."""
    # A message without a body is gone, so the next one is read; each round deletes a row, so the loop ends.
    while (due := holders.due_one(database, held, moment)) is not None:
        if due.body:
            return [due]
    at = held.at
    # The holder before fetched up to `ahead` and did not come back: any of these may have ended its process.
    while at < held.ahead and held.ahead_epoch < held.epoch:
        found = holders.behind(database, held.queue.id, held.partition, at, 1, moment.now_ms)
        if not found or position_of(found[0].message_id) > held.ahead:
            break
        handed = holders.alone(database, held, found[0], moment)
        if handed is not None:
            return [handed]
        at = position_of(found[0].message_id)
        holders.write(database, held, "ticks = ?, id = ?", at.ticks, at.id)
    page = holders.behind(database, held.queue.id, held.partition, at, limit, moment.now_ms)
    if page:
        # Recorded before the answer leaves: should this holder vanish, the next one knows what it may have started.
        ahead = position_of(page[-1].message_id)
        sql = "ahead_ticks = ?, ahead_id = ?, ahead_epoch = epoch"
        holders.write(database, held, sql, ahead.ticks, ahead.id)
    return [holders.as_handed(one, 1) for one in page]


def commit(
    database: Database,
    app: str,
    queue: str,
    token: str,
    outcome: holders.Outcome,
    moment: holders.LeaseMoment,
    key: str = "",
) -> holders.MessageLease:
    """Record that everything up to the last message named is done or waits for its next attempt, and return the
    lease, which continues. Repeated under the same key as the last time, the outcome is not recorded again.

    Raise LeaseLost, NoQueue, InvalidPost, KeyReused.
    """
    strand = _held(database, app, queue, token, moment.now_ms)
    known = bool(key) and _is_known(database, strand, outcome, key)
    # All are checked before anything is written: the transaction holds writes of others, which a refusal must not undo.
    parts = [] if known else _by_partition(database, strand, outcome)
    reports = [_checked(database, held, part, moment) for held, part in parts]
    if key and not known:
        _remember(database, strand, outcome, key)
    for report in reports:
        _record(database, report, moment)
    # An outcome uses the turn up. A mere extension of the lease does not.
    if reports and len(strand.leases) > 1:
        replace(strand, passed=strand.then_passed).keep(database)
    strand.write(database, "expires_ms = ?", holders.until(moment, outcome.ttl))
    head = strand.leases[0]
    processed = next((report.last.id for report in reports if report.held is head), head.at.id)
    return holders.MessageLease(token, head.partition, head.epoch, outcome.ttl, processed, len(strand.leases))


def _is_known(database: Database, strand: _Strand, outcome: holders.Outcome, key: str) -> bool:
    """Return whether the last outcome of this lease came under this key. Raise KeyReused if it was another one."""
    head = strand.leases[0]
    sql = f"select digest from outcome where {holders.PLACE} and epoch = ? and key = ?"
    rows = database.execute(sql, (*head.place, head.epoch, key))
    if rows and rows[0][0] != _digest(outcome):
        raise KeyReused("this Idempotency-Key was used for another outcome")
    return bool(rows)


def _remember(database: Database, strand: _Strand, outcome: holders.Outcome, key: str) -> None:
    # One key for each lease is enough: a worker repeats an outcome until it is answered, before it reports another.
    database.execute(
        "insert into outcome (queue, crew, partition, epoch, key, digest) values (?, ?, ?, ?, ?, ?) on conflict"
        " (queue, crew, partition) do update set epoch = excluded.epoch, key = excluded.key, digest = excluded.digest",
        (*strand.leases[0].place, strand.leases[0].epoch, key, _digest(outcome)),
    )


def _digest(outcome: holders.Outcome) -> str:
    return hashlib.blake2b(msgspec.json.encode(outcome), digest_size=24).hexdigest()


def _by_partition(
    database: Database, strand: _Strand, outcome: holders.Outcome
) -> list[tuple[holders.HeldLease, holders.Outcome]]:
    """Split an outcome by partition. An id may exist in several; it then means the one that was handed out last."""
    if not outcome.done and not outcome.failed:
        return []
    leases = sorted(strand.leases, key=lambda held: held.partition != strand.handed)
    if len(leases) == 1:
        return [(leases[0], outcome)]
    waiting = [_waiting(database, held) for held in leases]

    def of(id: str) -> holders.HeldLease:
        at = position_of(id)
        known = zip(leases, waiting, strict=True)
        return next((held for held, ids in known if held.at < at <= held.ahead or id in ids), leases[0])

    found: dict[int, tuple[holders.HeldLease, holders.Outcome]] = {}
    for held in leases:
        done = tuple(id for id in outcome.done if of(id) is held)
        failed = tuple(one for one in outcome.failed if of(one.message_id) is held)
        if done or failed:
            found[held.partition] = held, holders.Outcome(done, failed, outcome.ttl, outcome.attempts)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _PartitionReport:
    """Hold the reported outcomes of one partition that can be recorded."""

    held: holders.HeldLease
    outcome: holders.Outcome
    last: Position


def _waiting(database: Database, held: holders.HeldLease) -> set[str]:
    """Return the ids of messages that wait for a retry."""
    return {id for (id,) in database.execute(f"select id from tried where {holders.PLACE} and due_ms > 0", held.place)}


def _checked(
    database: Database, held: holders.HeldLease, outcome: holders.Outcome, moment: holders.LeaseMoment
) -> _PartitionReport:
    """Check an outcome, without writing anything, and return what can be recorded. Raise InvalidPost."""
    named = {*outcome.done, *(one.message_id for one in outcome.failed)}
    ahead = sorted(position_of(id) for id in named if position_of(id) > held.at)
    _check(database, held, named, ahead, _waiting(database, held), moment)
    return _PartitionReport(held, outcome, ahead[-1] if ahead else held.at)


def _record(database: Database, report: _PartitionReport, moment: holders.LeaseMoment) -> None:
    held, outcome = report.held, report.outcome
    known: dict[str, int] = dict(database.execute(f"select id, failed from tried where {holders.PLACE}", held.place))
    for id in outcome.done:
        if id in known:
            holders.forget(database, held, id)
    for failure in outcome.failed:
        # Read one by one: together, the bodies of two thousand messages take gigabytes.
        if found := read_ids(database, held.queue.id, [(held.partition, failure.message_id)], moment.now_ms):
            tries = known.get(failure.message_id, 0) + 1
            holders.fail(database, held, found[0], failure, tries, outcome.attempts, moment)
        elif failure.message_id in known:
            holders.forget(database, held, failure.message_id)
    holders.write(database, held, "ticks = ?, id = ?", report.last.ticks, report.last.id)


def _check(
    database: Database,
    held: holders.HeldLease,
    named: set[str],
    ahead: list[Position],
    waiting: set[str],
    moment: holders.LeaseMoment,
) -> None:
    """Check that no message is skipped, and that only fetched messages are named. Raise InvalidPost."""
    past = {id for id in named if position_of(id) <= held.at} - waiting
    if past:
        raise InvalidPost({"done": f"{min(past)} is already done, and waits for no retry"})
    if not ahead:
        return
    if ahead[-1] > held.ahead:
        raise InvalidPost({"done": f"{ahead[-1].id} was not fetched"})
    # If all messages up to the last one are named, they are at most this many; one more shows that one was left out.
    between = holders.behind(database, held.queue.id, held.partition, held.at, len(ahead) + 1, moment.now_ms)
    for one in between:
        if position_of(one.message_id) < ahead[-1] and one.message_id not in named:
            raise InvalidPost(
                {"done": f"{one.message_id} comes before the last one named, and is neither done nor failed"}
            )
