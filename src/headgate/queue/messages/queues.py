"""Keep queues in SQL: names, settings, and the state of their partitions."""

from __future__ import annotations

import msgspec

from headgate.queue.messages.bounds import FULL_AGAIN_S, UNLIMITED, ApplicationLimits
from headgate.queue.messages.database import ROW_BYTES, Database, Row
from headgate.queue.messages.records import COUNT_MAX, InvalidPost, NoQueue, PartitionFull, QueueRecord
from headgate.queueing.partitions import priority_of

WAITING_MAX = 1_000
"""Number up to which messages behind a group are counted; above it, answers say "at least"."""
RETIRED_MAX = 1_000
"""Limit on the removed queues of an application whose last ids are remembered; the oldest are forgotten."""
GROUPS_MAX = 400
"""Limit on the rows of groups in one report, over all partitions."""
_COLUMNS = (
    "id, name, partitions, kind, consistency, principles, created_ms, coalesce(messages_max, 0),"
    " coalesce(bytes_max, 0), coalesce(\"full\", 'refuse'), coalesce(age_max_s, 0),"
    " coalesce(priorities, 1)"
)
_FROM = (
    "queue left join bounded on bounded.queue = queue.id left join aged on aged.queue = queue.id"
    " left join ranked on ranked.queue = queue.id"
)

_PARTS = ("lane", "awaited", "schedule", "schedule_priority", "kept", "extra", "bounded", "aged", "ranked")
"""Tables whose rows of a queue are deleted when the queue is removed."""


def find(database: Database, app: str, name: str) -> QueueRecord:
    """Return the queue of this name. Raise NoQueue."""
    # PostgreSQL refuses a NUL, and with it the whole transaction, which has writes of others in it.
    if "\x00" in name:
        raise NoQueue(name)
    rows = database.execute(f"select {_COLUMNS} from {_FROM} where app = ? and name = ?", (app, name))
    if not rows:
        raise NoQueue(name)
    return QueueRecord(*rows[0])


def named(database: Database, id: int) -> tuple[str, QueueRecord] | None:
    """Return the application and the record of the queue with this number, if it still exists."""
    rows = database.execute(f"select app, {_COLUMNS} from {_FROM} where id = ?", (id,))
    return (rows[0][0], QueueRecord(*rows[0][1:])) if rows else None


def every(database: Database, app: str, limit: int | None, offset: str) -> list[QueueRecord]:
    sql = f"select {_COLUMNS} from {_FROM} where app = ? and name >= ? order by name"
    values: Row = (app, offset)
    if limit is not None:
        sql, values = f"{sql} limit ?", (*values, limit)
    return [QueueRecord(*row) for row in database.execute(sql, values)]


def count(database: Database, queue: QueueRecord, now_ms: int) -> int:
    """Count the messages of a queue, up to COUNT_MAX."""
    sql = "select count(*) from (select 1 from message where queue = ? and expires_ms > ? limit ?) as found"
    return int(database.execute(sql, (queue.id, now_ms, COUNT_MAX))[0][0])


def create(database: Database, app: str, wanted: QueueRecord, limits: ApplicationLimits = UNLIMITED) -> None:
    """Create a queue, or change the one of this name. Raise InvalidPost, or PartitionFull if the application would have
    too many queues or partitions."""
    try:
        known = find(database, app, wanted.name)
    except NoQueue:
        _check_count(database, app, 1, wanted.partitions, limits)
        values = (
            app,
            wanted.name,
            wanted.partitions,
            wanted.kind,
            wanted.consistency,
            wanted.principles,
            wanted.created_ms,
        )
        rows = database.execute(
            "insert into queue (app, name, partitions, kind, consistency, principles, created_ms)"
            " values (?, ?, ?, ?, ?, ?, ?) returning id",
            values,
        )
        _add_partitions(database, app, rows[0][0], wanted.name, range(1, wanted.partitions + 1))
        _bound(database, rows[0][0], wanted)
        if wanted.priorities > 1:
            database.execute("insert into ranked (queue, priorities) values (?, ?)", (rows[0][0], wanted.priorities))
    else:
        _update(database, app, known, wanted, limits)
    database.notify(app)


