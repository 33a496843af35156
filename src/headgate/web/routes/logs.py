"""Logs: as files, and as they are written."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import WebSocket, get, websocket
from litestar.datastructures import State
from litestar.exceptions import NotFoundException, WebSocketDisconnect
from litestar.params import FromPath
from litestar.response import File

from headgate.web.shapes import LogFile
from headgate.web.site import Site, site_of

FIRST_MESSAGE_TIMEOUT_S = 10.0
LOG = "job-output.txt"
FILES_MAX = 1_000
"""Of one build, in a list."""


async def _directory(site: Site, tenant: str, build: str) -> Path:
    """Raises 404 for a build that is not this tenant's."""
    if not build.isalnum() or not build.isascii() or not await site.owns(tenant, build):
        raise NotFoundException(f"tenant {tenant} has no build {build}")
    return (site.log_root / build).resolve()


@get("/t/{tenant:str}/logs/{build:str}/{rest:path}")
async def log_file(state: State, tenant: FromPath[str], build: FromPath[str], rest: FromPath[str]) -> File:
    """One file of a build's logs, as plain text."""
    root = await _directory(site_of(state), tenant, build)
    file = (root / rest.lstrip("/")).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        raise NotFoundException(f"build {build} has no log {rest.lstrip('/')!r}")
    return File(file, content_disposition_type="inline", media_type="text/plain; charset=utf-8")


@get("/api/tenant/{tenant:str}/build/{build:str}/logs")
async def log_files(state: State, tenant: FromPath[str], build: FromPath[str]) -> list[LogFile]:
    """The files of a build's logs."""
    root = await _directory(site_of(state), tenant, build)
    return await asyncio.to_thread(_listed, root, f"/t/{quote(tenant)}/logs/{build}")


def _listed(root: Path, url: str) -> list[LogFile]:
    found: list[LogFile] = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.resolve().is_relative_to(root) and len(found) < FILES_MAX:
            name = str(path.relative_to(root))
            found.append(LogFile(name, path.stat().st_size, f"{url}/{quote(name)}"))
    return found


class Wanted(msgspec.Struct, frozen=True):
    """The client's first message."""

    uuid: str
    logfile: str = "console.log"
    offset: int = 0
    """Ours: bytes to leave out because the client has them; below 0: no more than so many bytes from the end."""
    token: str | None = None


@websocket("/api/tenant/{tenant:str}/console-stream")
async def console(socket: WebSocket[Any, Any, Any], state: State, tenant: FromPath[str]) -> None:
    """The client names a build; its log is sent as it is written, then the connection is closed (1000)."""
    site = site_of(state)
    await socket.accept()
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            wanted = msgspec.json.decode(await socket.receive_text(), type=Wanted)
    except (TimeoutError, msgspec.MsgspecError):
        await socket.close(4000, 'say which build: {"uuid": ..., "logfile": "console.log"}')
        return
    except WebSocketDisconnect:
        return
    try:
        path = (await _directory(site, tenant, wanted.uuid)) / LOG
    except NotFoundException as missing:
        await socket.close(4011, missing.detail[:120])
        return
    try:
        async for text in _texts(site, path, wanted):
            await socket.send_text(text)
        await socket.close(1000)
    except WebSocketDisconnect:
        return


async def _texts(site: Site, path: Path, wanted: Wanted) -> AsyncIterator[str]:
    """The log from the offset on, cut between characters only."""
    size_bytes = path.stat().st_size if path.exists() else 0
    offset = wanted.offset
    if offset < 0:
        offset = max(0, size_bytes + offset)
    requests = site.context.builds.places.requests

    def finished() -> bool:
        return site.context.mirror.get(f"{requests}/{wanted.uuid}") is None

    text = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in site.follow(path, finished, offset):
        if decoded := text.decode(chunk):
            yield decoded


ROUTES = (log_file, log_files, console)
