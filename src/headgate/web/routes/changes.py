"""Show the proposed changes, and when one of them will land."""

from __future__ import annotations

import asyncio

from headgate.ports.history import LIMIT_MAX, HistoryQuery, HistoryUnavailable
from headgate.rest import HTTPException, HttpRequest, get
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.outlook import ChangeShape, Outlook, ProposedShape
from headgate.web.places import ItemPlaces
from headgate.web.routes.history import number
from headgate.web.site import Site

LATELY_MS = 30 * 86_400_000
COSTS_MS = 60_000
"""Cache time of the recent costs of changes: pages ask every ten seconds, and the query counts a month."""
AT_ONCE = 20
"""Number of changes that are examined before other tasks have a turn."""


async def _outlook(site: Site, tenant: str) -> Outlook:
    shot = await site.shot(tenant)
    if shot.places is None:
        # Kept with the status it was made of, so that all who ask about this status share it.
        shot.places = ItemPlaces(shot.status)
    return Outlook(site, tenant, shot.places)


@get(
    "/api/tenant/{tenant:str}/changes",
    opt={
        "query": (
            QueryParameter("project", "Its name; without it the open changes of all projects."),
            QueryParameter("limit", "At most so many; 50.", NUMBER),
            QueryParameter("skip", schema=NUMBER),
        )
    },
)
async def changes(site: Site, request: HttpRequest, tenant: str) -> list[ProposedShape]:
    """Return the open changes, ordered by project and name, with the requirements that each does not meet yet. Headgate
    only.
    """
    name, limit, skip = (
        request.query.get("project", ""),
        number(request, "limit", 50),
        number(request, "skip", 0),
    )
    if limit > LIMIT_MAX:
        raise HTTPException(f"limit is at most {LIMIT_MAX}", status_code=400)
    project = site.project(tenant, name) if name else ""
    outlook = await _outlook(site, tenant)
    found = sorted(outlook.open(project), key=lambda one: (one.change.project, one.change.branch, one.change.name))
    listed = list[ProposedShape]()
    for count, one in enumerate(found[skip:][:limit], 1):
        listed.append(outlook.listed(one))
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)  # a gate is at work in the same process
    return listed


@get(
    "/api/tenant/{tenant:str}/change",
    opt={
        "query": (
            QueryParameter("project", "Its name."),
            QueryParameter(
                "change", "As a change is named anywhere: `NAME` or `BRANCH/NAME`, either with `,PATCHSET`."
            ),
        )
    },
)
async def change(site: Site, request: HttpRequest, tenant: str) -> ChangeShape:
    """Return one change that is open or has landed: where it is, when it will land, what it needs and which
    requirements it does not meet. Headgate only.
    """
    project, name = (request.query.get(key, "") for key in ("project", "change"))
    if not project or not name:
        raise HTTPException("say which: project and change", status_code=400)
    site.tenant(tenant)
    found = site.change(tenant, project, name)
    return (await _outlook(site, tenant)).of(found, await _costs(site, tenant, found.project))


async def _costs(site: Site, tenant: str, project: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (project, pipeline) -> buildsets and resets; nothing where the history cannot be read."""
    now_ms = site.context.now_ms()
    known = site.costs.get((tenant, project))
    failed = known is not None and known[1].done() and known[1].exception() is not None
    if known is None or failed or not 0 <= now_ms - known[0] < COSTS_MS:
        asking = asyncio.ensure_future(_costs_of(site, tenant, project, now_ms - LATELY_MS))
        known = site.costs[tenant, project] = now_ms, asking
    # All who ask meanwhile share the query, so one of them who leaves must not cancel it.
    return await asyncio.shield(known[1])


async def _costs_of(site: Site, tenant: str, project: str, since_ms: int) -> dict[tuple[str, str], tuple[int, int]]:
    try:
        costs = await site.history.reset_costs(tenant, HistoryQuery({"project": [project]}), since_ms)
    except HistoryUnavailable:
        return {}
    return {(one.project, one.pipeline): (one.buildsets, one.resets) for one in costs}


ROUTES = (changes, change)
