"""What the routes share: the tenants, what may be asked of them, and by whom."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State as AppState
from litestar.exceptions import HTTPException, NotFoundException

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.change import Change
from headgate.gate.work import Managed
from headgate.map.records import ForPipeline
from headgate.services.context import Context
from headgate.services.scheduler.scheduler import Scheduler
from headgate.services.scheduler.standings import Standings
from headgate.web.status import Status

Follow = Callable[[Path, Callable[[], bool], int], AsyncIterator[bytes]]


class Wanted(msgspec.Struct):
    """Body of enqueue and dequeue; of promote with `changes`."""

    pipeline: str
    change: str = ""
    """`<topic>` or `<branch>/<topic>` of the project in the URL."""
    changes: list[str] = []
    """For promote: keys of changes, `<project>/<branch>/<topic>`."""


class Site:
    """What the routes share."""

    def __init__(
        self, context: Context, scheduler: Scheduler, history: SqlHistory, log_root: Path, token: str, follow: Follow
    ) -> None:
        self.context, self.scheduler, self.history = context, scheduler, history
        self.log_root, self.token, self.follow = log_root, token, follow
        self.status = Status(context, scheduler)

    def tenant(self, name: str) -> str:
        if name not in self.scheduler.tenants:
            raise NotFoundException(f"there is no tenant {name!r}; there are {', '.join(self.scheduler.tenants)}")
        return name

    def encoded(self, tenant: str) -> bytes:
        return msgspec.json.encode(self.status.of(self.tenant(tenant)))

    def allow(self, request: Request[Any, Any, Any]) -> None:
        """A token where one is set, else only programs of this machine, never a page in its browser.
        Raises 401, 403, 415."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException("the body must be sent as application/json", status_code=415)
        if self.token:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                raise HTTPException("a bearer token is needed; it is [web] token of the settings", status_code=401)
        elif request.headers.get("origin") or request.headers.get("x-forwarded-for"):
            raise HTTPException("from a page or through a proxy only with a token; set [web] token", status_code=403)
        elif request.client is None or request.client.host not in ("127.0.0.1", "::1"):
            raise HTTPException("from another machine only with a token; set [web] token", status_code=403)

    async def ask(self, tenant: str, pipeline: str, work: Managed) -> None:
        if pipeline not in self.scheduler.tenants[tenant].layouts.landed.pipelines:
            raise NotFoundException(f"tenant {tenant} has no pipeline {pipeline!r}")
        stream = self.context.map.events.tenant(tenant).management.stream
        await self.context.store.commit([], stream.append(ForPipeline(pipeline, work)))

    def canonical(self, tenant: str, wanted: dict[str, str]) -> dict[str, str]:
        """Filters as the history has them: a project may be given by its short name."""
        source = self.scheduler.tenants[tenant].tenant.find(wanted.get("project", ""))
        return {**wanted, "project": source.project} if source is not None else wanted

    def find(self, tenant: str, project: str, change: str) -> Change:
        """A known change of a project, by topic or branch and topic.  Raises 404."""
        source = self.scheduler.tenants[self.tenant(tenant)].tenant.find(project)
        if source is None:
            raise NotFoundException(f"tenant {tenant} has no project {project!r}")
        standings = Standings(self.context.map, self.context.mirror, (source.connection,)).now()
        for standing in standings.values():
            found = standing.change
            names = (found.topic, f"{found.branch}/{found.topic}", found.id)
            if found.project == source.project and standing.open and change in names:
                return found
        raise NotFoundException(f"{project} has no open change {change!r}")


def site_of(state: AppState) -> Site:
    site = state["site"]
    assert isinstance(site, Site), "set by create_app"
    return site
