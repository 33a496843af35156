"""Find the first entries below a directory, by path, without reading more nodes than necessary."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from headgate.store.types import Entry
from headgate.store.zookeeper.nodes import entry_of, read_with_children
from headgate.store.zookeeper.wire.jute import ZooKeeperNodeRead
from headgate.store.zookeeper.wire.link import ZooKeeperLink

# Each node takes two reads, itself and its children, so that this is MULTI_READS_MAX operations: one request.
AHEAD_MAX = 200
"""Nodes read at a time."""


class Stop(NamedTuple):
    """Represent a node, or everything below it, as a position in the order of paths: what is below `a` comes after
    `a-b`, because `/` sorts after `-`."""

    key: str
    """Path of the node in the directory; for everything below the node, with a slash at the end."""
    path: str

    @property
    def below(self) -> bool:
        return self.key.endswith("/")


class Scan:
    def __init__(self, link: ZooKeeperLink, chroot: str, directory: str, *, begins: str, after: str) -> None:
        self._link, self._chroot, self._base = link, chroot, f"{directory}/"
        self._begins, self._after = begins, after
        self._nodes: dict[str, tuple[ZooKeeperNodeRead | None, list[str]]] = {}
        """Nodes that were read and not returned yet."""
        self._stops: list[Stop] = []
        self._top: list[str] = []
        """Names in the directory itself, in order; those from `_next` on are not among the stops yet."""
        self._next = 0

    async def first(self, limit: int) -> list[Entry]:
        """Return the first `limit` entries by path. Raise ZooKeeperConnectionLost, Denied."""
        found: list[Entry] = []
        _, top = (await read_with_children(self._link, self._chroot, [self._base[:-1]]))[self._base[:-1]]
        self._begin(sorted(path.removeprefix(self._base) for path in top))
        while self._fed() and len(found) < limit:
            stop = heappop(self._stops)
            if stop.path not in self._nodes:
                await self._read_ahead(stop, limit - len(found))
            node, below = self._nodes[stop.path]
            if stop.below:
                del self._nodes[stop.path]
                for path in below:
                    for one in self._stops_of(path):
                        heappush(self._stops, one)
            elif (entry := entry_of(stop.path, node)) is not None and self._wanted(stop.key):
                found.append(entry)
        return found

    def _begin(self, names: list[str]) -> None:
        """Begin at the first relevant name, because there may be many. What is below `a` comes after `a-b`: so names
        that are prefixes of the name in `after` are relevant, too."""
        begins, after = self._begins.partition("/")[0], self._after.partition("/")[0]
        self._top, self._next = names, bisect_left(names, max(begins, after))
        for size in range(1, len(after)):
            place = bisect_left(names, after[:size])
            if place < self._next and names[place] == after[:size]:
                self._stops += self._stops_of(self._base + names[place])
        heapify(self._stops)

    def _fed(self) -> bool:
        """Return whether enough stops are known to read ahead, including whatever comes first."""
        while self._next < len(self._top):
            name = self._top[self._next]
            if len(self._stops) >= 2 * AHEAD_MAX and name > self._stops[0].key:
                break
            self._next += 1
            for stop in self._stops_of(self._base + name):
                heappush(self._stops, stop)
            if not self._stops and not name.startswith(self._begins.partition("/")[0]):
                self._next = len(self._top)  # past all names with this prefix
        return bool(self._stops)

    async def _read_ahead(self, stop: Stop, wanted: int) -> None:
        """Read the next known nodes, as many as are needed."""
        self._stops.sort()  # a sorted list is a heap
        paths = dict.fromkeys([stop.path, *(one.path for one in self._stops[: 2 * min(wanted, AHEAD_MAX)])])
        missing = [path for path in paths if path not in self._nodes][:AHEAD_MAX]
        self._nodes |= await read_with_children(self._link, self._chroot, missing)

    def _stops_of(self, path: str) -> list[Stop]:
        """Return the stops of a node that may lead to an entry; if only what is below it may, return only that."""
        key = path.removeprefix(self._base)
        own = [Stop(key, path)] if self._wanted(key) else []
        inside = f"{key}/"
        leads = inside.startswith(self._begins) or self._begins.startswith(inside)
        later = inside > self._after or self._after.startswith(inside)
        return [*own, Stop(inside, path)] if leads and later else own

    def _wanted(self, key: str) -> bool:
        return key.startswith(self._begins) and key > self._after
