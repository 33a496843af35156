"""Files of earlier builds for those that follow them: of this executor, or of another that has them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote

from litestar.exceptions import HTTPException

from headgate.adapters.logs.reader import KeptLogs
from headgate.adapters.process.network.artifacts import ReadLog
from headgate.adapters.process.tail import follow
from headgate.ports.logstore import LogStoreError
from headgate.web.buildlogs import BuildLogs
from headgate.web.remote import NoLogs, RemoteLogs


def reader(log_root: Path, remote: RemoteLogs, kept: KeptLogs | None) -> ReadLog:
    """Return a reader for an executor that keeps its logs in `log_root` and, if there is one, in the log store."""
    logs = BuildLogs(log_root, follow, remote, kept)

    async def read(build: str, path: str) -> AsyncGenerator[bytes, None]:
        try:
            if (found := await logs.content(build, path)) is not None:
                async with aclosing(found.read(0, found.size_bytes)) as content:
                    async for piece in content:
                        yield piece
                return
            async with aclosing(remote.file(build, quote(path))) as pieces:  # type: ignore[type-var]  # it is a generator
                async for piece in pieces:
                    yield piece
        except (HTTPException, NoLogs, LogStoreError) as error:
            raise LookupError(str(error)) from error

    return read