def _check_count(database: Database, app: str, queues: int, partitions: int, limits: ApplicationLimits) -> None:
    """Check that the application may have so many more. Raise PartitionFull."""
    if not limits.queues_max and not limits.partitions_max:
        return
    sql = "select count(*), coalesce(sum(partitions), 0) from queue where app = ?"
    (there,) = database.execute(sql, (app,))
    every = (
        (there[0] + queues, limits.queues_max, "queues"),
        (int(there[1]) + partitions, limits.partitions_max, "partitions"),
    )
    for count, most, what in every:
        if most and count > most:
            raise PartitionFull(f"application {app} may have {most} {what}, not {count}: remove a queue", FULL_AGAIN_S)


def _update(database: Database, app: str, known: QueueRecord, wanted: QueueRecord, limits: ApplicationLimits) -> None:
    if wanted.partitions < known.partitions:
        raise InvalidPost({"partitions": f"a queue cannot lose partitions: it has {known.partitions}"})
    if wanted.priorities != known.priorities:
        raise InvalidPost(
            {"priorities": f"a queue cannot change its priorities: it has {known.priorities}; create another queue"}
        )
    if wanted.partitions > known.partitions:
        _check_count(database, app, 0, wanted.partitions - known.partitions, limits)
    database.execute(
        "update queue set partitions = ?, kind = ?, consistency = ?, principles = ? where id = ?",
        (wanted.partitions, wanted.kind, wanted.consistency, wanted.principles, known.id),
    )
    _bound(database, known.id, wanted)
    if wanted.partitions > known.partitions:
        _add_partitions(database, app, known.id, known.name, range(known.partitions + 1, wanted.partitions + 1))


def _bound(database: Database, queue: int, wanted: QueueRecord) -> None:
    # Deleted and written again, because a queue without limits has no row.
    database.execute("delete from bounded where queue = ?", (queue,))
    if wanted.messages_max or wanted.bytes_max:
        values = (queue, wanted.messages_max, wanted.bytes_max, wanted.full)
        database.execute('insert into bounded (queue, messages_max, bytes_max, "full") values (?, ?, ?, ?)', values)
    database.execute("delete from aged where queue = ?", (queue,))
    if wanted.age_max_s:
        database.execute("insert into aged (queue, age_max_s) values (?, ?)", (queue, wanted.age_max_s))


def _add_partitions(database: Database, app: str, queue: int, name: str, partitions: range) -> None:
    """Add partitions whose ids follow those of an earlier queue of this name, so that workers continue where they
    were."""
    before = database.execute("select last_ticks from retired where app = ? and name = ?", (app, name))
    last = before[0][0] if before else 0
    database.insert("lane", "queue, partition, last_ticks", [(queue, number, last) for number in partitions])


def remove(database: Database, app: str, name: str) -> None:
    """Remove a queue. Raise NoQueue."""
    queue = find(database, app, name)
    database.execute("delete from queue where id = ?", (queue.id,))
    database.execute(
        # This must precede the deletions below, which include the rows that it reads.
        "insert into retired (app, name, last_ticks) select ?, ?, max(last_ticks) from lane where queue = ?"
        " on conflict (app, name) do update set last_ticks = excluded.last_ticks",
        (app, name, queue.id),
    )
    oldest = "select app, name from retired where app = ? order by last_ticks desc, name limit ? offset ?"
    database.execute(f"delete from retired where (app, name) in ({oldest})", (app, RETIRED_MAX, RETIRED_MAX))
    # It counts until it is deleted.
    size = f"select sum(bytes + messages * {ROW_BYTES}) as bytes from kept where queue = ?"
    size = f"select coalesce(sum(bytes), 0) from ({size} union all select bytes from extra where queue = ?) as found"
    database.execute(f"insert into remains (queue, app, bytes) select ?, ?, ({size})", (queue.id, app, *[queue.id] * 2))
    for table in _PARTS:
        database.execute(f"delete from {table} where queue = ?", (queue.id,))
    # Messages, keys of posts and the state of groups may be many: `purge` deletes them in pieces, under a number that
    # no queue has any more.
    database.execute("insert into doomed (queue) values (?)", (queue.id,))
    database.notify(app)


