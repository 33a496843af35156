"""Provide endpoints of a new kind: projects of a tenant by prefix, and a new read of one project."""

from __future__ import annotations

from functools import partial

import msgspec

from headgate.rest import HttpRequest, JSONBody, get, post
from headgate.web.routes.actions import Hand
from headgate.web.site import Site

SHOWN_MAX = 100
PERMISSION = "set-tenant-state"


class RollShape(msgspec.Struct, frozen=True, kw_only=True):
    """Name projects. Headgate only."""

    projects: tuple[str, ...]
    more: bool
    """Whether there are more projects than shown."""


@get("/api/tenant/{tenant:str}/roll/{begins:str}")
async def roll(site: Site, tenant: str, begins: str) -> RollShape:
    """Return the projects whose names have this prefix. Headgate only."""
    projects = site.tenant(tenant).tenant.projects
    found = sorted(one.name for one in projects if one.name.startswith(begins))
    return RollShape(projects=tuple(found[:SHOWN_MAX]), more=len(found) > SHOWN_MAX)


class ForRoll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Call one project. Headgate only."""

    project: str
    reason: str = ""


@post("/api/tenant/{tenant:str}/roll", opt={"permission": PERMISSION})
async def call(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForRoll]) -> bool:
    """Request a new read of a project's configuration. Headgate only."""
    site.allow(request, tenant, PERMISSION)
    work = partial(site.reread, tenant, (data.project,))  # accepts `besides`, and writes it with the request
    await Hand(site, request, "call", tenant, data.project, data.reason).does(work)
    return True


ROUTES = (roll, call)
