"""An endpoint of a new kind: the projects of a tenant that begin with some letters, at most a hundred."""

from __future__ import annotations

import msgspec

from headgate.rest import get
from headgate.web.site import Site

SHOWN_MAX = 100


class RollShape(msgspec.Struct, frozen=True, kw_only=True):
    """Ours: names of projects."""

    projects: tuple[str, ...]
    more: bool
    """Whether there are more than are shown."""


@get("/api/tenant/{tenant:str}/roll/{begins:str}")
async def roll(site: Site, tenant: str, begins: str) -> RollShape:
    """Return the projects whose names begin so."""
    projects = site.tenant(tenant).tenant.projects
    found = sorted(one.name for one in projects if one.name.startswith(begins))
    return RollShape(projects=tuple(found[:SHOWN_MAX]), more=len(found) > SHOWN_MAX)


ROUTES = (roll,)