def reserve(database: Database, queue_partition: tuple[int, int], count: int, now_ticks: int) -> int:
    """Reserve `count` ticks that are later than all earlier ones of the partition, and return the first. The row
    stays locked until the transaction ends, so that messages become visible in the order of their ids. Raise NoQueue
    if another server has removed the queue since it was found."""
    rows = database.execute(
        # If the clock went back, ids continue from the last one: readers that follow the order never look behind it.
        "update lane set last_ticks = case when last_ticks >= ? then last_ticks + ? else ? end"
        " where queue = ? and partition = ? returning last_ticks",
        (now_ticks, count, now_ticks + count - 1, *queue_partition),
    )
    if not rows:
        raise NoQueue(str(queue_partition[0]))
    return int(rows[0][0]) - count + 1


class GroupShape(msgspec.Struct, frozen=True):
    """Describe a group of workers that lease a partition."""

    group: str
    worker: str
    """Worker that holds the partition, or the last one that did."""
    held: bool
    processed: str
    """Id of the newest message that is done; empty: none is."""
    waiting: int
    """Messages behind `processed`, counted to WAITING_MAX."""
    retrying: int
    """Messages that failed and wait for another attempt, counted to WAITING_MAX."""


class PartitionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe one partition."""

    partition: int
    messages: int
    """Messages kept, processed or not, including those that are not due yet."""
    bytes: int
    delayed: int
    """Messages that are not due yet, counted to WAITING_MAX."""
    groups: list[GroupShape]
    priority: int = 0
    """Priority of the partition's messages, 1 is the highest; 0: the queue has no priorities."""


def partition_statuses(database: Database, queue: QueueRecord, now_ms: int, group: str = "") -> list[PartitionRow]:
    """Describe every partition by number, with this group or with all groups."""
    stored = {
        partition: (messages, size)
        for partition, messages, size in database.execute(
            "select partition, messages, bytes from kept where queue = ?", (queue.id,)
        )
    }
    groups: dict[int, list[GroupShape]] = {}
    leases = "select crew, partition, worker, expires_ms, ticks, id from lease where queue = ? and ? in ('', crew)"
    # Each row costs two counts, so the number of rows is limited as well as each count.
    for name, partition, worker, expires_ms, ticks, id in database.execute(
        f"{leases} order by partition, crew limit ?", (queue.id, group, GROUPS_MAX)
    ):
        behind = "select 1 from message where queue = ? and partition = ? and (ticks, id) > (?, ?) and expires_ms > ?"
        waiting = _count(database, behind, queue.id, partition, ticks, id, now_ms)
        failed = "select 1 from tried where queue = ? and crew = ? and partition = ? and due_ms > 0"
        retrying = _count(database, failed, queue.id, name, partition)
        shape = GroupShape(name, worker, expires_ms > now_ms, id, waiting, retrying)
        groups.setdefault(partition, []).append(shape)
    found = []
    for partition in range(1, queue.partitions + 1):
        later = "select 1 from later where queue = ? and partition = ?"
        delayed = _count(database, later, queue.id, partition)
        messages, size = stored.get(partition, (0, 0))
        priority = priority_of(partition, queue.priorities) if queue.priorities > 1 else 0
        found.append(PartitionRow(partition, messages, size, delayed, groups.get(partition, []), priority))
    return found


def totals(database: Database, app: str) -> dict[int, tuple[int, int]]:
    """Map each queue to the messages and bytes that it keeps."""
    sql = (
        "select queue, sum(messages), sum(bytes) from kept where queue in (select id from queue where app = ?)"
        " group by queue"
    )
    return {queue: (int(messages), int(size)) for queue, messages, size in database.execute(sql, (app,))}


def _count(database: Database, sql: str, *values: object) -> int:
    counted = database.execute(f"select count(*) from ({sql} limit ?) as found", (*values, WAITING_MAX))
    return int(counted[0][0])
