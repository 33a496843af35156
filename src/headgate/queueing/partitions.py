"""Define the partitions of queues, their priorities, and their assignment to workers.

A queue with N priorities has its partitions in strands: N consecutive partitions, one of each priority, the highest
first. A strand is processed as a whole, by one worker and one message at a time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

L = TypeVar("L", bound="tuple[object, ...] | str")
"""Type of partitions: anything that can be sorted and looked up."""

PARTITIONS_MAX = 200
TTL_MAX_S = 1 << 25
"""Longest time to keep a message, in seconds: 388 days."""
DEAD_LETTERS = "headgate_dead_letters"
"""Queue of the messages that workers of the application gave up."""
RESERVED = (DEAD_LETTERS, "qdo_error", "qdo_status")
"""Prefixes of the names of queues that no job may process."""
QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,50}")
PRIORITIES_MAX = 10
PRIORITIES_USUAL = 3
"""Number of priorities of a queue that is created by a post with a priority."""
PRIORITY = re.compile(r"high|normal|low|[1-9][0-9]?")
PATIENCE_S = 60.0
"""Age in seconds beyond which a message that waits behind higher priorities is late."""
LATE_EVERY = 5
"""While a strand has late messages, one of this many messages is taken from them."""


class QueuePartition(NamedTuple):
    """Name one partition of one queue.  Partitions are numbered from 1."""

    queue: str
    number: int = 1

    def __str__(self) -> str:
        """Return only the queue's name for its first partition."""
        return self.queue if self.number == 1 else f"{self.queue}:{self.number}"


def partition_of_key(key: str, partitions: int) -> int:
    """Return the number of the partition of a key: the first 8 bytes of the SHA-256 of the key in UTF-8, as a
    number, modulo the number of partitions, plus 1. This computation must never change."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % partitions + 1


def parse_partition(text: str) -> QueuePartition:
    """Parse `<queue>`, `<queue>:<n>` or, as in old configuration files, `<queue>-<n>` with a queue of 32 hex digits.
    Raise ValueError."""
    # Split at the last colon, although names have none: an error then quotes everything before it unchanged.
    queue, colon, number = text.rpartition(":")
    if not colon:
        old = re.fullmatch(r"([0-9a-f]{32})-([0-9]{1,3})", text)
        queue, number = (old[1], old[2]) if old else (text, "1")
    if not QUEUE_NAME.fullmatch(queue) or not number.isdecimal() or not 1 <= int(number) <= PARTITIONS_MAX:
        raise ValueError(
            f"{text!r} is not a partition of a queue: write QUEUE or QUEUE:N, with N from 1 to {PARTITIONS_MAX}"
        )
    return QueuePartition(queue, int(number))


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


def usual_priority(priorities: int) -> int:
    """Return the priority of a message posted without one: the middle, or the lower of two in the middle."""
    return priorities // 2 + 1


def priority_named(name: str, priorities: int) -> int:
    """Return the number of a priority: `high`, `normal`, `low`, or a number itself; empty means the usual one.
    Raise ValueError when the queue does not have it."""
    named = {"": usual_priority(priorities), "normal": usual_priority(priorities), "high": 1, "low": priorities}
    if not PRIORITY.fullmatch(name) and name:
        raise ValueError(f"a priority is high, normal, low or a number, not {name[:40]!r}")
    if priorities == 1 and name not in ("", "normal", "1"):
        raise ValueError("the queue has no priorities: they are chosen when a queue is created, as with priorities=3")
    found = named[name] if name in named else int(name)
    if found > priorities:
        raise ValueError(f"the queue has priorities 1 (high) to {priorities} (low), not {found}")
    return found


def shape_for(priority: str, partition: int | None = None) -> tuple[int, int]:
    """Return the numbers of partitions and priorities of a queue that a post with this priority and partition
    creates."""
    if not priority:
        return partition or 1, 1
    priorities = max(PRIORITIES_USUAL, int(priority) if priority.isdecimal() else 0)
    return priorities, priorities


class Next(NamedTuple):
    """Decide which partition of a strand comes next."""

    which: int
    passed: int
    """Number of consecutive messages that were not chosen for being late, including this one; 0 if this one was. At
    most LATE_EVERY."""


def comes_next(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float = PATIENCE_S) -> Next | None:
    """Choose among the partitions of a strand. `since_ms` says when the next message of each was posted (None: it has
    none); `passed` is the value that the previous choice returned.

    The highest priority comes first; but while messages of lower ones are late, one message in LATE_EVERY is the oldest
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
    # `passed` never grows beyond LATE_EVERY, so a late message is due immediately after a long time without any.
    return Next(min(late)[1], 0) if late and passed + 1 >= LATE_EVERY else Next(first, min(passed + 1, LATE_EVERY))


