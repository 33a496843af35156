"""One at a time: among the tasks of a process, and among processes that share a directory."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

WAIT_MAX_S = 600.0
LOOK_AGAIN_MAX_S = 0.2


class Exclusive:
    """Hold a lock that ends with its process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ours = asyncio.Lock()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lock. Raise OSError if others hold it for WAIT_MAX_S."""
        async with self._ours:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                await self._take(file)
                yield
            finally:
                os.close(file)

    async def _take(self, file: int) -> None:
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                while not _taken(file):  # noqa: ASYNC110  # no event tells of another process
                    await asyncio.sleep(random.uniform(0, LOOK_AGAIN_MAX_S))
        except TimeoutError:
            raise OSError(f"{self._path} was locked by another process for {WAIT_MAX_S:.0f} s") from None


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
