"""Queues in SQL: names and their settings."""

from __future__ import annotations

from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import COUNT_MAX, InvalidPost, NoQueue, QueueRecord

_COLUMNS = (
    "id, name, partitions, kind, consistency, principles, created_ms, coalesce(messages_max, 0),"
    " coalesce(bytes_max, 0), coalesce(\"full\", 'refuse'), coalesce(age_max_s, 0),"
    " coalesce(priorities, 1)"
)
_FROM = (
    "queue left join bounded on bounded.queue = queue.id left join aged on aged.queue = queue.id"
    " left join ranked on ranked.queue = queue.id"
)

_PARTS = (
    "lane", "lease", "tried", "turn", "outcome", "awaited", "schedule", "schedule_priority", "kept", "bounded", "aged",
    "ranked",
)  # fmt: skip
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


def create(database: Database, app: str, wanted: QueueRecord) -> None:
    """Create a queue. Raise InvalidPost."""
    try:
        known = find(database, app, wanted.name)
    except NoQueue:
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
        _update(database, app, known, wanted)
    database.notify(app)


def _update(database: Database, app: str, known: QueueRecord, wanted: QueueRecord) -> None:
    if wanted.partitions < known.partitions:
        raise InvalidPost({"partitions": f"a queue keeps its partitions: it has {known.partitions}"})
    if wanted.priorities != known.priorities:
        raise InvalidPost(
            {"priorities": f"a queue keeps its priorities: it has {known.priorities}; create another queue"}
        )
    database.execute(
        "update queue set partitions = ?, kind = ?, consistency = ?, principles = ? where id = ?",
        (wanted.partitions, wanted.kind, wanted.consistency, wanted.principles, known.id),
    )
    _bound(database, known.id, wanted)
    if wanted.partitions > known.partitions:
        _add_partitions(database, app, known.id, known.name, range(known.partitions + 1, wanted.partitions + 1))


def _bound(database: Database, queue: int, wanted: QueueRecord) -> None:
    # Deleted and written anew, because a queue without limits has no row.
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
        "insert into retired (app, name, last_ticks) select ?, ?, max(last_ticks) from lane where queue = ?"
        " on conflict (app, name) do update set last_ticks = excluded.last_ticks",
        (app, name, queue.id),
    )
    for table in _PARTS:
        database.execute(f"delete from {table} where queue = ?", (queue.id,))
    # Messages and keys of posts may be many: `purge` deletes them in pieces, under a number that no queue has any more.
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
