"""Taking a hand: enqueue, dequeue, promote."""

from __future__ import annotations

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, JSONBody

from headgate.base.ids import fresh
from headgate.gate.work import Dequeue, Enqueue, Promote
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
    site.allow(request)
    change = site.change(tenant, project, data.change)
    work = Enqueue(change, fresh()) if verb == "enqueue" else Dequeue(change.key)
    await site.ask(tenant, data.pipeline, work)
    return True


@post("/api/tenant/{tenant:str}/promote", status_code=200, opt={"permission": "promote"})
async def promote(state: State, request: HttpRequest, tenant: FromPath[str], data: JSONBody[ForChanges]) -> bool:
    """Move changes to the head of their queue; everything from there on is tested anew."""
    site = site_of(state)
    site.allow(request)
    if not data.changes:
        raise HTTPException("changes: name at least one", status_code=400)
    await site.ask(tenant, data.pipeline, Promote(data.changes, fresh()))
    return True


ROUTES = (control, promote)
