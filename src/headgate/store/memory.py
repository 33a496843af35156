"""A store in memory: for tests, the simulator, and trials.  Several `Store`s on one of it are several processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headgate.store.leases import Leases
from headgate.store.tree import Tree
from headgate.store.types import At, Backend, Change, Delete, Entry, Lease, Op, SessionLost


class MemoryBackend:
    def __init__(self, tree: Tree | None = None) -> None:
        self.tree = tree or Tree()
        self._leases = Leases(self._drop)

    async def get(self, path: str) -> Entry | None:
        return self.tree.entries.get(path)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return self.tree.under(prefix)

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        return [self.tree.entries.get(path) for path in paths]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        return self.tree.scan(directory, begins, after, limit)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        for op in ops:
            if not isinstance(op, Delete) and op.lease is not None and not self._leases.known(op.lease):
                raise SessionLost(f"the lease {op.lease} has run out")
        staged = self.tree.stage()
        written = staged.commit(checks, ops)
        self.tree.apply(staged)
        return written

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        return self.tree.watch(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return self._leases.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> None:
        self._leases.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        self._leases.revoke(lease)
        self._drop(lease)

    async def close(self) -> None:
        return None

    def _drop(self, lease: Lease) -> None:
        staged = self.tree.stage()
        # The end of a lease is a change like any other, with a version of its own.
        staged.revision += 1
        staged.entries = {path: None for path, entry in self.tree.entries.items() if entry.lease == lease}
        self.tree.apply(staged)


async def connect(url: str) -> Backend:
    """Return a store that forgets all."""
    return MemoryBackend()
