"""Taking a hand: enqueue, dequeue, promote, reconfigure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, JSONBody

from headgate.base.ids import fresh
from headgate.gate.work import Dequeue, Enqueue, Promote
from headgate.services.membership import want
from headgate.web.site import HttpRequest, site_of


class ForChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of enqueue and dequeue."""

    pipeline: str
    change: str
    """`<topic>`, `<branch>/<topic>`, or `<topic>,<patchset>` of the project in the URL."""


class ForChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of promote."""

    pipeline: str
    changes: tuple[str, ...]
    """In the order wanted: `<project>/<branch>/<topic>`, project with its host."""


@post(
    "/api/tenant/{tenant:str}/project/{rest:path}",
    status_code=200,
    opt={"path": "project/{project}/enqueue, …/dequeue", "permission": "enqueue, dequeue"},
)
async def control(
    state: State, request: HttpRequest, tenant: FromPath[str], rest: FromPath[str], data: JSONBody[ForChange]
) -> bool:
    """Put a change into a pipeline, its requirements notwithstanding; or take it out."""
    site = site_of(state)
    project, _, verb = rest.strip("/").rpartition("/")
    if verb not in ("enqueue", "dequeue"):
        raise NotFoundException(f"{verb!r} is not known; there are enqueue and dequeue")
    site.allow(request, tenant, verb, project=project)
    change = site.change(tenant, project, data.change)
    work = Enqueue(change, fresh()) if verb == "enqueue" else Dequeue(change.key)
    await site.ask(tenant, data.pipeline, work)
    return True


@post("/api/tenant/{tenant:str}/promote", status_code=200, opt={"permission": "promote"})
async def promote(state: State, request: HttpRequest, tenant: FromPath[str], data: JSONBody[ForChanges]) -> bool:
    """Move changes to the head of their queue; everything from there on is tested anew."""
    site = site_of(state)
    site.allow(request, tenant, "promote")
    if not data.changes:
        raise HTTPException("changes: name at least one", status_code=400)
    await site.ask(tenant, data.pipeline, Promote(data.changes, fresh()))
    return True


class ForProjects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of reconfigure."""

    projects: tuple[str, ...] = ()
    """Every project of the tenant when none is named."""


OF_ALL = "of the whole system: [web] token, or a token for every tenant"


@post("/api/tenant/{tenant:str}/reconfigure", status_code=200, opt={"permission": OF_ALL})
async def reconfigure(state: State, request: HttpRequest, tenant: FromPath[str], data: JSONBody[ForProjects]) -> bool:
    """Read the configuration of projects anew, whether or not they were pushed to."""
    site = site_of(state)
    site.allow_all(request)
    site.tenant(tenant)
    await site.reread(tenant, data.projects)
    return True


PERMISSIONS = ("read", "enqueue", "dequeue", "promote")
"""Those that anything here asks for."""


@get("/api/tenant/{tenant:str}/authorizations")
async def authorizations(state: State, request: HttpRequest, tenant: FromPath[str]) -> dict[str, Any]:  # JSON
    """What the bearer of the token may do."""
    site = site_of(state)
    found, bearer = site.tenant(tenant).tenant, site.access.bearer(request)
    may = {p: bearer is not None and site.access.permits(bearer, found, p, {}) for p in PERMISSIONS}
    may["read"] = site.access.may_read(bearer, found)
    admin = all(may.values())
    return {"zuul": {"admin": admin, "permissions": may, "scope": [tenant] if admin else []}}


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a request about a component."""

    state: Literal["running", "paused", "stopped"]


@post(
    "/api/component/{kind:str}/{name:str}",
    status_code=200,
    opt={"permission": OF_ALL},
)
async def component(
    state: State, request: HttpRequest, kind: FromPath[str], name: FromPath[str], data: JSONBody[Wish]
) -> bool:
    """Pause a process, let it go on, or stop it: an executor or merger ends what it does first."""
    site = site_of(state)
    site.allow_all(request)
    if not await want(site.context, f"{kind}/{name}", data.state):
        raise NotFoundException(f"there is no component {kind}/{name}")
    return True


@post("/api/zone/{zone:str}/forget", status_code=200, opt={"permission": OF_ALL})
async def forget(state: State, request: HttpRequest, zone: FromPath[str]) -> bool:
    """Forget the labels of a zone's machines, but for those of executors that are there."""
    site = site_of(state)
    site.allow_all(request)
    labels = site.context.map.executor.zones(zone).labels
    if await site.context.store.get(labels.path) is None:
        raise NotFoundException(f"nothing is remembered of a zone {zone!r}")
    await site.context.store.commit([], [labels.delete()])
    return True


ROUTES = (control, promote, reconfigure, authorizations, component, forget)
