"""A backend that passes everything on: what a test puts between a `Store` and its backend begins here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headgate.store.types import At, Backend, Change, Entry, Lease, Op


class WrappedBackend:
    """Wrap a `Backend`, `inner`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def get(self, path: str) -> Entry | None:
        return await self.inner.get(path)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self.inner.list(prefix)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self.inner.commit(checks, ops)

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        return self.inner.watch(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        return await self.inner.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> None:
        await self.inner.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        await self.inner.revoke(lease)

    async def close(self) -> None:
        await self.inner.close()
