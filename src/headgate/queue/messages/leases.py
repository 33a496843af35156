"""Lease partitions to workers over HTTP: record their holders and expiry, and the progress of each group.

A lease is one row, which every write of its holder checks: a holder that lost the lease writes nothing. As with
other workers, messages that were fetched by a holder that did not come back are handed out again one by one, to
find out which of them ends the process. Where a queue has priorities, a lease covers a strand: a row for each of
its partitions, the first of which has the token. All of it runs in the transaction of the writer.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.queue.messages import holders, queues
from headgate.queue.messages.bounds import FULL_AGAIN_S
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import InvalidPost, PartitionFull, QueueRecord
from headgate.queue.messages.storage import ids_behind
from headgate.queueing.ids import START, Position, position_of, unix_ms_of
from headgate.queueing.partitions import QueuePartition, comes_next, head_of

LEASES_MAX = 50_000
"""Limit on the partitions that all groups of one queue have ever leased, counted once for each group: 250 groups have
room, whatever the number of partitions."""
GONE_MAX = 200
"""Failed messages that one request finds expired or gives up; the next request continues."""


def take(database: Database, wanted: holders.LeaseRequest, moment: holders.LeaseMoment) -> holders.MessageLease | None:
    """Lease a partition, or a strand, that nobody holds and that has something to do; return None if there is none.
    Raise NoQueue, InvalidPost, PartitionFull."""
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
        _insert(database, queue, moment, [place for place, _ in places if place[2] not in known])
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


def _insert(database: Database, queue: QueueRecord, moment: holders.LeaseMoment, places: Sequence[Row]) -> None:
    """Insert the rows of partitions that the group leases for the first time. Raise PartitionFull."""
    if not places:
        return
    if moment.no_room:
        raise PartitionFull(moment.no_room, FULL_AGAIN_S)
    there = "select count(*) from (select 1 from lease where queue = ? limit ?) as found"
    if database.execute(there, (queue.id, LEASES_MAX))[0][0] + len(places) > LEASES_MAX:
        why = f"the groups of {queue.name} have leased {LEASES_MAX} partitions in all: use fewer groups"
        raise PartitionFull(why, FULL_AGAIN_S)
    # Another server may insert the same rows now; neither fails, and the update that follows decides.
    for place in places:
        values = (*place, 0, "", "", 0, START.ticks, START.id, START.ticks, START.id, 0)
        marks = ", ".join("?" * len(values))
        new = database.execute(f"insert into lease values ({marks}) on conflict do nothing returning 1", values)
        database.growth.add_extra(queue.id, len(new), 0)


def _unknown(partition: int) -> Row:
    """Return the row of a partition that nobody has ever held."""
    return partition, 0, START.ticks, START.id, 0


def _waits(database: Database, place: Row, at: Position, now_ms: int) -> bool:
    """Return whether the partition has a message that is due or new."""
    due = database.execute(
        f"select 1 from tried where {holders.PLACE} and due_ms between 1 and ? limit 1", (*place, now_ms)
    )
    queue, _, partition = place
    return bool(due) or bool(ids_behind(database, queue, partition, at, 1, now_ms))


@dataclass(frozen=True, slots=True)
class LeasedStrand:
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


def strand_of(database: Database, app: str, name: str, token: str, now_ms: int) -> LeasedStrand:
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
    return LeasedStrand(leases, *turn[0]) if turn else LeasedStrand(leases)


def release(database: Database, app: str, queue: str, token: str, moment: holders.LeaseMoment) -> None:
    """Give a lease back. This declares that fetched messages that are not done were not started. Raise LeaseLost or
    NoQueue."""
    strand = strand_of(database, app, queue, token, moment.now_ms)
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
    message does. Raise LeaseLost, NoQueue, PartitionFull."""
    strand = strand_of(database, app, queue, token, moment.now_ms)
    if len(strand.leases) == 1:
        return _fetch(database, strand.leases[0], limit, moment)
    # Each round finds that one partition has nothing to hand out.
    for _ in strand.leases:
        since_ms = [_since_ms(database, held, moment.now_ms) for held in strand.leases]
        following = comes_next(since_ms, moment.now_ms, strand.passed)
        if following is None:
            break
        held = strand.leases[following.which]
        if found := _fetch(database, held, 1, moment):
            replace(strand, handed=held.partition, then_passed=following.passed).keep(database)
            return found
        strand = strand_of(database, app, queue, token, moment.now_ms)  # it was given up, or has expired
    return []


def _since_ms(database: Database, held: holders.HeldLease, now_ms: int) -> int | None:
    """Return when the next message of a partition was posted."""
    due = f"select id from tried where {holders.PLACE} and due_ms between 1 and ? order by due_ms limit 1"
    ids = [id for (id,) in database.execute(due, (*held.place, now_ms))]
    found = ids or ids_behind(database, held.queue.id, held.partition, held.at, 1, now_ms)
    return unix_ms_of(found[0]) if found else None


def _fetch(
    database: Database, held: holders.HeldLease, limit: int, moment: holders.LeaseMoment
) -> list[holders.Handed]:
    """Return the next messages of one partition."""
    # A message without a body is gone, and so is its row.
    for _ in range(GONE_MAX):
        if (due := holders.due_one(database, held, moment)) is None:
            break
        if due.body:
            return [due]
    else:
        return []  # the transaction holds up writes of others
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
