"""Keep a tree of entries in memory, with watches and leases, and serve it as a store."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from headgate.base.ids import fresh
from headgate.store import types
from headgate.store.model import check_commit, check_leased, order

BACKLOG_MAX = 10_000
"""Limit on the changes that wait for one watcher; beyond it, the watcher gets a fresh snapshot instead."""


@dataclass(slots=True)
class Staged:
    """Show the tree as the staged commits would leave it: an overlay on the tree."""

    tree: WatchedTree
    revision: int
    entries: dict[str, types.Entry | None] = field(default_factory=dict)
    appended: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    """Paths that exist in the tree and that a staged commit deleted."""

    def get(self, path: str) -> types.Entry | None:
        return self.entries[path] if path in self.entries else self.tree.get(path)

    def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op]) -> tuple[types.Entry | None, ...]:
        """Stage the operations and return the written entries, one per operation, or raise Conflict and stage
        nothing."""
        check_commit(checks, ops)
        for check in checks:
            entry = self.get(check.path)
            if (entry.version if entry else None) != check.version:
                raise types.Conflict(check)
        check_leased(ops, self._leased, self._above)
        # A read may fail, so all reads come before the first change: half a commit must not become durable.
        before = {op.path: self.tree.get(op.path) for op in ops if not isinstance(op, types.Append)}
        self.revision += 1
        return tuple(self._stage(op, before) for op in ops)

    def _leased(self, path: str) -> bool:
        if path in self.entries:
            entry = self.entries[path]
            return entry is not None and entry.lease is not None
        return self.tree.leased(path)

    def _above(self, path: str) -> bool:
        """Return whether entries lie below `path`."""
        begin = path + "/"
        return any(p.startswith(begin) and entry is not None for p, entry in self.entries.items()) or any(
            entry.path != path and self.get(entry.path) is not None for entry in self.tree.under(path)
        )

    def _stage(self, op: types.Op, before: Mapping[str, types.Entry | None]) -> types.Entry | None:
        now = self.revision
        match op:
            case types.Put(path, value, lease):
                old = self.entries[path] if path in self.entries else before[path]
                entry = types.Entry(path, value, now, old.born if old else now, lease)
            case types.Append(parent, value, lease, prefix):
                count = self.appended.get(parent, self.tree.appended.get(parent, 0))
                self.appended[parent] = count + 1
                entry = types.Entry(f"{parent}/{prefix}{count:0{types.NAME_DIGITS}d}", value, now, now, lease)
            case types.Delete(path):
                self.entries[path] = None
                # Watchers never saw an entry that was created and deleted within one batch, so its end is not reported.
                if before[path] is not None:
                    self.removed.add(path)
                return None
            case _:
                assert_never(op)
        self.entries[entry.path] = entry
        return entry


class TreeWatcher:
    """Deliver changes under one prefix, in order, to one reader."""

    def __init__(self, tree: WatchedTree, prefix: str) -> None:
        self.tree, self.prefix, self._below = tree, prefix, f"{prefix}/"
        self._changes: deque[types.Change] = deque()
        self._reader: asyncio.Future[None] | None = None
        """Set while a reader waits for changes."""
        self.gap()

    def gap(self) -> None:
        """Drop the waiting changes; the next read returns a snapshot."""
        self._changes.clear()
        self.needs_snapshot = True
        self._wake()

    def tell(self, change: types.Change, path: str) -> None:
        # The snapshot that the reader will take already contains this change.
        if self.needs_snapshot or not (path == self.prefix or path.startswith(self._below)):
            return
        if len(self._changes) >= BACKLOG_MAX:
            self.gap()
            return
        self._changes.append(change)
        if self._reader is not None:
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def waits(self) -> bool:
        """Return whether there are no changes to take."""
        return not (self._changes or self.needs_snapshot)

    async def some(self) -> None:
        """Wait until there are changes to take."""
        # A gap may have come between the wake-up and this task's turn, so the condition is checked again.
        while self.waits:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        self._reader = None

    def take(self) -> types.Change:
        if self.needs_snapshot:
            self.needs_snapshot = False
            return types.Snapshot(self.tree.under(self.prefix))
        return self._changes.popleft()


class WatchedTree(ABC):
    """Hold entries by path, in memory or on disk.  Commits are staged, made durable by the owner, and then applied."""

    def __init__(self, appended: Mapping[str, int], revision: int) -> None:
        self.appended, self.revision = dict(appended), revision
        self._watchers: list[TreeWatcher] = []

    @abstractmethod
    def get(self, path: str) -> types.Entry | None: ...

    def leased(self, path: str) -> bool:
        """Return whether the path is an entry with a lease."""
        entry = self.get(path)
        return entry is not None and entry.lease is not None

    @abstractmethod
    def under(self, prefix: str) -> tuple[types.Entry, ...]:
        """Return the subtree at `prefix`, oldest entry first; the cost depends on its size, not on that of the tree."""

    async def settled(self) -> None:
        """Wait until watchers have received every change that a read can already return."""
        return None

    def stage(self) -> Staged:
        return Staged(self, self.revision)

    async def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        watcher = TreeWatcher(self, prefix)
        self._watchers.append(watcher)
        try:
            while True:
                if watcher.waits:
                    await watcher.some()
                if watcher.needs_snapshot:
                    # Without this, the snapshot could contain a commit that is durable but not yet sent to watchers,
                    # and its changes would follow a second time.
                    await self.settled()
                yield watcher.take()
        finally:
            self._watchers.remove(watcher)

    def gap(self) -> None:
        """Restart every watcher from a snapshot, because changes may have been missed."""
        for watcher in self._watchers:
            watcher.gap()

    def _tell_of(self, entry: types.Entry) -> None:
        # Most entries are written while this process has no watcher; then no change object is made.
        if self._watchers:
            self._tell(types.EntryChanged(entry), entry.path)

    def _tell_of_end(self, path: str) -> None:
        if self._watchers:
            self._tell(types.EntryGone(path), path)

    def _tell(self, change: types.Change, path: str) -> None:
        for watcher in self._watchers:
            watcher.tell(change, path)


class Tree(WatchedTree):
    """Hold the entries in memory."""

    def __init__(
        self, entries: Iterable[types.Entry] = (), appended: Mapping[str, int] | None = None, revision: int = 0
    ) -> None:
        super().__init__(appended or {}, revision)
        self.entries = {entry.path: entry for entry in entries}
        self._paths = sorted(self.entries)

    def get(self, path: str) -> types.Entry | None:
        return self.entries.get(path)

    def apply(self, staged: Staged) -> None:
        """Make the staged changes visible and send them to the watchers."""
        self.revision = staged.revision
        self.appended |= staged.appended
        for path, entry in staged.entries.items():
            if entry is not None:
                self.put(entry)
            else:
                self.remove(path)

    def put(self, entry: types.Entry) -> None:
        if entry.path not in self.entries:
            insort(self._paths, entry.path)
        self.entries[entry.path] = entry
        self._tell_of(entry)

    def remove(self, path: str) -> None:
        if self.entries.pop(path, None) is not None:
            del self._paths[bisect_left(self._paths, path)]
            self._tell_of_end(path)

    def under(self, prefix: str) -> tuple[types.Entry, ...]:
        # `0` is the character after `/`: the range between the two has exactly the paths below the prefix, and for `/a`
        # not `/ab`.
        low, high = bisect_left(self._paths, prefix + "/"), bisect_left(self._paths, prefix + "0")
        own = self.entries.get(prefix)
        if low == high:
            return () if own is None else (own,)
        found = [self.entries[path] for path in self._paths[low:high]]
        if own is not None:
            found.append(own)
        if len(found) > 1:
            found.sort(key=order)
        return tuple(found)

    def names(self, directory: str) -> list[str]:
        """Return the sorted names directly below `directory`, including those that are no entries but have entries
        below them."""
        base, paths, found = f"{directory}/", self._paths, dict[str, None]()
        at = bisect_left(paths, base)
        while at < len(paths) and paths[at].startswith(base):
            name, slash, _ = paths[at].removeprefix(base).partition("/")
            found[name] = None
            at = bisect_left(paths, f"{base}{name}0", at) if slash else at + 1  # "0" comes right after "/"
        return sorted(found)

    def scan(self, directory: str, begins: str, after: str, limit: int) -> list[types.Entry]:
        """Return the first entries below `directory`, by path, whose relative path begins with `begins` and sorts after
        `after`."""
        base = f"{directory}/"
        start = bisect_right(self._paths, base + after) if after >= begins else bisect_left(self._paths, base + begins)
        found: list[types.Entry] = []
        for path in self._paths[start : start + limit]:
            if not path.startswith(base + begins):
                break
            found.append(self.entries[path])
        return found


@dataclass(slots=True)
class _Term:
    ttl_s: float
    deadline: float


class Leases:
    """Keep leases, and call `expired` on the event loop with each lease that has expired."""

    def __init__(self, expired: Callable[[types.Lease], None]) -> None:
        self._expired = expired
        self._terms: dict[types.Lease, _Term] = {}

    def grant(self, ttl_s: float) -> types.Lease:
        lease = types.Lease(fresh())
        loop = asyncio.get_running_loop()
        self._terms[lease] = _Term(ttl_s, loop.time() + ttl_s)
        loop.call_later(ttl_s, self._look, lease)
        return lease

    def keep_alive(self, lease: types.Lease) -> None:
        term = self._terms.get(lease)
        if term is None:
            raise types.SessionLost(f"the lease {lease} has expired")
        term.deadline = asyncio.get_running_loop().time() + term.ttl_s

    def known(self, lease: types.Lease) -> bool:
        return lease in self._terms

    def revoke(self, lease: types.Lease) -> None:
        self._terms.pop(lease, None)

    def _look(self, lease: types.Lease) -> None:
        term = self._terms.get(lease)
        if term is None:
            return
        loop = asyncio.get_running_loop()
        # Renewals only move the deadline, and this one timer follows it. That is cheaper than a new timer for each
        # renewal.
        if (left_s := term.deadline - loop.time()) > 0:
            loop.call_later(left_s, self._look, lease)
            return
        del self._terms[lease]
        self._expired(lease)


class MemoryBackend:
    """Implement the backend in memory, for one process."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.tree = tree or Tree()
        self._leases = Leases(self._drop)

    async def get(self, path: str) -> types.Entry | None:
        return self.tree.entries.get(path)

    async def list(self, prefix: str) -> Sequence[types.Entry]:
        return self.tree.under(prefix)

    async def get_many(self, paths: Sequence[str]) -> Sequence[types.Entry | None]:
        return [self.tree.entries.get(path) for path in paths]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[types.Entry]:
        return self.tree.scan(directory, begins, after, limit)

    async def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op]) -> Sequence[types.Entry | None]:
        for op in ops:
            if not isinstance(op, types.Delete) and op.lease is not None and not self._leases.known(op.lease):
                raise types.SessionLost(f"the lease {op.lease} has expired")
        staged = self.tree.stage()
        written = staged.commit(checks, ops)
        self.tree.apply(staged)
        return written

    def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        return self.tree.watch(prefix)

    async def grant(self, ttl_s: float) -> types.Lease:
        return self._leases.grant(ttl_s)

    async def keep_alive(self, lease: types.Lease) -> None:
        self._leases.keep_alive(lease)

    async def revoke(self, lease: types.Lease) -> None:
        self._leases.revoke(lease)
        self._drop(lease)

    async def close(self) -> None:
        return None

    def _drop(self, lease: types.Lease) -> None:
        staged = self.tree.stage()
        # The end of a lease is a change like any other, so it gets its own version.
        staged.revision += 1
        staged.entries = {path: None for path, entry in self.tree.entries.items() if entry.lease == lease}
        self.tree.apply(staged)


async def connect(url: str) -> types.Backend:
    """Return a store that lasts only as long as the process."""
    return MemoryBackend()
