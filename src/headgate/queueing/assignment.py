"""Assign partitions to workers completely and evenly (their numbers differ by at most one), leaving a partition with
its owner where possible.

Every worker computes the assignment by itself from what it sees; only the owner entries in the store decide who
holds what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from headgate.queueing.partitions import QueuePartition

L = TypeVar("L", bound="tuple[object, ...] | str")
"""Type of partitions: anything that can be sorted and looked up."""


def assign(workers: Collection[str], partitions: Iterable[L], held: Mapping[L, str]) -> dict[str, tuple[L, ...]]:
    """Map each worker to the partitions that it should have, sorted. `held` says who has which one now; owners that
    are not in `workers` do not count.

    From a balanced state a joining or leaving worker moves at most ceil(partitions / workers) of them, and the result
    stays the same while workers carry out those moves.
    """
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
        # The same partitions for every worker that computes this: the highest of those that are sorted.
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
    taker is assigned to nobody."""
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
    # Counting at most small + 1, the order stays the same while workers give up what they have beyond their shares.
    order = sorted(names, key=lambda name: (-min(has[name], small + 1), name))
    return {name: small + (place < larger) for place, name in enumerate(order)}
