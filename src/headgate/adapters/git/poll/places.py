"""Limit concurrent looks, so that one which takes long does not block the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SLOW_S = 5.0
"""Time after which a look that is still running gives its place to the next one."""
SLOW_MAX = 100
"""Most looks that go on without a place."""


class RefPlaces:
    def __init__(self, most: int, slow_s: float = SLOW_S, slow_max: int = SLOW_MAX) -> None:
        self._free, self._slow_s, self._slow_max = asyncio.Semaphore(most), slow_s, slow_max
        self._slow = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Provide a place for the context, or for its first seconds."""
        await self._free.acquire()
        given = False

        def give() -> None:
            nonlocal given
            # Bounded, so that a server that hangs does not collect unlimited processes.
            if self._slow < self._slow_max:
                given = True
                self._slow += 1
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._slow_s, give)
        try:
            yield
        finally:
            timer.cancel()
            if given:
                self._slow -= 1
            else:
                self._free.release()
