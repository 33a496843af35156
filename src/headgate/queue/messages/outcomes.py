"""Record what the holders of leases report: messages that are done, that wait for another attempt, or are given up.

All of it runs in the transaction of the writer, except for `dead_letters`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from headgate.queue.messages import holders
from headgate.queue.messages.database import Database
from headgate.queue.messages.leases import LeasedStrand, strand_of
from headgate.queue.messages.records import InvalidPost, KeyReused
from headgate.queue.messages.storage import ids_behind, read_ids, sizes
from headgate.queueing.ids import Position, position_of

DEAD_MAX_BYTES = 16_000_000
"""Limit on the bytes of messages that one outcome makes dead letters; more than one fetch returns."""
USUAL = holders.AttemptRecord()


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
    strand = strand_of(database, app, queue, token, moment.now_ms)
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


def _is_known(database: Database, strand: LeasedStrand, outcome: holders.Outcome, key: str) -> bool:
    """Return whether the last outcome of this lease came under this key. Raise KeyReused if it was another one."""
    head = strand.leases[0]
    sql = f"select digest from outcome where {holders.PLACE} and epoch = ? and key = ?"
    rows = database.execute(sql, (*head.place, head.epoch, key))
    if rows and rows[0][0] != _digest(outcome):
        raise KeyReused("this Idempotency-Key was used for another outcome")
    return bool(rows)


def _remember(database: Database, strand: LeasedStrand, outcome: holders.Outcome, key: str) -> None:
    # One key for each lease is enough: a worker repeats an outcome until it is answered, before it reports another.
    database.execute(
        "insert into outcome (queue, crew, partition, epoch, key, digest) values (?, ?, ?, ?, ?, ?) on conflict"
        " (queue, crew, partition) do update set epoch = excluded.epoch, key = excluded.key, digest = excluded.digest",
        (*strand.leases[0].place, strand.leases[0].epoch, key, _digest(outcome)),
    )


def _digest(outcome: holders.Outcome) -> str:
    return hashlib.blake2b(msgspec.json.encode(outcome), digest_size=24).hexdigest()


def _by_partition(
    database: Database, strand: LeasedStrand, outcome: holders.Outcome
) -> list[tuple[holders.HeldLease, holders.Outcome]]:
    """Split an outcome by partition. An id may exist in several; it then means the one that was handed out last."""
    if not outcome.done and not outcome.failed:
        return []
    leases = sorted(strand.leases, key=lambda held: held.partition != strand.handed)
    if len(leases) == 1:
        return [(leases[0], outcome)]
    named = (*outcome.done, *(one.message_id for one in outcome.failed))
    waiting = [{id for id, one in holders.attempts(database, held, named).items() if one.due_ms} for held in leases]

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
    known: Mapping[str, holders.AttemptRecord]
    """Message -> its attempts; only those that the outcome names."""


def _checked(
    database: Database, held: holders.HeldLease, outcome: holders.Outcome, moment: holders.LeaseMoment
) -> _PartitionReport:
    """Check an outcome, without writing anything, and return what can be recorded. Raise InvalidPost."""
    named = {*outcome.done, *(one.message_id for one in outcome.failed)}
    known = holders.attempts(database, held, named)
    ahead = sorted(position_of(id) for id in named if position_of(id) > held.at)
    _check(database, held, named, ahead, {id for id, one in known.items() if one.due_ms}, moment)
    size = _given_up(database, held, outcome, known)
    if size.bytes > DEAD_MAX_BYTES:
        why = f"these messages have {size.bytes} bytes together; at most {DEAD_MAX_BYTES} become dead letters at a time"
        raise InvalidPost({"failed": why})
    return _PartitionReport(held, outcome, ahead[-1] if ahead else held.at, known)


def _given_up(
    database: Database,
    held: holders.HeldLease,
    outcome: holders.Outcome,
    known: Mapping[str, holders.AttemptRecord],
) -> holders.DeadLetterSize:
    """Return how many messages an outcome makes dead letters, and the bytes of their bodies."""
    tries = {one.message_id: known.get(one.message_id, USUAL).failed + 1 for one in outcome.failed}
    ids = [one.message_id for one in outcome.failed if one.reject or tries[one.message_id] >= outcome.attempts]
    found = sizes(database, held.queue.id, [(held.partition, id) for id in ids])
    return holders.DeadLetterSize(len(found), sum(found))


def dead_letters(
    database: Database, app: str, queue: str, token: str, outcome: holders.Outcome, now_ms: int
) -> holders.DeadLetterSize:
    """Return how many dead letters `commit` will write, and the bytes of their bodies. Raise LeaseLost, NoQueue."""
    parts = _by_partition(database, strand_of(database, app, queue, token, now_ms), outcome)
    found = [
        _given_up(database, held, part, holders.attempts(database, held, [one.message_id for one in part.failed]))
        for held, part in parts
    ]
    return holders.DeadLetterSize(sum(one.messages for one in found), sum(one.bytes for one in found))


def _record(database: Database, report: _PartitionReport, moment: holders.LeaseMoment) -> None:
    held, outcome, known = report.held, report.outcome, report.known
    for id in outcome.done:
        if id in known:
            holders.forget(database, held, id)
    given_up = list[holders.GivenUp]()
    for failure in outcome.failed:
        # Read one by one: together, the bodies of two thousand messages take gigabytes.
        if found := read_ids(database, held.queue.id, [(held.partition, failure.message_id)], moment.now_ms):
            tries = known.get(failure.message_id, USUAL).failed + 1
            if dead := holders.fail(database, held, found[0], failure, tries, outcome.attempts, moment):
                given_up.append(dead)
        elif failure.message_id in known:
            holders.forget(database, held, failure.message_id)
    if given_up:
        holders.bury(database, held, given_up, moment)
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
    between = ids_behind(database, held.queue.id, held.partition, held.at, len(ahead) + 1, moment.now_ms)
    for id in between:
        if position_of(id) < ahead[-1] and id not in named:
            raise InvalidPost({"done": f"{id} comes before the last one named, and is neither done nor failed"})
