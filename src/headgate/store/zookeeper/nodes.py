"""Map the tree to ZooKeeper's nodes: begin a tree, read entries and pages, and cache facts about nodes.

The data of a node is the value of its entry. A node without data is not an entry: it exists for the nodes below it, or
because its entry was deleted recently. The version of an entry is the zxid of its last write.

Names that begin with `~` belong to the backend: `/~` marks the tree as Headgate's; `/~/leases/<session>` and
`/~/births/<nnn>` are explained below. `<parent>/~` protects a parent with numbered children from removal: ZooKeeper
would count from zero after the parent is created again.

ZooKeeper can check how often the data of a node was written, but not that it is still the same node.  Further checks
prove that it was not deleted and created again:

- The deletion of an entry leaves a tombstone for SWEEP_S: a node without data.  A commit that creates an entry on a
  tombstone also writes the counter `birth_path` of that path, and a commit that checks a version also checks that
  counter.  A fact is used for AGE_MAX_S, which is well below SWEEP_S, or for as long as a watch confirms it.
- An entry under a lease disappears with the lease and leaves no tombstone: a commit that checks its version also checks
  that `lease_path` exists.
- A numbered name is never used again after its deletion: no other child of that parent gets it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from headgate.base.errors import HeadgateError
from headgate.store.types import Entry, Lease, StoreError
from headgate.store.zookeeper.address import ZooKeeperAddress
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.connection import ZooKeeperLink

OWN = "/~"
LEASES = f"{OWN}/leases"
BIRTHS = f"{OWN}/births"
# With a single counter, every rebirth would make the checks of all other commits fail. One request reads all counters
# whenever a connection is made, so there must be fewer than MULTI_READS_MAX.
BIRTHS_COUNT = 256
SYSTEM = "/zookeeper"
"""Root of the servers' own nodes."""

AGE_MAX_S = 240.0
SWEEP_S = 600.0
NODES_MAX = 50_000
"""Limit on the nodes about which facts are cached."""

# Each node takes two operations, for its data and its children: together MULTI_READS_MAX, which fit in one request.
AHEAD_MAX = 200
"""Number of nodes that are read at a time."""

FORMAT = 1
_MARK = msgspec.json.encode({"headgate": FORMAT})
_COUNTERS = [f"{BIRTHS}/{number:03d}" for number in range(BIRTHS_COUNT)]


class Denied(HeadgateError):
    """Report that the servers refuse access to a node."""


def birth_path(path: str) -> str:
    return f"{BIRTHS}/{crc32(path.encode()) % BIRTHS_COUNT:03d}"


def lease_path(owner: int) -> str:
    return f"{LEASES}/{lease_of(owner)}"


def numbered_path(parent: str) -> str:
    return f"{parent}/~"


def hidden(path: str) -> bool:
    """Return whether the node belongs to the backend or to ZooKeeper, and therefore is not an entry."""
    return "/~" in path or path == SYSTEM or path.startswith(SYSTEM + "/")


def lease_of(session: int) -> Lease:
    # Session ids are signed on the wire, and may be negative.
    return Lease(f"{session & 0xFFFFFFFFFFFFFFFF:016x}")


def entry_of(path: str, found: jute.ZooKeeperNodeRead | None) -> Entry | None:
    if found is None or found.value is None or not path:
        return None
    stat = found.stat
    return Entry(path, found.value, stat.mzxid, stat.czxid, lease_of(stat.owner) if stat.owner else None)


async def read(link: ZooKeeperLink, chroot: str, paths: Sequence[str]) -> dict[str, jute.ZooKeeperNodeRead | None]:
    """Return path -> node, or None if there is no node.  Up to MULTI_READS_MAX nodes are read as of one moment.  Raise
    ZooKeeperConnectionLost, Denied."""
    answers = await _answers(link, [jute.get(chroot + path or "/") for path in paths])
    return {path: _found(path, answer) for path, answer in zip(paths, answers, strict=True)}


async def read_with_children(
    link: ZooKeeperLink, chroot: str, paths: Sequence[str]
) -> dict[str, tuple[jute.ZooKeeperNodeRead | None, list[str]]]:
    """Return the nodes, each with the paths of its children; hidden children are left out."""
    parts: list[jute.ZooKeeperOperation] = []
    for path in paths:
        where = chroot + path or "/"
        parts += [jute.get(where), jute.children(where)]
    answers = await _answers(link, parts)
    found: dict[str, tuple[jute.ZooKeeperNodeRead | None, list[str]]] = {}
    for number, path in enumerate(paths):
        names = answers[2 * number + 1]
        below = [f"{path}/{name}" for name in names if name[:1] != "~"] if isinstance(names, list) else []
        if not path or hidden(path):
            below = [one for one in below if not hidden(one)]
        found[path] = _found(path, answers[2 * number]), below
    return found


