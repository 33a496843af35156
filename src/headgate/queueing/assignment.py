"""Assign lanes to workers completely and evenly (their numbers differ by at most one), leaving a lane with its
holder where possible.

Every worker computes the assignment by itself from what it sees; only the owner entries in the store decide who
holds what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from headgate.queueing.lanes import Lane

L = TypeVar("L", bound="tuple[object, ...] | str")
"""Type of lanes: anything that can be sorted and looked up."""


def assign(workers: Collection[str], lanes: Iterable[L], held: Mapping[L, str]) -> dict[str, tuple[L, ...]]:
    """Map each worker to the lanes that it should have, sorted. `held` says who has which lane now; holders that
    are not in `workers` do not count.

    From a balanced state a joining or leaving worker moves at most ceil(lanes / workers) of them, and the result
    stays the same while workers carry out those moves.
    """
    every = sorted(set(lanes))
    names = sorted(set(workers))
    if not names:
        return {}
    keeps: dict[str, list[L]] = {name: [] for name in names}
    free: list[L] = []
    for lane in every:
        keeps.get(held.get(lane, ""), free).append(lane)
    share = _shares(names, len(every), {name: len(has) for name, has in keeps.items()})
    for name in names:
        free += keeps[name][share[name] :]
        del keeps[name][share[name] :]
    waiting = iter(sorted(free))
    for name in names:
        keeps[name] += [next(waiting) for _ in range(share[name] - len(keeps[name]))]
    return {name: tuple(sorted(has)) for name, has in keeps.items()}


def share_out(
    takers: Mapping[str, Collection[str]], lanes: Iterable[Lane], held: Mapping[Lane, str]
) -> dict[str, tuple[Lane, ...]]:
    """Assign like `assign` where workers take only some queues: `takers` maps each worker to its patterns of
    queues; without patterns it takes all. Lanes with the same takers are shared out together; a lane without a
    taker is assigned to nobody."""
    groups: dict[tuple[str, ...], list[Lane]] = {}
    able: dict[str, tuple[str, ...]] = {}
    for lane in sorted(set(lanes)):
        if lane.queue not in able:
            able[lane.queue] = tuple(sorted(n for n, patterns in takers.items() if takes(patterns, lane.queue)))
        groups.setdefault(able[lane.queue], []).append(lane)
    found: dict[str, tuple[Lane, ...]] = dict.fromkeys(takers, ())
    for workers, some in groups.items():
        for worker, has in assign(workers, some, held).items():
            found[worker] += has
    return found


def takes(patterns: Collection[str], queue: str) -> bool:
    return not patterns or any(fnmatchcase(queue, pattern) for pattern in patterns)


def _shares(names: list[str], count: int, has: Mapping[str, int]) -> dict[str, int]:
    """Map each worker to the number of lanes that it should have. The larger shares go to workers that hold most, so
    that few lanes move."""
    small, larger = divmod(count, len(names))
    order = sorted(names, key=lambda name: (-min(has[name], small + 1), name))
    return {name: small + (place < larger) for place, name in enumerate(order)}
