"""A store that remembers everything ever written through it: places come and go, a look at rest sees few of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headgate.store.types import At, Backend, Change, Entry, Lease, Op


class Witness:
    """`Backend` over another one.  `seen`: path -> the last entry written there, whether or not it is still there."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.seen: dict[str, Entry] = {}

    async def get(self, path: str) -> Entry | None:
        return await self._inner.get(path)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._inner.list(prefix)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await self._inner.commit(checks, ops)
        self.seen.update((entry.path, entry) for entry in written if entry is not None)
        return written

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        return self._inner.watch(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return await self._inner.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> None:
        await self._inner.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        await self._inner.revoke(lease)

    async def close(self) -> None:
        await self._inner.close()
