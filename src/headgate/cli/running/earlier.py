"""Files of earlier builds for those that follow them: of this executor, or of another that has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote

from litestar.exceptions import NotFoundException

from headgate.adapters.process.network.artifacts import ReadLog
from headgate.web.logfiles import inside
from headgate.web.remote import NoLogs, RemoteLogs

CHUNK_SIZE_BYTES = 65_536


def reader(log_root: Path, remote: RemoteLogs) -> ReadLog:
    """For the executor that keeps its logs in `log_root`."""

    async def read(build: str, path: str) -> AsyncGenerator[bytes, None]:
        root = (log_root / build).resolve()
        try:
            if root.is_dir():
                async for piece in _pieces(inside(root, path)):
                    yield piece
                return
            async with aclosing(remote.file(build, quote(path))) as pieces:  # type: ignore[type-var]  # it is a generator
                async for piece in pieces:
                    yield piece
        except (NotFoundException, NoLogs) as error:
            raise LookupError(str(error)) from error

    return read


async def _pieces(file: Path) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(open, file, "rb") as found:
        while piece := await asyncio.to_thread(found.read, CHUNK_SIZE_BYTES):
            yield piece
