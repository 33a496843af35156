"""Read messages, write single ones by id, delete them, and remove expired ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.ports.messages import PartitionBacklog
from headgate.queue.messages import later, queues
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import COUNT_MAX, READ_MAX_CHARS, InvalidPost, QueueRecord, StoredMessage, fitting
from headgate.queueing.ids import TICKS_A_SECOND, Position, ticks_of, ticks_of_unix_ns, unix_text

FEW = 4
"""Messages that are read without looking at their sizes first."""
RETIRED_MAX_S = 30 * 86_400
"""Seconds for which the last ids of a removed queue are remembered; after that the clock has passed them."""
AHEAD_MAX_S = 86_400
"""Seconds by which the id of a message that is put may lie in the future: ids of later posts must follow it."""


def read(
    database: Database,
    queue: int,
    partition: int,
    since: Position,
    limit: int,
    descending: bool,
    now_ms: int,
    *,
    exclusive: bool = False,
) -> list[StoredMessage]:
    """Return messages from `since` on, including it unless `exclusive`. There may be fewer than `limit` if bodies are
    large."""
    order, compared = ("desc", "<") if descending else ("asc", ">")
    compared += "" if exclusive else "="
    where = f"queue = ? and partition = ? and (ticks, id) {compared} (?, ?) and expires_ms > ?"
    some = f"from message where {where} order by ticks {order}, id {order} limit ?"
    place = (queue, partition, since.ticks, since.id, now_ms)
    # Sizes are read without the bodies: a thousand bodies of a megabyte each are never loaded together.
    if limit > FEW:
        limit = fitting(size for (size,) in database.execute(f"select octet_length(body) {some}", (*place, limit)))
    return _stored(database.execute(f"select id, ticks, body, partition {some}", (*place, limit))) if limit else []


def ids_behind(database: Database, queue: int, partition: int, at: Position, limit: int, now_ms: int) -> list[str]:
    """Return the ids of the messages that come behind a position, without reading their bodies."""
    sql = (
        "select id from message where queue = ? and partition = ? and (ticks, id) > (?, ?) and expires_ms > ?"
        " order by ticks, id limit ?"
    )
    return [id for (id,) in database.execute(sql, (queue, partition, at.ticks, at.id, now_ms, limit))]


def read_ids(database: Database, queue: int, ids: Sequence[tuple[int, str]], now_ms: int) -> list[StoredMessage]:
    """Return the messages that exist, each once. Raise InvalidPost if several have too many characters together."""
    sql = (
        "select id, ticks, body, partition from message"
        " where queue = ? and partition = ? and ticks = ? and id = ? and expires_ms > ?"
    )
    found, chars = list[StoredMessage](), 0
    # An id that is named a thousand times is read once.
    for partition, id in dict.fromkeys(ids):
        some = _stored(database.execute(sql, (queue, partition, ticks_of(id), id, now_ms)))
        found, chars = found + some, chars + sum(len(one.body) for one in some)
        if chars > READ_MAX_CHARS and len(found) > 1:
            why = f"these messages have more than {READ_MAX_CHARS} characters together; request fewer at a time"
            raise InvalidPost({"message_ids": why})
    return found


def sizes(database: Database, queue: int, ids: Sequence[tuple[int, str]]) -> list[int]:
    """Return the bytes of the body of each message that exists."""
    sql = "select octet_length(body) from message where queue = ? and partition = ? and ticks = ? and id = ?"
    found = (database.execute(sql, (queue, partition, ticks_of(id), id)) for partition, id in ids)
    return [rows[0][0] for rows in found if rows]


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


@dataclass(frozen=True, slots=True)
class MessagePut:
    app: str
    queue: str
    ids: tuple[tuple[int, str], ...]
    """Partition and id of each message."""
    body: str
    ttl_s: int
    now_ns: int


def put_ids(database: Database, put: MessagePut) -> None:
    """Write messages by id. Raise NoQueue or InvalidPost."""
    queue = queues.find(database, put.app, put.queue)
    _check_partitions(queue, put.ids)
    newest = ticks_of_unix_ns(put.now_ns) + AHEAD_MAX_S * TICKS_A_SECOND
    if any(ticks_of(id) > newest for _, id in put.ids):
        raise InvalidPost({"message_id": f"the time of an id may be at most {AHEAD_MAX_S} s in the future"})
    if queue.age_max_s and any(ticks_of(id) < _oldest(queue.age_max_s, put.now_ns) for _, id in put.ids):
        raise InvalidPost({"message_id": f"the queue keeps messages for {queue.age_max_s} s, and this one is older"})
    expires_ms = put.now_ns // 1_000_000 + queue.lifetime_s(put.ttl_s) * 1000
    size = len(put.body.encode())
    for partition, id in put.ids:
        place = (queue.id, partition, ticks_of(id), id)
        # The size that the new body replaces, so that counted usage stays exact.
        before = "select octet_length(body) from message where queue = ? and partition = ? and ticks = ? and id = ?"
        known = database.execute(before, place)
        database.growth.add((queue.id, partition), 0 if known else 1, size - (known[0][0] if known else 0))
        database.execute(
            "insert into message (queue, partition, ticks, id, body, expires_ms) values (?, ?, ?, ?, ?, ?)"
            " on conflict (queue, partition, ticks, id)"
            " do update set body = excluded.body, expires_ms = excluded.expires_ms",
            (*place, put.body, expires_ms),
        )
        database.execute(
            # Later posts get ids behind this one, even if its time lies ahead of the clock: readers that follow the
            # order must not miss them.
            "update lane set last_ticks = ? where queue = ? and partition = ? and last_ticks < ?",
            (ticks_of(id), queue.id, partition, ticks_of(id)),
        )
        database.notify(f"{put.app}\n{put.queue}\n{partition}")


def delete_ids(database: Database, app: str, name: str, ids: Sequence[tuple[int, str]], now_ns: int) -> None:
    """Delete messages, including those that are not due yet. Unknown ids are ignored. Raise NoQueue."""
    queue = queues.find(database, app, name)
    for partition, id in ids:
        gone = database.execute(
            "delete from message where queue = ? and partition = ? and ticks = ? and id = ?"
            " returning octet_length(body)",
            (queue.id, partition, ticks_of(id), id),
        )
        for (size,) in gone:
            database.growth.add((queue.id, partition), -1, -size)
    later.withdraw(database, queue.id, ids, now_ns)


_OF_REMOVED_QUEUES = (
    ("message", "queue, partition, ticks, id"),
    ("later", "queue, partition, ticks"),
    ("posted", "queue, key"),
    ("tried", "queue, crew, partition, id"),
    ("lease", "queue, crew, partition"),
    ("turn", "queue, crew, partition"),
    ("outcome", "queue, crew, partition"),
)
"""Tables from which `purge` removes what is left of removed queues, and their keys."""


def purge(database: Database, now_ms: int, most: int) -> int:
    """Remove at most `most` rows: messages that have expired, old answers to posts, and what is left of removed queues.
    Return the number removed."""
    key = "queue, partition, ticks, id"
    # PostgreSQL knows no limit of a `delete` itself.
    expired = f"select {key} from message where expires_ms <= ? limit ?"
    sql = f"delete from message where ({key}) in ({expired}) returning queue, partition, octet_length(body)"
    gone = database.execute(sql, (now_ms, most))
    for queue, partition, size in gone:
        database.growth.add((queue, partition), -1, -size)
    removed = len(gone)
    old = "select queue, key from posted where expires_ms <= ? limit ?"
    sql = f"delete from posted where (queue, key) in ({old}) returning queue, octet_length(key) + octet_length(answer)"
    answers = database.execute(sql, (now_ms, most - removed))
    for queue, size in answers:
        database.growth.add_extra(queue, -1, -size)
    removed += len(answers)
    past = "select app, name from retired where last_ticks < ? limit ?"
    long_ago = ticks_of_unix_ns(now_ms * 1_000_000) - RETIRED_MAX_S * TICKS_A_SECOND
    sql = f"delete from retired where (app, name) in ({past}) returning 1"
    removed += _removed(database, sql, (long_ago, most - removed))
    # The counts of a removed queue were deleted with it, so these deletions are not counted.
    for (queue,) in database.execute("select queue from doomed limit ?", (most - removed,)):
        for table, key in _OF_REMOVED_QUEUES:
            left = f"select {key} from {table} where queue = ? limit ?"
            sql = f"delete from {table} where ({key}) in ({left}) returning 1"
            removed += _removed(database, sql, (queue, most - removed))
        if removed >= most:
            break
        # Below the limit, none of the tables has anything of this queue.
        for table in ("doomed", "remains"):
            database.execute(f"delete from {table} where queue = ?", (queue,))
    return removed


def overdue(database: Database, now_ms: int, most: int) -> list[tuple[int, int, int]]:
    """Return partitions with messages older than their queues now keep them: queue, partition, and the tick before
    which messages are too old."""
    oldest = "? - aged.age_max_s * ?"
    rows = database.execute(
        f"select lane.queue, lane.partition, {oldest} from aged join lane on lane.queue = aged.queue"
        " where exists (select 1 from message where message.queue = lane.queue"
        f" and message.partition = lane.partition and message.ticks < {oldest}) limit ?",
        (*(_oldest(0, now_ms * 1_000_000), TICKS_A_SECOND) * 2, most),
    )
    return [(queue, partition, ticks) for queue, partition, ticks in rows]


def purge_overdue(database: Database, place: tuple[int, int, int], most: int) -> int:
    """Remove at most `most` messages at one of the places that `overdue` found; return how many."""
    old = "select ticks, id from message where queue = ? and partition = ? and ticks < ? order by ticks, id limit ?"
    gone = database.execute(
        f"delete from message where queue = ? and partition = ? and (ticks, id) in ({old})"
        " returning octet_length(body)",
        (*place[:2], *place, most),
    )
    for (size,) in gone:
        database.growth.add(place[:2], -1, -size)
    return len(gone)


def _oldest(age_s: int, now_ns: int) -> int:
    """Return the tick of `age_s` ago."""
    return ticks_of_unix_ns(now_ns) - age_s * TICKS_A_SECOND


def _removed(database: Database, sql: str, values: tuple[object, ...]) -> int:
    return len(database.execute(sql, values))


def _check_partitions(queue: QueueRecord, ids: Sequence[tuple[int, str]]) -> None:
    if any(not 1 <= partition <= queue.partitions for partition, _ in ids):
        raise InvalidPost({"partition": f"the queue has partitions 1 to {queue.partitions}"})
