"""Following a file that grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

CHUNK_SIZE_BYTES = 65_536
LOOK_INTERVAL_S = 0.1


async def follow(path: Path, finished: Callable[[], bool], offset: int = 0) -> AsyncIterator[bytes]:
    """The bytes from `offset` on, as they are written, until `finished` and all of them are read."""
    while True:
        last = finished()
        while chunk := await asyncio.to_thread(_read, path, offset):
            offset += len(chunk)
            yield chunk
        if last:
            return
        await asyncio.sleep(LOOK_INTERVAL_S)


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_SIZE_BYTES)
    except FileNotFoundError:
        return b""
