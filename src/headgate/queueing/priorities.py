"""Priorities within a queue: the priority of each partition, and the partition that comes next.

A queue with N priorities has its partitions in strands: N consecutive partitions, one of each priority, the highest
first. A strand is processed as a whole, by one worker and one message at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headgate.queueing.partitions import QueuePartition

PRIORITIES_MAX = 10
USUAL_COUNT = 3
"""Number of priorities of a queue that is created by a post with a priority."""
PATIENCE_S = 60.0
"""Age in seconds beyond which a message that waits behind higher priorities is late."""
SHARE = 5
"""While there are late messages, one message in this many of a strand is a late one."""
PRIORITY = re.compile(r"high|normal|low|[1-9][0-9]?")


def head_of(partition: QueuePartition, priorities: int) -> QueuePartition:
    """Return the first partition of the strand that this partition is in; the strand is named by it."""
    return QueuePartition(partition.queue, partition.number - (partition.number - 1) % priorities)


def strand_of(partition: QueuePartition, priorities: int) -> tuple[QueuePartition, ...]:
    """Return the partitions of the strand that this partition is in, the highest priority first."""
    first = head_of(partition, priorities).number
    return tuple(QueuePartition(partition.queue, number) for number in range(first, first + priorities))


def priority_of(partition: int, priorities: int) -> int:
    """Return the priority of a partition; 1 is the highest."""
    return (partition - 1) % priorities + 1


def partition_of(strand: int, priority: int, priorities: int) -> int:
    """Return the partition of this priority in this strand; both are counted from 1."""
    return (strand - 1) * priorities + priority


def usual(priorities: int) -> int:
    """Return the priority of a message posted without one: the middle, or the lower of two in the middle."""
    return priorities // 2 + 1


def priority_named(name: str, priorities: int) -> int:
    """Return the number of a priority: `high`, `normal`, `low`, or a number itself; empty means the usual one.
    Raise ValueError when the queue does not have it."""
    named = {"": usual(priorities), "normal": usual(priorities), "high": 1, "low": priorities}
    if not PRIORITY.fullmatch(name) and name:
        raise ValueError(f"high, normal, low or a number is wanted, not {name[:40]!r}")
    if priorities == 1 and name not in ("", "normal", "1"):
        raise ValueError("the queue has no priorities: they are chosen when a queue is created, as with priorities=3")
    found = named[name] if name in named else int(name)
    if found > priorities:
        raise ValueError(f"the queue has priorities 1 (high) to {priorities} (low), not {found}")
    return found


def shape_for(priority: str, partition: int | None = None) -> tuple[int, int]:
    """Return how many partitions and priorities a queue gets when a post with this priority and partition creates
    it."""
    if not priority:
        return partition or 1, 1
    priorities = max(USUAL_COUNT, int(priority) if priority.isdecimal() else 0)
    return priorities, priorities


class Next(NamedTuple):
    """Decide which partition of a strand comes next."""

    which: int
    passed: int
    """Messages in a row that were not chosen for being late, counting this one; 0 when this one is. At most SHARE."""


def comes_next(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float = PATIENCE_S) -> Next | None:
    """Choose among the partitions of a strand. `since_ms` says when the next message of each was posted (None: it has
    none); `passed` is the value that the previous choice returned.

    The highest priority comes first; but while messages of lower ones are late, one message in SHARE is the oldest
    late one.
    """
    waiting = [index for index, since in enumerate(since_ms) if since is not None]
    if not waiting:
        return None
    first = waiting[0]
    late = [
        (since, index)
        for index in waiting[1:]
        if (since := since_ms[index]) is not None and now_ms - since > patience_s * 1000
    ]
    # `passed` never grows beyond SHARE, so a late message is due at once after a long time without any.
    return Next(min(late)[1], 0) if late and passed + 1 >= SHARE else Next(first, min(passed + 1, SHARE))
