"""What is going on now: tenants, queues, processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from litestar import Response, get
from litestar.datastructures import State
from litestar.params import FromPath
from litestar.response import ServerSentEvent, ServerSentEventMessage

from headgate.gate.change import Change, is_called
from headgate.web.shapes import (
    ComponentShape,
    ConnectionShape,
    ItemShape,
    SemaphoreShape,
    StatusShape,
    TenantName,
    TroubleShape,
)
from headgate.web.site import HttpRequest, Site, must_read, site_of
from headgate.web.status import timed

EVENT_INTERVAL_S = 0.1
"""Between two pushes of the status to one page, at least."""
LOOK_INTERVAL_S = 3.0
"""Whether the store can be reached is looked at; nothing is asked of it."""
PING_INTERVAL_S = 45.0
"""Between two signs of life to a page that nothing happens to: proxies close what is silent for a minute."""


@get("/health")
async def health(state: State) -> dict[str, Any]:  # JSON
    """Whether every tenant's configuration has been read; those are named that are for everybody."""
    site = site_of(state)
    loaded = {name: found.loaded.is_set() for name, found in site.tenants.items()}
    shown = {name: loaded[name] for name, found in site.tenants.items() if site.access.may_read(None, found.tenant)}
    return {"ok": all(loaded.values()), "tenants": shown}


@get("/api/tenants")
async def tenants(state: State, request: HttpRequest) -> list[TenantName]:
    """Every tenant that whoever asks may read."""
    site = site_of(state)
    bearer = site.access.reader(request)
    return [
        TenantName(name, len(found.tenant.projects), sum(1 for _ in await site.items(name)))
        for name, found in sorted(site.tenants.items())
        if site.access.may_read(bearer, found.tenant)
    ]


@get("/api/components")
async def components(state: State, request: HttpRequest) -> dict[str, list[ComponentShape]]:
    """Every process that takes part, by kind."""
    must_read(site_of(state), request)
    return site_of(state).status.components()


@get("/api/troubles")
async def troubles(state: State, request: HttpRequest) -> list[TroubleShape]:
    """What is wrong for every tenant: the store cannot be used, or nobody is there to do the work.  Ours."""
    must_read(site_of(state), request)
    return list(site_of(state).troubles())


@get("/api/connections")
async def connections(state: State, request: HttpRequest) -> list[ConnectionShape]:
    """Every configured connection."""
    must_read(site_of(state), request)
    return list(site_of(state).connections)


@get("/api/tenant/{tenant:str}/status")
async def status(state: State, request: HttpRequest, tenant: FromPath[str]) -> Response[StatusShape | None]:
    """The queues.  The entity tag changes when something happens, not as time goes by."""
    site = site_of(state)
    shot = await site.shot(tenant)
    headers = {"ETag": f'"{shot.tag}"', "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(None, status_code=304, headers=headers)
    return Response(timed(shot.status, site.context.now_ms()), headers=headers)


@get("/api/tenant/{tenant:str}/status/change/{rest:path}", opt={"rest": ("{change}",)})
async def status_change(state: State, tenant: FromPath[str], rest: FromPath[str]) -> list[ItemShape]:
    """The items of one change, as it is named anywhere: `NAME` or `BRANCH/NAME`, either with `,PATCHSET`, or by its ref
    or commit."""
    site, said = site_of(state), rest.strip("/")
    meant = {c.key for c in _changes(site, tenant) if said in (c.ref, c.commit) or is_called(c, said)}
    whole = timed((await site.shot(tenant)).status, site.context.now_ms())
    items = (i for p in whole.pipelines for q in p.change_queues for head in q.heads for i in head)
    return [item for item in items if any(ref.key in meant for ref in item.refs)]


def _changes(site: Site, tenant: str) -> Iterator[Change]:
    """Yield what is in the queues."""
    for pipeline in site.tenant(tenant).layouts.landed.pipelines:
        for _, item in site.status.state(tenant, pipeline).state.items():
            yield from item.whole


@get("/api/tenant/{tenant:str}/events", raises=[], opt={"answers": ("text/event-stream",)})
async def events(state: State, request: HttpRequest, tenant: FromPath[str]) -> ServerSentEvent:
    """The queues as server-sent events: `status` has the queues with ids of items, and those items that changed."""
    site = site_of(state)
    site.tenant(tenant)
    bearer = site.access.reader(request)

    async def moves() -> AsyncIterator[ServerSentEventMessage]:
        sent: dict[str, ItemShape] = {}
        mirror, tag, silent_s = site.context.mirror, "", 0.0
        while True:
            seen = mirror.moves
            if not site.access.still(bearer, site.tenant(tenant).tenant, site.context.now_ms()):
                return
            shot = await site.shot(tenant)
            if shot.tag != tag:
                tag, before, silent_s = shot.tag, sent, 0.0
                body, sent = difference(shot.status, before, site.context.now_ms())
                yield ServerSentEventMessage(event="status", data=body.decode())
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await mirror.moved(seen)
            except TimeoutError:
                silent_s += LOOK_INTERVAL_S
            if silent_s >= PING_INTERVAL_S:
                silent_s = 0.0
                yield ServerSentEventMessage(comment="still here")
            await asyncio.sleep(EVENT_INTERVAL_S)

    return ServerSentEvent(moves())


def difference(status: StatusShape, sent: dict[str, ItemShape], now_ms: int) -> tuple[bytes, dict[str, ItemShape]]:
    """The status with ids in place of items, and beside it those items that are not as they were sent; and what a
    page then has.  `now` tells a page whose clock is wrong."""
    items: dict[str, ItemShape] = {}
    pipelines = []
    for pipeline in status.pipelines:
        queues = []
        for queue in pipeline.change_queues:
            items |= {item.id: item for head in queue.heads for item in head}
            heads = [[item.id for item in head] for head in queue.heads]
            queues.append({**msgspec.structs.asdict(queue), "heads": heads})
        pipelines.append({**msgspec.structs.asdict(pipeline), "change_queues": queues})
    fresh = {id: item for id, item in items.items() if sent.get(id) != item}
    shown = {**msgspec.structs.asdict(status), "pipelines": pipelines}
    return msgspec.json.encode({"now": now_ms, "status": shown, "items": fresh}), items


@get("/api/tenant/{tenant:str}/semaphores")
async def semaphores(state: State, tenant: FromPath[str]) -> list[SemaphoreShape]:
    """Semaphores, and who holds them."""
    site_of(state).tenant(tenant)
    return site_of(state).status.semaphores(tenant)


ROUTES = (
    health, tenants, components, troubles, connections, status, status_change, events, semaphores,
)  # fmt: skip
