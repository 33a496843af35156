"""Keep messages that are not due yet aside, and deliver them when their time comes.

A message gets its place in its partition when it is delivered, as if it were posted at that moment: so readers of a
partition that follow its order miss nothing and need not look back. Messages that are due at the same time keep the
order in which they were posted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from headgate.queue.messages import queues
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import MessageDraft, NoQueue, QueueRecord, fitting
from headgate.queueing.ids import ticks_of, ticks_of_unix_ns, unix_text
from headgate.queueing.partitions import QueuePartition

PARTITIONS_AT_ONCE = 50
"""Partitions handled in one transaction: applications take turns, and those of an application that have waited longest
come first."""
EACH_MAX = 100
"""Messages of one partition delivered in one transaction."""
TOGETHER_MAX_CHARS = 16_000_000
"""Characters of bodies that one transaction delivers, shared by the applications; at least one message of each."""
ORDER = "due_ms, ticks"
_PLACE = "queue = ? and partition = ?"


class Delayed(msgspec.Struct, frozen=True):
    """Show a message that is not due yet."""

    message_id: str
    """Id of the message until it is delivered; the delivered message has another."""
    timestamp: str
    """Time at which it was posted."""
    deliver_at: str
    body: str
    partition: int
    hold: bool
    """Whether messages posted after it wait for it."""


def seconds(ms: int) -> str:
    """Format a time as seconds since the Unix epoch."""
    return f"{ms // 1000}.{ms % 1000:03d}"


@dataclass(slots=True)
class HeldBack:
    """Keep aside the messages of one transaction that are not due yet."""

    now_ms: int
    held: dict[tuple[int, int], int]
    """Partition -> time until which a message holds it up, in milliseconds since 1970."""
    rows: list[Row] = field(default_factory=list)
    look: dict[tuple[int, int], int] = field(default_factory=dict)
    """Partition -> time at which the first of `rows` is due, in milliseconds since 1970."""

    def take(self, queue_partition: tuple[int, int], ticks: int, id: str, draft: MessageDraft) -> int:
        """Keep the message aside and return when it is due, or return 0 if it is due now."""
        due_ms, held_ms = draft.due_ms(self.now_ms), self.held.get(queue_partition, 0)
        # A message that would be due before the held one waits behind it, and then holds up those posted after it, too:
        # otherwise they would overtake it.
        behind = bool(held_ms) and due_ms <= max(held_ms, self.now_ms)
        if due_ms <= self.now_ms and not behind:
            return 0
        due_ms = max(due_ms, held_ms)
        if draft.hold or behind:
            self.held[queue_partition] = due_ms
        self.rows.append((*queue_partition, ticks, due_ms, id, draft.body, draft.ttl_s, int(draft.hold or behind)))
        self.look[queue_partition] = min(due_ms, self.look.get(queue_partition, due_ms))
        return due_ms

    def write(self, database: Database) -> None:
        """Store the messages that were kept aside."""
        if not self.rows:
            return
        database.insert("later", "queue, partition, ticks, due_ms, id, body, ttl_s, held", self.rows)
        for queue_partition, look_ms in sorted(self.look.items()):
            database.execute(
                "insert into awaited (queue, partition, look_ms, held_ms) values (?, ?, ?, ?)"
                " on conflict (queue, partition) do update set held_ms = excluded.held_ms, look_ms ="
                # SQLite and PostgreSQL have different names for the lesser of two values.
                " case when awaited.look_ms < excluded.look_ms then awaited.look_ms else excluded.look_ms end",
                (*queue_partition, look_ms, self.held.get(queue_partition, 0)),
            )


def waiting(database: Database, partitions: Iterable[tuple[int, int]], now_ms: int) -> HeldBack:
    """Return the state of these partitions, whose rows the transaction has locked."""
    held: dict[tuple[int, int], int] = {}
    # Most servers have no delayed messages: one query instead of one for each partition of every post.
    if database.execute("select 1 from awaited limit 1"):
        for queue_partition in partitions:
            for (held_ms,) in database.execute(f"select held_ms from awaited where {_PLACE}", queue_partition):
                held[queue_partition] = held_ms
    return HeldBack(now_ms, held)


def next_ms(database: Database) -> int | None:
    """Return when the next message is due, or None."""
    found: int | None = database.execute("select min(look_ms) from awaited")[0][0]
    return found


def deliver(database: Database, now_ns: int, node: int) -> list[tuple[str, QueuePartition]]:
    """Deliver due messages, a bounded number of them; return applications and partitions. Run it in a transaction of
    its own: it locks partitions in their order, as posting does."""
    now_ms = now_ns // 1_000_000
    # The first partitions of each application, then the second ones, and so on.
    turns = (
        "select awaited.queue, awaited.partition, app, look_ms, row_number() over"
        " (partition by app order by look_ms, awaited.queue, awaited.partition) as turn"
        " from awaited left join queue on queue.id = awaited.queue where look_ms <= ?"
    )
    due = database.execute(
        f"select queue, partition, app from ({turns}) as found order by turn, look_ms, queue, partition limit ?",
        (now_ms, PARTITIONS_AT_ONCE),
    )
    delivered, apps = list[tuple[str, QueuePartition]](), {app for _, _, app in due}
    left_chars = {app: TOGETHER_MAX_CHARS // len(apps) for app in apps}
    # The order of locks is that of posts, so a delivery and a post never wait for each other in a circle.
    for queue, partition, app in sorted(due):
        known = queues.named(database, queue)
        if known is None:
            database.execute(f"delete from awaited where {_PLACE}", (queue, partition))
        elif left_chars[app] > 0:
            of = known[1]
            try:
                left_chars[app] -= _deliver_partition(database, of, partition, now_ns, node, left_chars[app])
            except NoQueue:  # another server has removed it just now
                continue
            database.notify(f"{app}\n{of.name}\n{partition}")
            delivered.append((app, QueuePartition(of.name, partition)))
    return delivered


def _deliver_partition(
    database: Database, of: QueueRecord, partition: int, now_ns: int, node: int, most_chars: int
) -> int:
    """Deliver the due messages of a partition and return their number of characters."""
    queue_partition = of.id, partition
    now_ticks, now_ms = ticks_of_unix_ns(now_ns), now_ns // 1_000_000
    # until the transaction ends, nobody else delivers or posts to this partition
    queues.reserve(database, queue_partition, 0, now_ticks)
    # Bodies stay in the database: the statement below copies them, and only their lengths are needed here.
    sql = f"select ticks, ttl_s, length(body) from later where {_PLACE} and due_ms <= ? order by {ORDER} limit ?"
    found, chars = list[Row](), 0
    for row in database.execute(sql, (*queue_partition, now_ms, EACH_MAX)):
        if chars < most_chars:
            found.append(row)
            chars += row[2]
    first = queues.reserve(database, queue_partition, len(found), now_ticks)
    for n, (ticks, ttl_s, _) in enumerate(found):
        database.execute(
            # Not counted again: its size was added to the partition when it was posted.
            "insert into message (queue, partition, ticks, id, body, expires_ms)"
            f" select queue, partition, ?, ?, body, ? from later where {_PLACE} and ticks = ?",
            (
                first + n,
                of.id_of(partition, first + n, node),
                now_ms + of.lifetime_s(ttl_s) * 1000,
                *queue_partition,
                ticks,
            ),
        )
        database.execute(f"delete from later where {_PLACE} and ticks = ?", (*queue_partition, ticks))
    _look_again(database, queue_partition, now_ms)
    return chars


def _look_again(database: Database, queue_partition: tuple[int, int], now_ms: int) -> None:
    """Queue a partition with more due messages behind those that already wait."""
    left = database.execute(f"select due_ms from later where {_PLACE} order by {ORDER} limit 1", queue_partition)
    if not left:
        database.execute(f"delete from awaited where {_PLACE}", queue_partition)
        return
    (due_ms,) = left[0]
    # Once the first message left is due after `held_ms`, no message holds the partition up any more.
    sql = f"update awaited set look_ms = ?, held_ms = case when held_ms < ? then 0 else held_ms end where {_PLACE}"
    database.execute(sql, (max(due_ms, now_ms), due_ms, *queue_partition))


def delayed(database: Database, queue: int, partition: int, limit: int) -> list[Delayed]:
    """Return the first messages of one partition, in the order in which they are delivered. There may be fewer than
    `limit` if bodies are large."""
    some = f"from later where {_PLACE} order by {ORDER} limit ?"
    limit = fitting(
        size for (size,) in database.execute(f"select octet_length(body) {some}", (queue, partition, limit))
    )
    sql = f"select id, ticks, due_ms, body, held {some}"
    return [
        Delayed(id, unix_text(ticks), seconds(due_ms), body, partition, bool(held))
        for id, ticks, due_ms, body, held in database.execute(sql, (queue, partition, limit))
    ]


def withdraw(database: Database, queue: int, ids: Iterable[tuple[int, str]], now_ns: int) -> int:
    """Withdraw messages by (partition, id) and return how many there were. Messages that a withdrawn one delayed
    stay delayed."""
    partitions, count = set[tuple[int, int]](), 0
    for partition, id in ids:
        sql = f"delete from later where {_PLACE} and ticks = ? and id = ? returning octet_length(body)"
        for (size,) in database.execute(sql, (queue, partition, ticks_of(id), id)):
            database.growth.add((queue, partition), -1, -size)
            partitions.add((queue, partition))
            count += 1
    for queue_partition in sorted(partitions):
        queues.reserve(database, queue_partition, 0, ticks_of_unix_ns(now_ns))
        held = database.execute(
            f"select coalesce(max(due_ms), 0) from later where {_PLACE} and held = 1", queue_partition
        )
        database.execute(f"update awaited set held_ms = ? where {_PLACE}", (held[0][0], *queue_partition))
        _look_again(database, queue_partition, now_ns // 1_000_000)
    return count
