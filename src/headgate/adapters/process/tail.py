"""Following a file that grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

CHUNK_SIZE_BYTES = 65_536
LOOK_INTERVAL_S = 0.1
QUICK_MAX = 20
"""Followers in this process up to which the interval is the shortest; with more of them it grows."""


class TailGroup:
    """Follow files in one process; many followers together cost it no more than a few do."""

    def __init__(self) -> None:
        self._count = 0

    async def follow(self, path: Path, finished: Callable[[], bool], offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes from `offset` on, as they are written, until `finished` and all of them are read."""
        self._count += 1
        try:
            while True:
                last = finished()
                while chunk := await asyncio.to_thread(_read, path, offset):
                    offset += len(chunk)
                    yield chunk
                if last:
                    return
                await asyncio.sleep(LOOK_INTERVAL_S * max(1.0, self._count / QUICK_MAX))
        finally:
            self._count -= 1


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_SIZE_BYTES)
    except FileNotFoundError:
        return b""


follow = TailGroup().follow
"""Followers in this process."""
