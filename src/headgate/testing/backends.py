"""Wrap the backend of a store: remember what is written, lose answers, die with a process, fail at a request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Any, TypeVar

from headgate.base.tasks import unless
from headgate.store.types import At, Backend, Change, Entry, Lease, Op, Unavailable

SHORT_S, LONG_S = 2.0, 25.0
"""Durations of interruptions that a session survives, and that it does not survive."""
REFUSED_AFTER_S = 0.5
"""Time after which a request fails while the network is cut."""
LAG_CHANCE, LAG_MAX_S = 0.02, 0.3
"""Chance that an event of a watch is late, and its longest delay."""

T = TypeVar("T")


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


class RecordingBackend(WrappedBackend):
    """Remember writes: `seen` maps each path to the last entry written there, even if it is gone."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.seen: dict[str, Entry] = {}

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await self.inner.commit(checks, ops)
        self.seen.update((entry.path, entry) for entry in written if entry is not None)
        return written


class UnsureBackend(WrappedBackend):
    """Fail the next commit with Unavailable, before or after it took effect."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.next_commit: str = "answers"
        """answers | lost (never arrives) | unanswered (arrives and takes effect, but the caller gets no answer)"""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        fate, self.next_commit = self.next_commit, "answers"
        if fate == "lost":
            raise Unavailable("the connection broke before the commit was sent")
        written = await self.inner.commit(checks, ops)
        if fate == "unanswered":
            raise Unavailable("the connection broke before the answer came")
        return written


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


class SimFault(Enum):
    """List what can happen at a request."""

    DEATH = "the process dies"
    UNKNOWN = "the answer to this request is lost"
    BLIP = "the network is cut for a moment"
    CUT = "the network is cut for longer than a session"
    PAUSE = "the process stops for a moment"
    STALL = "the process stops for longer than a session; what it was about to send is sent late"


LASTS_S = {SimFault.BLIP: SHORT_S, SimFault.CUT: LONG_S, SimFault.PAUSE: SHORT_S, SimFault.STALL: LONG_S}
"""Duration of each fault that does not happen at one moment."""


# Not an Exception, so that no `except Exception` of the services continues on behalf of a dead process.
class Dead(BaseException):
    """Report that a process is dead: no handler may run, and nothing is retried."""


class SimLink(WrappedBackend):
    """Connect a process to the store. `faults` maps the numbers of requests to what happens then. A death sets
    `died`, and nothing is answered any more. Requests take a random number of loop turns."""

    def __init__(
        self, inner: Backend, chance: random.Random, faults: Mapping[int, SimFault], *, lags: bool = True
    ) -> None:
        super().__init__(inner)
        self._chance, self._faults, self._lags = chance, faults, lags
        self._count, self._breaks = 0, 0
        self._had_fault = False
        """Whether the link ever had a fault; requests of one that had none take a shortcut."""
        self._cut_until_s = self._stalled_until_s = 0.0
        self.fault_until_s = float("-inf")
        """Time at which the faults that have happened so far end."""
        self.died = asyncio.Event()

    async def get(self, path: str) -> Entry | None:
        return await self._request(lambda: self.inner.get(path))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._request(lambda: self.inner.list(prefix))

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self._request(lambda: self.inner.commit(checks, ops))

    async def grant(self, ttl_s: float) -> Lease:
        return await self._request(lambda: self.inner.grant(ttl_s))

    async def keep_alive(self, lease: Lease) -> None:
        await self._reached()
        await self.inner.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        await self._reached()
        await self.inner.revoke(lease)

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        """Break with the network, and be late now and then."""
        await self._reached()
        breaks = self._breaks
        chance = self._chance.random
        watch = self.inner.watch(prefix)
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            # Late at random, and in order: a mirror may lag behind, but a watch never skips or swaps.
            async for change in watch:
                if self._lags and chance() < LAG_CHANCE:
                    await asyncio.sleep(chance() * LAG_MAX_S)
                if self._had_fault:
                    await self._reached()
                if breaks != self._breaks:
                    raise Unavailable("the connection of this watch broke")
                yield change

    async def close(self) -> None:
        return None

    async def _request(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self._had_fault:
            await self._reached()
        # So that requests of several processes arrive in every order.
        for _ in range(int(self._chance.random() * 3)):
            await asyncio.sleep(0)
        self._count += 1
        fault = self._faults.get(self._count)
        if fault is None:
            return await ask()
        return await self._meet(fault, ask)

    async def _meet(self, fault: SimFault, ask: Callable[[], Awaitable[T]]) -> T:
        now_s, self._had_fault = asyncio.get_running_loop().time(), True
        self.fault_until_s = max(self.fault_until_s, now_s + LASTS_S.get(fault, 0.0))
        if fault in (SimFault.PAUSE, SimFault.STALL):
            self._stalled_until_s = now_s + LASTS_S[fault]
            # the request is on its way: it arrives whatever happens to its sender
            late = asyncio.ensure_future(self._late(ask))
            late.add_done_callback(_heard)  # if its sender has gone, nobody else asks how it ended
            return await asyncio.shield(late)
        if fault is SimFault.DEATH:
            self.died.set()
            # The request may have arrived: the process that starts next finds its effect, or does not.
            if self._chance.random() < 0.5:
                await ask()
            raise Dead
        if fault is not SimFault.UNKNOWN:
            self._cut_until_s = now_s + LASTS_S[fault]
            self._breaks += 1
        # An error says nothing of the effect: half of the commits that fail this way were made.
        if self._chance.random() < 0.5:
            await ask()
        raise Unavailable(f"no answer: {fault.value}")

    async def _late(self, ask: Callable[[], Awaitable[T]]) -> T:
        await self._reached()
        return await ask()

    async def _reached(self) -> None:
        """Wait while the process is stopped. Raise Unavailable while the store cannot be reached, Dead when the process
        died."""
        if self.died.is_set():
            raise Dead
        loop = asyncio.get_running_loop()
        if loop.time() < self._stalled_until_s:
            await asyncio.sleep(self._stalled_until_s - loop.time())
        if loop.time() < self._cut_until_s:
            await asyncio.sleep(min(REFUSED_AFTER_S, self._cut_until_s - loop.time()))
            raise Unavailable("the network is cut")


def _heard(late: asyncio.Future[T]) -> None:
    if not late.cancelled():
        late.exception()


async def dies(link: SimLink, life: Coroutine[Any, Any, object]) -> bool:
    """Run a process on its link, and return whether it died there. Raise whatever a living process raises."""
    try:
        await unless(link.died, life)
    except Exception:
        if not link.died.is_set():
            raise
    return link.died.is_set()
