"""Read messages: pages of a partition, single messages, and how much waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.ports.messages import PartitionBacklog
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import COUNT_MAX, READ_MAX_CHARS, StoredMessage
from headgate.queueing.ids import Position, ticks_of, unix_text

FIRST = 16
"""Messages read first, while their size is unknown."""


def read(
    database: Database, queue: int, partition: int, since: Position, limit: int, descending: bool, now_ms: int
) -> list[StoredMessage]:
    """Return messages from `since` on, including it. There may be fewer than `limit` if bodies are large."""
    order, at = "desc" if descending else "asc", since
    found, size_chars, compared = list[Row](), 0, "<=" if descending else ">="
    while len(found) < limit and size_chars < READ_MAX_CHARS:
        # The average size so far tells how many more fit: a thousand bodies of a megabyte each are never loaded at
        # once.
        fitting = (READ_MAX_CHARS - size_chars) * len(found) // size_chars if found else FIRST
        count = max(1, min(fitting, limit - len(found)))
        rows = database.execute(
            "select id, ticks, body, partition from message where queue = ? and partition = ?"
            f" and (ticks, id) {compared} (?, ?) and expires_ms > ? order by ticks {order}, id {order} limit ?",
            (queue, partition, at.ticks, at.id, now_ms, count),
        )
        found += rows
        if len(rows) < count:
            break
        size_chars += sum(len(row[2]) for row in rows)
        # The next piece begins behind the last row: `>=` becomes `>`, and `<=` becomes `<`.
        at, compared = Position(rows[-1][1], rows[-1][0]), compared[0]
    return _stored(found)


def read_ids(database: Database, queue: int, ids: Sequence[tuple[int, str]], now_ms: int) -> list[StoredMessage]:
    sql = (
        "select id, ticks, body, partition from message"
        " where queue = ? and partition = ? and ticks = ? and id = ? and expires_ms > ?"
    )
    return [
        one
        for partition, id in ids
        for one in _stored(database.execute(sql, (queue, partition, ticks_of(id), id, now_ms)))
    ]


def backlog(database: Database, queue: int, partition: int, after: Position, now_ms: int) -> PartitionBacklog:
    here = "from message where queue = ? and partition = ? and expires_ms > ?"
    behind = f"{here} and (ticks, id) > (?, ?)"
    place: Row = (queue, partition, now_ms)
    ahead: Row = (*place, after.ticks, after.id)
    # Each of these follows the primary key and ends early, however long the partition is.
    newest = database.execute(f"select id {here} order by ticks desc, id desc limit 1", place)
    oldest = database.execute(f"select ticks {behind} order by ticks, id limit 1", ahead)
    counted = database.execute(f"select count(*) from (select 1 {behind} limit ?) as found", (*ahead, COUNT_MAX))
    later = "select count(*) from (select 1 from later where queue = ? and partition = ? limit ?) as found"
    delayed = database.execute(later, (queue, partition, COUNT_MAX))[0][0]
    oldest_waiting = unix_text(oldest[0][0]) if oldest else ""
    return PartitionBacklog(counted[0][0], newest[0][0] if newest else "", oldest_waiting, delayed)


def _stored(rows: Iterable[Row]) -> list[StoredMessage]:
    return [StoredMessage(id, unix_text(ticks), body, partition) for id, ticks, body, partition in rows]
