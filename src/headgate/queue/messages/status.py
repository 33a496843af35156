"""Report the state of the partitions of a queue: what they keep, and how far each group of workers over HTTP is."""

from __future__ import annotations

import msgspec

from headgate.queue.messages.database import Database
from headgate.queue.messages.records import QueueRecord
from headgate.queueing.partitions import priority_of

WAITING_MAX = 1_000
"""Number up to which messages behind a group are counted; above it, answers say "at least"."""
GROUPS_MAX = 400
"""Limit on the rows of groups in one report, over all partitions."""


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
