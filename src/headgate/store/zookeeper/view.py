"""Keep a local copy of a subtree current with one recursive watch.

Events name the changed nodes, and one read fetches their contents.

Changes become visible commit by commit: only when everything that events have named is read, and no further event has
arrived in the meantime. After a lost connection, the servers report what has changed since, and only that is read
again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from headgate.store.memory import Tree
from headgate.store.model import inside
from headgate.store.zookeeper.nodes import Denied, entry_of, hidden, read, read_with_children, walk
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.connection import ZooKeeperConnectionLost, ZooKeeperLink

GATHER_S = 0.001
"""Time to gather events before their nodes are read together, because the events of a commit arrive one by one."""
ROUNDS_MAX = 50
"""Limit on the reads while events continue to arrive. After that, changes become visible although a commit may be
incomplete."""
WATCHES_SIZE_BYTES = 300_000
"""Size limit of the paths in one request for changes."""


class _Unread:
    """Represent the unread contents of a path that an event named."""


UNREAD: Final = _Unread()
Seen = Callable[[str, jute.ZooKeeperNodeRead | None], None]
Compare = Callable[[int, Sequence[Sequence[str]]], Awaitable[None]]
"""Takes a zxid and full paths, in groups that each fit into one request."""


class View:
    """Keep a tree: `run` keeps `tree` current; `load` must be awaited on every new connection."""

    def __init__(self, chroot: str, prefix: str, seen: Seen, compare: Compare) -> None:
        """Make a view. `compare` makes the servers report, as events, what changed at or below nodes after a zxid."""
        self.prefix, self.tree = prefix, Tree()
        self._users = 0
        self.loaded = asyncio.Event()
        """Set when `tree` is complete for the first time."""
        self.current = False
        """Whether the watch is set on the current connection, and all changes that were missed before are known."""
        self._chroot, self._seen, self._compare = chroot, seen, compare
        self._nodes: set[str] = set()
        """Paths of all nodes, whether or not they are entries."""
        self._dirty: dict[str, jute.ZooKeeperNodeRead | _Unread | None] = {}
        """Paths that events named, in the order of the last event of each, with the contents of the node."""
        self._numbers: dict[str, int] = {}
        """Path -> number of its last event."""
        self._parents: set[str] = set()
        """Nodes whose children changed while the connection was lost, as the servers reported."""
        self._own: dict[str, int] = {}
        """Path -> number of commits in progress that write it; with a trailing slash: any path directly below it."""
        self._since = 0
        """While the watch is not set: zxid up to which every event was received."""
        self._stirred, self._calm = asyncio.Event(), asyncio.Event()

    def enter(self) -> bool:
        """Count another user, and return whether it is the only one."""
        self._users += 1
        return self._users == 1

    def leave(self) -> bool:
        """Count one user less, and return whether it was the last."""
        self._users -= 1
        return self._users == 0

    def covers(self, path: str) -> bool:
        return inside(path, self.prefix) if self.prefix else True

    def settled(self, path: str) -> bool:
        """Return whether everything known about the path is up to date with the servers' last message."""
        return self.current and path not in self._dirty

    async def calm(self) -> None:
        """Wait until every change that events announced is visible."""
        while not self.current or self._dirty:
            self._calm.clear()
            await self._calm.wait()

    def has(self, path: str) -> bool:
        return path in self._nodes

    def lose(self, zxid: int) -> None:
        """Handle the loss of the connection; its last answer was as of `zxid`."""
        if self.current:
            # Only the first loss counts: connections that broke before the view was loaded again brought no events.
            self._since = zxid
        self.current = False
        self._own.clear()
        self._stirred.set()

    def on_event(self, kind: int, path: str, number: int) -> None:
        """Handle a watch event."""
        if not self.covers(path) or hidden(path):
            return
        # Recursive watches never report this kind; it comes only from the watches that `_compare` sets.
        if kind == jute.ZooKeeperWatchEvent.CHILDREN:
            if not self.current:
                self._parents.add(path)
            return
        self._dirty.pop(path, None)
        self._dirty[path] = UNREAD
        self._numbers[path] = number
        self._stirred.set()

    def begin(self, paths: list[str]) -> None:
        """Register a commit of this process that is in flight. Its answer contains what it wrote, so these paths need
        not be read."""
        for path in paths:
            self._own[path] = self._own.get(path, 0) + 1

    def end(self, paths: list[str], written: Mapping[str, jute.ZooKeeperNodeRead | None], events: int) -> None:
        """Note the answer to a commit, which came after `events` events."""
        for path in paths:
            if path in self._own:
                self._own[path] -= 1
                if not self._own[path]:
                    del self._own[path]
        for path, found in written.items():
            # An event that came after the answer belongs to a later write, of another process, which must be read.
            if path in self._dirty and self._numbers.get(path, 0) <= events:
                self._dirty[path] = found
        self._stirred.set()

    # --- on a new connection

    async def ensure(self, link: ZooKeeperLink) -> None:
        """Load the subtree, unless another caller has loaded it in the meantime."""
        if not self.current:
            await self.load(link)

    async def load(self, link: ZooKeeperLink) -> None:
        """Read everything the first time, and later only what changed. Raise ZooKeeperConnectionLost or Denied."""
        root = self._chroot + self.prefix or "/"
        self._dirty = dict.fromkeys(self._dirty, UNREAD)  # the connection broke before these became visible
        if not self.loaded.is_set():
            await self._request(link, jute.Do.ADD_WATCH, jute.text(root) + jute.number(jute.PERSISTENT_RECURSIVE))
            # The watch is set first, so that it reports changes during the walk. For a node that an event names, the
            # result of the walk is ignored, because it may be older.
            found: Mapping[str, jute.ZooKeeperNodeRead | None] = await walk(link, self._chroot, [self.prefix])
        else:
            # The watch of the lost connection is gone, and later changes have sent no events.
            found = await self._missed(link, root)
        for path, node in found.items():
            if path not in self._dirty:
                self._dirty[path] = node
        while self._unread():
            await self._look(link)
        self._show()
        self.current = True
        self._calm.set()
        self._stirred.set()
        self.loaded.set()
        self.tree.gap()

    async def _missed(self, link: ZooKeeperLink, root: str) -> dict[str, jute.ZooKeeperNodeRead | None]:
        """Read everything that changed since the connection was lost, except changes that events report."""
        await self._request(link, jute.Do.ADD_WATCH, jute.text(root) + jute.number(jute.PERSISTENT_RECURSIVE))
        known = _pieces(sorted({*self._nodes, self.prefix}))
        await self._compare(self._since, [[self._chroot + path or "/" for path in some] for some in known])
        suspects = [path for path in {*self._dirty, *self._parents, self.prefix} if not hidden(path)]
        self._parents.clear()
        found: dict[str, jute.ZooKeeperNodeRead | None] = {}
        below = await read_with_children(link, self._chroot, suspects)
        # Servers do not report nodes that were created in the meantime, only that the children of their parent changed.
        fresh = {child for _, children in below.values() for child in children if child not in self._nodes}
        found.update((path, node) for path, (node, _) in below.items())
        found.update(await walk(link, self._chroot, sorted(fresh - set(suspects))))
        return found

    async def _request(self, link: ZooKeeperLink, kind: jute.Do, body: bytes) -> None:
        reply = await link.call(kind, body)
        if reply.code == jute.Code.NO_AUTH:
            raise Denied(self.prefix)

    # --- from then on

    async def run(self, connected: Callable[[], Awaitable[ZooKeeperLink]]) -> None:
        """Read the nodes that events name and make their changes visible, until cancelled. The last event may arrive
        after `load`, but before the connection may be used: therefore `connected` waits for that."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            if not self._dirty:
                continue
            link = await connected()
            if not self.current:
                continue  # wakes up when `load` ends
            try:
                await self._settle(link)
            # A new connection begins with `load`, which reports what is wrong.
            except (ZooKeeperConnectionLost, Denied):
                continue

    async def _settle(self, link: ZooKeeperLink) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._unread():
                break
            if all(self._ours(path) for path in self._unread()):
                return  # `end` wakes it when the commits are answered
            await asyncio.sleep(GATHER_S)
            await self._look(link)
        self._show()

    def _ours(self, path: str) -> bool:
        return path in self._own or f"{path.rpartition('/')[0]}/" in self._own

    def _unread(self) -> list[str]:
        return [path for path, found in self._dirty.items() if isinstance(found, _Unread)]

    async def _look(self, link: ZooKeeperLink) -> None:
        paths = [path for path in self._unread() if not self._ours(path)] or self._unread()
        # An event during the read replaces the mark by another object, which shows that the answer may be outdated.
        marks = {path: _Unread() for path in paths}
        self._dirty.update(marks)
        found = await read(link, self._chroot, paths)
        for path, node in found.items():
            if self._dirty.get(path, UNREAD) is marks[path]:
                self._dirty[path] = node

    def _show(self) -> None:
        """Apply the read changes to the tree, which sends them to its watchers, without a pause."""
        for path, found in list(self._dirty.items()):
            if isinstance(found, _Unread):
                continue
            del self._dirty[path]
            self._numbers.pop(path, None)
            self._seen(path, found)
            if found is None:
                self._nodes.discard(path)
            else:
                self._nodes.add(path)
            entry = entry_of(path, found)
            if entry is None:
                self.tree.remove(path)
            # To watchers, several events about one write, or a reload, must not look like several writes.
            elif (old := self.tree.entries.get(path)) is None or old.version != entry.version:
                self.tree.put(entry)
        self._calm.set()


def _pieces(paths: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    size_bytes = 0
    for path in paths:
        size_bytes += len(path.encode()) + 4
        if size_bytes > WATCHES_SIZE_BYTES:
            pieces.append([])
            size_bytes = len(path.encode()) + 4
        pieces[-1].append(path)
    return pieces
