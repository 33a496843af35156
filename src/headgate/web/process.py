"""Serve the health and the metrics of a process, and the logs of an executor's builds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from headgate import rest
from headgate.ports.history import time_text
from headgate.services.context import Context
from headgate.services.membership import Membership
from headgate.store.types import StoreError
from headgate.web.access import PROOF_HEADER, Access, PeerFleet
from headgate.web.answers import HANDLERS
from headgate.web.logfiles import Follow, inside, listed, local, output, over, served
from headgate.web.shapes import LogFile


class StoreAvailability(Protocol):
    """Return whether the store can be reached."""

    @property
    def away_since_ms(self) -> int | None: ...
    @property
    def away_why(self) -> str: ...


class StoreHealth(msgspec.Struct, frozen=True):
    reachable: bool
    since: str | None = None
    """When it was lost, UTC."""
    error: str = ""


class ComponentHealth(msgspec.Struct, frozen=True):
    kind: str
    state: str
    """initializing | running | paused | stopping"""
    problem: str = ""
    """Why it is not a member at the moment."""
    former_problem: str = msgspec.field(name="trouble", default="")
    """Deprecated: the same as `problem`."""

    def __post_init__(self) -> None:
        # Clients that were written for the former name still find the value under it.
        msgspec.structs.force_setattr(self, "former_problem", self.problem)


class ProcessHealth(msgspec.Struct, frozen=True):
    ready: bool
    store: StoreHealth
    components: tuple[ComponentHealth, ...]


@dataclass(frozen=True, slots=True)
class Vitals:
    """Describe the health of this process; `members` are the memberships of its components."""

    availability: StoreAvailability
    figures: Callable[[], bytes]
    members: Sequence[Membership] = field(default_factory=list)

    @property
    def store(self) -> StoreHealth:
        since_ms = self.availability.away_since_ms
        if since_ms is None:
            return StoreHealth(True)
        return StoreHealth(False, time_text(since_ms), self.availability.away_why)

    @property
    def health(self) -> ProcessHealth:
        """Return the health. The process is ready if the store can be reached and every component is running."""
        components = tuple(ComponentHealth(m.kind, m.state, m.problem) for m in self.members)
        # A process whose components have not joined yet is not ready, although none of them has a problem.
        ready = self.store.reachable and bool(components) and all(c.state == "running" for c in components)
        return ProcessHealth(ready, self.store, components)


@rest.get("/health/live")
async def live() -> dict[str, bool]:
    """Answer 200 while the process responds; if there is no answer, restart the process."""
    return {"alive": True}


@rest.get("/health/ready", opt={"alike": (503,)})
async def ready(vitals: Vitals) -> rest.Response[ProcessHealth]:
    """Answer 200 while every component of the process is a member, otherwise 503 with the missing ones."""
    health = vitals.health
    return rest.Response(health, status_code=200 if health.ready else 503)


@rest.get("/metrics", opt={"answers": ("text/plain",)})
async def metrics(vitals: Vitals, access: Access, request: rest.HttpRequest) -> rest.Response[bytes]:
    """Return Prometheus metrics, for callers with a token, or for everybody if `[web] metrics` says so."""
    access.must_read_figures(request)
    return rest.Response(vitals.figures(), media_type="text/plain; version=0.0.4")


@dataclass(frozen=True, slots=True)
class Logs:
    """Serve the logs of this executor's builds."""

    context: Context
    root: Path
    follow: Follow
    fleet: PeerFleet


async def _of_the_fleet(logs: Logs, access: Access, connection: rest.Connection, handler: rest.Handler) -> None:
    """Admit to the logs only web processes, which check who may read them, and the operator. Raise 401."""
    # Health must be readable without credentials, and the metrics route checks its callers itself.
    if handler not in _LOG_ROUTES:
        return
    build = connection.path_params.get("build", "")
    try:
        if await logs.fleet.vouches(connection.headers.get(PROOF_HEADER, ""), build):
            return
    except StoreError as error:
        raise rest.HTTPException(f"the caller cannot be verified at the moment: {error}", status_code=503) from error
    bearer = access.bearer(connection)
    if bearer is None or not bearer.everything:
        raise access.refused(401, "read logs through the web component; this address needs the operator's token")


def _directory(logs: Logs, build: str) -> Path:
    # The id becomes a part of a path: a name with dots or slashes could lead out of the log directory.
    if not build.isalnum() or not (logs.root / build).is_dir():
        raise rest.NotFoundException(f"this executor has no logs of a build {build}")
    return (logs.root / build).resolve()


@rest.get("/logs/{build:str}")
async def log_files(logs: Logs, build: str) -> list[LogFile]:
    """List the log files of a build on this executor."""
    return await listed(_directory(logs, build), f"/logs/{build}")


@rest.get("/logs/{build:str}/{rest:path}")
async def log_file(
    request: rest.HttpRequest, logs: Logs, build: str, rest: str
) -> rest.StreamResponse | rest.Response[bytes]:
    """Return a log file, or a range of it."""
    file = inside(_directory(logs, build), rest)
    return await served(local(file), rest, request.headers)


@rest.get("/stream/{build:str}")
async def stream(logs: Logs, build: str, offset: rest.FromQuery[int] = 0) -> rest.StreamResponse:
    """Stream the output of a build from `offset` on, while it is written; a negative offset counts bytes from the
    end."""
    if not build.isalnum():
        raise rest.NotFoundException(f"this executor has no logs of a build {build}")

    async def pieces() -> AsyncIterator[bytes]:
        async for chunk in output(logs.follow, logs.root / build, over(logs.context, build), offset):
            yield chunk

    return rest.StreamResponse(pieces(), media_type="application/octet-stream")


ROUTES = (live, ready, metrics)
_LOG_ROUTES = (log_files, log_file, stream)


@rest.route(["/", "/{rest:path}"], ("GET", "POST", "PUT", "DELETE"))
async def waiting(vitals: Vitals) -> None:
    """Answer every other request with 503 until the store can be reached."""
    raise rest.HTTPException(f"the store is unavailable; waiting for it: {vitals.store.error}", status_code=503)


def create_waiting_app(vitals: Vitals) -> rest.WebApplication:
    """Create the application that serves until the store can be reached."""
    shared = (vitals, Access(figures_open=True))  # safe, as there are no metrics yet
    return rest.WebApplication((*ROUTES, waiting), shared, answers=HANDLERS)


def create_process_app(vitals: Vitals, access: Access, logs: Logs | None = None) -> rest.WebApplication:
    if logs is None:
        return rest.WebApplication(ROUTES, (vitals, access), answers=HANDLERS)
    guard = partial(_of_the_fleet, logs, access)
    return rest.WebApplication((*ROUTES, *_LOG_ROUTES), (vitals, access, logs), guard=guard, answers=HANDLERS)
