"""A store connection that dies with its process, at any request, before or after the request took effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

from headgate.store.types import At, Backend, Change, Entry, Lease, Op, Unavailable
from headgate.testing.wrappedbackend import WrappedBackend


class MortalBackend(WrappedBackend):
    """Imitate the connection of a process. Requests take a random number of loop turns. The process dies at request
    number `dies_at` (None: never); then `died` is set, and nothing is answered any more."""

    def __init__(self, inner: Backend, chance: random.Random, dies_at: int | None) -> None:
        super().__init__(inner)
        self._chance, self._dies_at = chance, dies_at
        self._count = 0
        self.died = asyncio.Event()

    async def _step(self) -> bool:
        """Count a request; return True if it is the last, and takes effect although nobody learns of it."""
        self._alive()
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        self._count += 1
        if self._dies_at is None or self._count < self._dies_at:
            return False
        self.died.set()
        # Half of the last requests take effect, and the process never learns which half.
        if self._chance.random() < 0.5:
            raise Unavailable("died before the request was sent")
        return True

    def _alive(self) -> None:
        if self.died.is_set():
            raise Unavailable("this process is dead")

    @staticmethod
    def _answered(last: bool) -> None:
        if last:
            raise Unavailable("died before the answer came")

    async def get(self, path: str) -> Entry | None:
        self._answered(await self._step())
        return await self.inner.get(path)

    async def list(self, prefix: str) -> Sequence[Entry]:
        self._answered(await self._step())
        return await self.inner.list(prefix)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        last = await self._step()
        written = await self.inner.commit(checks, ops)
        self._answered(last)
        return written

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        async for change in self.inner.watch(prefix):
            self._alive()
            yield change

    async def grant(self, ttl_s: float) -> Lease:
        self._answered(await self._step())
        return await self.inner.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> None:
        self._alive()
        await self.inner.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        self._alive()
        await self.inner.revoke(lease)

    async def close(self) -> None:
        return None