def assign(workers: Collection[str], partitions: Iterable[L], held: Mapping[L, str]) -> dict[str, tuple[L, ...]]:
    """Map each worker to the partitions that it should have, sorted. `held` maps partitions to their current owners;
    owners that are not in `workers` do not count.

    Every worker computes the assignment on its own from its view of the store; only the owner entries in the store
    decide which worker holds a partition. From a balanced state a joining or leaving worker moves at most
    ceil(partitions / workers) of them, and the result stays the same while workers carry out those moves."""
    every = sorted(set(partitions))
    names = sorted(set(workers))
    if not names:
        return {}
    keeps: dict[str, list[L]] = {name: [] for name in names}
    free: list[L] = []
    for partition in every:
        # No worker has the name "": partitions without an owner, and those of owners that left, are free.
        keeps.get(held.get(partition, ""), free).append(partition)
    share = _shares(names, len(every), {name: len(has) for name, has in keeps.items()})
    for name in names:
        # Every worker must compute the same result, so choose the last partitions in sorted order.
        free += keeps[name][share[name] :]
        del keeps[name][share[name] :]
    waiting = iter(sorted(free))
    for name in names:
        keeps[name] += [next(waiting) for _ in range(share[name] - len(keeps[name]))]
    return {name: tuple(sorted(has)) for name, has in keeps.items()}


def share_out(
    takers: Mapping[str, Collection[str]], partitions: Iterable[QueuePartition], held: Mapping[QueuePartition, str]
) -> dict[str, tuple[QueuePartition, ...]]:
    """Assign like `assign` where workers take only some queues: `takers` maps each worker to its patterns of
    queues; without patterns it takes all. Partitions with the same takers are shared out together; one without a
    taker is not assigned."""
    groups: dict[tuple[str, ...], list[QueuePartition]] = {}
    able: dict[str, tuple[str, ...]] = {}
    for partition in sorted(set(partitions)):
        if partition.queue not in able:
            able[partition.queue] = tuple(
                sorted(n for n, patterns in takers.items() if takes(patterns, partition.queue))
            )
        # Grouped by takers, not by queue: many small queues would each give their odd partition to the same first
        # worker.
        groups.setdefault(able[partition.queue], []).append(partition)
    found: dict[str, tuple[QueuePartition, ...]] = dict.fromkeys(takers, ())
    for workers, some in groups.items():
        for worker, has in assign(workers, some, held).items():
            found[worker] += has
    return found


def takes(patterns: Collection[str], queue: str) -> bool:
    return not patterns or any(fnmatchcase(queue, pattern) for pattern in patterns)


def _shares(names: list[str], count: int, has: Mapping[str, int]) -> dict[str, int]:
    """Map each worker to the number of partitions that it should have. The larger shares go to workers that have
    most, so that few partitions move."""
    small, larger = divmod(count, len(names))
    # Count at most small + 1, so that the order stays the same while workers give up what exceeds their shares.
    order = sorted(names, key=lambda name: (-min(has[name], small + 1), name))
    return {name: small + (place < larger) for place, name in enumerate(order)}