async def walk(link: ZooKeeperLink, chroot: str, roots: Iterable[str]) -> dict[str, jute.ZooKeeperNodeRead]:
    """Return every node at and below `roots`, read level by level. The result is not as of one moment; a caller that
    needs that sets a watch first."""
    nodes: dict[str, jute.ZooKeeperNodeRead] = {}
    level = list(roots)
    while level:
        found = await read_with_children(link, chroot, level)
        nodes.update((path, node) for path, (node, _) in found.items() if node is not None)
        level = [path for _, below in found.values() for path in below]
    return nodes


async def glance(link: ZooKeeperLink, chroot: str, root: str) -> dict[str, jute.ZooKeeperNodeRead] | None:
    """Return every node at and below `root` as of one moment, read in one request; None if they are too many for one
    request."""
    paths = [root]
    while 2 * len(paths) <= jute.MULTI_READS_MAX:
        found = await read_with_children(link, chroot, paths)
        below = [path for _, names in found.values() for path in names]
        # The paths are a guess from the previous read. It was right if this read, which is atomic, finds no others.
        if set(below) <= found.keys():
            return {path: node for path, (node, _) in found.items() if node is not None}
        paths = [root, *below]
    return None


async def _answers(link: ZooKeeperLink, parts: Sequence[jute.ZooKeeperOperation]) -> list[jute.Answer]:
    pieces = [parts[n : n + jute.MULTI_READS_MAX] for n in range(0, len(parts), jute.MULTI_READS_MAX)]
    answers: list[jute.Answer] = []
    for done in await asyncio.gather(*(link.multi(jute.Do.MULTI_READ, piece) for piece in pieces)):
        answers += done.answers
    return answers


def _found(path: str, answer: jute.Answer) -> jute.ZooKeeperNodeRead | None:
    if isinstance(answer, jute.ZooKeeperNodeRead):
        return answer
    if answer == jute.Code.NO_AUTH:
        raise Denied(path)
    return None


@dataclass(frozen=True, slots=True)
class Fact:
    """Represent a node as it was at `at_s`."""

    stat: jute.Stat
    entry: bool
    """Whether the node has data, which makes it an entry."""
    at_s: float


