"""Serve what a process without pages has: health, figures, and, of an executor, the logs of its builds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headgate.rest import (
    Connection,
    FromQuery,
    Handler,
    HTTPException,
    HttpRequest,
    NotFoundException,
    Response,
    StreamResponse,
    WebApplication,
    get,
    route,
)
from headgate.services.context import Context
from headgate.store.types import StoreError
from headgate.web.access import Access
from headgate.web.errors import HANDLERS
from headgate.web.jobfiles import local, served
from headgate.web.logfiles import Follow, inside, listed, output, over
from headgate.web.peers.fleet import HEADER, PeerFleet
from headgate.web.routes import vitals as vital
from headgate.web.shapes import LogFile
from headgate.web.vitals import Vitals


@dataclass(frozen=True, slots=True)
class Logs:
    """Serve the logs of this executor's builds."""

    context: Context
    root: Path
    follow: Follow
    fleet: PeerFleet


async def _of_the_fleet(logs: Logs, access: Access, connection: Connection, handler: Handler) -> None:
    """Admit to logs the web, which knows who may read them, and the operator. Raise 401."""
    # Health must be readable without a credential, and figures decide for themselves.
    if handler not in _OF_LOGS:
        return
    build = connection.path_params.get("build", "")
    try:
        if await logs.fleet.vouches(connection.headers.get(HEADER, ""), build):
            return
    except StoreError as error:
        raise HTTPException(f"who asks cannot be known just now: {error}", status_code=503) from error
    bearer = access.bearer(connection)
    if bearer is None or not bearer.everything:
        raise access.refused(401, "logs are fetched from the web; here the operator's token is needed")


def _directory(logs: Logs, build: str) -> Path:
    # The id becomes a part of a path: a name with dots or slashes could lead out of the logs.
    if not build.isalnum() or not (logs.root / build).is_dir():
        raise NotFoundException(f"there are no logs of a build {build} here")
    return (logs.root / build).resolve()


@get("/logs/{build:str}")
async def log_files(logs: Logs, build: str) -> list[LogFile]:
    """List the files that a build left here."""
    return await listed(_directory(logs, build), f"/logs/{build}")


@get("/logs/{build:str}/{rest:path}")
async def log_file(request: HttpRequest, logs: Logs, build: str, rest: str) -> StreamResponse | Response[bytes]:
    """Return a file, or a part of it."""
    file = inside(_directory(logs, build), rest)
    return await served(local(file), rest, request.headers)


@get("/stream/{build:str}")
async def stream(logs: Logs, build: str, offset: FromQuery[int] = 0) -> StreamResponse:
    """Stream the output of a build from `offset` on, as it is written; a negative offset counts bytes from the end."""
    if not build.isalnum():
        raise NotFoundException(f"there are no logs of a build {build} here")

    async def pieces() -> AsyncIterator[bytes]:
        async for chunk in output(logs.follow, logs.root / build, over(logs.context, build), offset):
            yield chunk

    return StreamResponse(pieces(), media_type="application/octet-stream")


_OF_LOGS = (log_files, log_file, stream)


@route(["/", "/{rest:path}"], ("GET", "POST", "PUT", "DELETE"))
async def waiting(vitals: Vitals) -> None:
    """Answer every other request before there is a store."""
    raise HTTPException(f"the store cannot be used, and is waited for: {vitals.store.error}", status_code=503)


def create_waiting_app(vitals: Vitals) -> WebApplication:
    """Create the application that answers before there is a store."""
    shared = (vitals, Access(figures_open=True))  # there are none yet
    return WebApplication((*vital.ROUTES, waiting), shared, answers=HANDLERS)


def create_process_app(vitals: Vitals, access: Access, logs: Logs | None = None) -> WebApplication:
    if logs is None:
        return WebApplication(vital.ROUTES, (vitals, access), answers=HANDLERS)
    guard = partial(_of_the_fleet, logs, access)
    return WebApplication((*vital.ROUTES, *_OF_LOGS), (vitals, access, logs), guard=guard, answers=HANDLERS)