@dataclass(slots=True)
class Facts:
    """Remember facts about nodes, and the counters and leases on which they depend."""

    nodes: dict[str, Fact | None] = field(default_factory=dict)
    """Path -> fact; None if the node did not exist."""
    counters: dict[str, int] = field(default_factory=dict)
    """Path of a birth counter -> number of times that it was written."""
    introduced: set[int] = field(default_factory=set)
    """Sessions whose `lease_path` exists."""

    def know(self, path: str, found: jute.ZooKeeperNodeRead | None, at_s: float) -> None:
        if len(self.nodes) >= NODES_MAX and path not in self.nodes:
            # A forgotten fact costs one read. To drop a quarter at a time keeps the average cost of a new fact low.
            for old in list(self.nodes)[: NODES_MAX // 4]:
                del self.nodes[old]
        self.nodes[path] = None if found is None else Fact(found.stat, found.value is not None, at_s)

    def recount(self, counts: Mapping[str, int]) -> None:
        """Record counters that were read. For those that other processes changed, forget the dependent facts."""
        self._doubt({path for path, count in counts.items() if self.counters.get(path, count) != count})
        self.counters.update(counts)

    def counted(self, counts: Mapping[str, int]) -> None:
        """Record counters that this process wrote."""
        # If another process wrote the counter in between, its nodes may have been created again unnoticed.
        self._doubt({path for path, count in counts.items() if self.counters.get(path) != count - 1})
        self.counters.update(counts)

    def _doubt(self, counters: Collection[str]) -> None:
        """Forget the nodes of these counters, in one pass: all counters may change while this process is cut off."""
        if counters:
            self.forget([p for p, fact in self.nodes.items() if fact is not None and birth_path(p) in counters])

    def forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.nodes.pop(path, None)


class Stop(NamedTuple):
    """Represent a node, or everything below a node, as a position in the order of paths. The two differ: `a/x` comes
    after `a-b`, because `/` sorts after `-`."""

    key: str
    """Relative path of the node in the directory; with a trailing slash for everything below the node."""
    path: str

    @property
    def below(self) -> bool:
        return self.key.endswith("/")


class Scan:
    """Read the first entries of a directory by path, without reading all of it."""

    def __init__(self, link: ZooKeeperLink, chroot: str, directory: str, *, begins: str, after: str) -> None:
        self._link, self._chroot, self._base = link, chroot, f"{directory}/"
        self._begins, self._after = begins, after
        self._nodes: dict[str, tuple[jute.ZooKeeperNodeRead | None, list[str]]] = {}
        """Nodes that were read and not returned yet."""
        self._stops: list[Stop] = []
        self._top: list[str] = []
        """Sorted names in the directory itself; those from `_next` on are not among the stops yet."""
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
        """Begin at the first relevant name, because there may be many. `a/x` comes after `a-b`, so names that are
        prefixes of the first component of `after` are relevant, too."""
        begins, after = self._begins.partition("/")[0], self._after.partition("/")[0]
        self._top, self._next = names, bisect_left(names, max(begins, after))
        for size in range(1, len(after)):
            place = bisect_left(names, after[:size])
            if place < self._next and names[place] == after[:size]:
                self._stops += self._stops_of(self._base + names[place])
        heapify(self._stops)

    def _fed(self) -> bool:
        """Add names to the stops until there are enough to read ahead and the first stop is certain. Return whether
        there are any stops."""
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
        """Read the node of this stop and of the next ones, as many as are needed."""
        self._stops.sort()  # a sorted list is a heap
        paths = dict.fromkeys([stop.path, *(one.path for one in self._stops[: 2 * min(wanted, AHEAD_MAX)])])
        missing = [path for path in paths if path not in self._nodes][:AHEAD_MAX]
        self._nodes |= await read_with_children(self._link, self._chroot, missing)

    def _stops_of(self, path: str) -> list[Stop]:
        """Return the stops of a node that may lead to a wanted entry: the node itself, everything below it, both, or
        none."""
        key = path.removeprefix(self._base)
        own = [Stop(key, path)] if self._wanted(key) else []
        inside = f"{key}/"
        leads = inside.startswith(self._begins) or self._begins.startswith(inside)
        later = inside > self._after or self._after.startswith(inside)
        return [*own, Stop(inside, path)] if leads and later else own

    def _wanted(self, key: str) -> bool:
        return key.startswith(self._begins) and key > self._after


async def claim(link: ZooKeeperLink, address: ZooKeeperAddress, facts: Facts) -> None:
    """Begin a tree in an empty place, or read the counters of an existing one. Raise StoreError if the nodes belong to
    another program."""
    found = await read(link, address.chroot, [OWN, "", *_COUNTERS])
    if found[OWN] is None:
        if found[""] is None and address.adopt:
            await _made(link, address)
            found = await read(link, address.chroot, [""])
        await _begin(link, address, found[""])
        found = await read(link, address.chroot, [OWN, "", *_COUNTERS])
    _known(found[OWN], address)
    counts = dict[str, int]()
    for path in _COUNTERS:
        counter = found[path]
        if counter is None:
            raise StoreError(f"{address}: {path} is missing: the tree is damaged; restore it from an export")
        counts[path] = counter.stat.version
    facts.recount(counts)


async def _begin(link: ZooKeeperLink, address: ZooKeeperAddress, root: jute.ZooKeeperNodeRead | None) -> None:
    if root is None:
        raise StoreError(
            f"{address}: there is no node {address.chroot}; create it first, "
            f"for example: zkCli.sh -server {address.hosts[0][0]}:{address.hosts[0][1]} create {address.chroot} ''"
        )
    (names,) = (await link.multi(jute.Do.MULTI_READ, [jute.children(address.chroot or "/")])).answers
    names = names if isinstance(names, list) else []
    # Another process may just be creating `/~`, so that name is no sign of another program.
    known = {OWN.removeprefix("/"), *(() if address.chroot else ("zookeeper",))}
    if not address.adopt and (others := sorted(set(names) - known)):
        raise StoreError(
            f"{address}: the root has nodes of another program ({', '.join(others[:5])}"
            f"{', …' if len(others) > 5 else ''}); nothing was written. Choose an empty node: {address}/headgate"
        )
    parts = [jute.create(address.chroot + OWN, _MARK, 0, jute.acl(address.user))]
    parts += [
        jute.create(address.chroot + path, None, 0, jute.acl(address.user)) for path in (LEASES, BIRTHS, *_COUNTERS)
    ]
    # Another process may have begun the same tree first: then this fails as a whole, and the next read finds its mark.
    if jute.Code.NO_AUTH in (await link.multi(jute.Do.MULTI, parts)).answers:
        raise StoreError(
            f"{address}: no permission to write to {address.chroot or '/'}: its ACL allows only other users"
        )


async def _made(link: ZooKeeperLink, address: ZooKeeperAddress) -> None:
    """Create the root node of the tree and the nodes above it."""
    names = address.chroot.removeprefix("/").split("/")
    for depth in range(len(names)):
        path = "/" + "/".join(names[: depth + 1])
        (code,) = (await link.multi(jute.Do.MULTI, [jute.create(path, None, 0, jute.acl(address.user))])).answers
        if code is jute.Code.NO_AUTH:
            raise StoreError(f"{address}: no permission to create {path}")


def _known(mark: jute.ZooKeeperNodeRead | None, address: ZooKeeperAddress) -> None:
    try:
        # Any program may have written any value there.
        document: Any = msgspec.json.decode(mark.value or b"") if mark else None
        found = int(document["headgate"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        raise StoreError(f"{address}: {OWN} has data that Headgate did not write; nothing was written") from None
    if found > FORMAT:
        raise StoreError(f"{address}: written by a newer Headgate (format {found}, this one knows {FORMAT}); upgrade")
