"""Show the current state: tenants, components, pipelines, and queues of messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from headgate.gate.state.change import Change, is_called
from headgate.map.tree import unescape
from headgate.map.workers import QueueMap
from headgate.queue.workers.progress import PartitionShape, partition_statuses, shape, workers
from headgate.rest import HttpRequest, Response, StreamResponse, get
from headgate.web import shapes
from headgate.web.answers import matches, takes_gzip
from headgate.web.peers.connections import peer_of
from headgate.web.server import HANDOVER
from headgate.web.site import Site, must_read
from headgate.web.status import timed_queue
from headgate.web.viewers.audience import Documents


@get("/health")
async def health(site: Site) -> dict[str, Any]:  # JSON
    """Return whether the configuration of every tenant has been read; only public tenants are listed."""
    loaded = {name: found.loaded.is_set() for name, found in site.tenants.items()}
    # Anybody may request the health, so it must not name private tenants; `ok` still includes them.
    shown = {name: loaded[name] for name, found in site.tenants.items() if site.access.may_read(None, found.tenant)}
    return {"ok": all(loaded.values()), "tenants": shown}


@get("/api/tenants")
async def tenants(site: Site, request: HttpRequest) -> list[shapes.TenantName]:
    """Return every tenant that the caller may read."""
    bearer = site.access.reader(request)
    return [
        shapes.TenantName(name, len(found.tenant.projects), sum(1 for _ in await site.items(name)))
        for name, found in sorted(site.tenants.items())
        if site.access.may_read(bearer, found.tenant)
    ]


@get("/api/components")
async def components(site: Site, request: HttpRequest) -> dict[str, list[shapes.ComponentShape]]:
    """Return every running component, grouped by kind."""
    must_read(site, request)
    return site.status.components()


@get(("/api/problems", "/api/troubles"), opt={"former": ("/api/troubles",)})
async def problems(site: Site, request: HttpRequest) -> list[shapes.ProblemShape]:
    """Return the problems that concern every tenant, for example an unavailable store or a missing component. Headgate
    only.
    """
    must_read(site, request)
    return list(site.problems.all())


@get("/api/connections")
async def connections(site: Site, request: HttpRequest) -> list[shapes.ConnectionShape]:
    """Return every configured connection."""
    must_read(site, request)
    return list(site.settings.connections)


@get("/api/tenant/{tenant:str}/status")
async def status(
    site: Site, documents: Documents, request: HttpRequest, tenant: str
) -> Response[shapes.StatusShape | None]:
    """Return the pipelines with their queues and items. The entity tag changes only when something happens, not with
    the passage of time; times may be one second old.
    """
    gzip = takes_gzip(request.headers.get("accept-encoding", ""))
    shot = await site.shot(tenant)
    headers = {"ETag": f'W/"{shot.tag}"', "Cache-Control": "no-cache", "Vary": "Authorization, Cookie, Accept-Encoding"}
    # Compared before the document is encoded, as nothing has changed for most polls.
    if matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(None, status_code=304, headers=headers)
    if gzip:
        headers["Content-Encoding"] = "gzip"
    body: Any = await documents.of(tenant, shot, gzip=gzip)
    return Response(body, media_type="application/json", headers=headers)


@get("/api/tenant/{tenant:str}/status/change/{rest:path}", opt={"rest": ("{change}",)})
async def status_change(site: Site, tenant: str, rest: str) -> list[shapes.ItemShape]:
    """Return the items of one change, given by any of its names: `NAME` or `BRANCH/NAME`, optionally with `,PATCHSET`,
    or its ref or commit."""
    name = rest.strip("/")
    keys = {c.key for c in _changes(site, tenant) if name in (c.ref, c.commit) or is_called(c, name)}
    now_ms, status = site.context.now_ms(), (await site.shot(tenant)).status

    def of(queue: shapes.QueueShape) -> list[shapes.ItemShape]:
        return [i for head in queue.heads for i in head if any(ref.key in keys for ref in i.refs)]

    # The times of an item depend on the items ahead of it, so compute them for complete queues.
    queues = [queue for pipeline in status.pipelines for queue in pipeline.change_queues if of(queue)]
    return [item for queue in queues for item in of(timed_queue(queue, now_ms))]


def _changes(site: Site, tenant: str) -> Iterator[Change]:
    """Yield the changes in the queues."""
    for pipeline in site.tenant(tenant).layouts.landed.pipelines:
        for _, item in site.status.state(tenant, pipeline).state.items():
            yield from item.circle


@get("/api/tenant/{tenant:str}/events", opt={"answers": ("text/event-stream",)})
async def events(site: Site, request: HttpRequest, tenant: str) -> StreamResponse:
    """Stream the status as server-sent events. Each event `status` has all queues with the ids of their items, and the
    items that have changed since the previous event.
    """
    site.tenant(tenant)
    gzip = takes_gzip(request.headers.get("accept-encoding", ""))
    # Without X-Accel-Buffering, nginx would hold back events until its buffer is full.
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Vary": "Authorization, Cookie, Accept-Encoding"}
    if gzip:
        headers["Content-Encoding"] = "gzip"
    # With this, the viewer can be handed over to the process that serves streams.
    take = cast(Any, request.scope.get("extensions") or {}).get(HANDOVER)
    peer = peer_of(request.client.host if request.client else "")
    body = site.audience.stream(tenant, site.access.reader(request), peer, take, gzip=gzip)
    return StreamResponse(body, media_type="text/event-stream", headers=headers)


@get("/api/tenant/{tenant:str}/semaphores")
async def semaphores(site: Site, tenant: str) -> list[shapes.SemaphoreShape]:
    """Return the semaphores and their holders."""
    site.tenant(tenant)
    return site.status.semaphores(tenant)


class WorkerShape(msgspec.Struct, frozen=True):
    worker: str
    host: str
    """Host and process."""
    queues: tuple[str, ...]
    """Partitions that it processes."""


class ApplicationShape(msgspec.Struct, frozen=True):
    application: str
    workers: list[WorkerShape]
    partitions: list[PartitionShape]


@get("/api/queues")
async def queues(site: Site, request: HttpRequest) -> list[ApplicationShape]:
    """Return every application of the message queues with its workers and the current state of its partitions."""
    must_read(site, request)
    root = QueueMap()
    entries = await site.context.store.list(root.path)
    names = sorted({unescape(entry.path[len(root.path) + 1 :].split("/")[0]) for entry in entries})
    found = []
    for name in names:
        app = root.app(name)
        by, known = workers(app, entries), partition_statuses(app, entries)
        found.append(
            ApplicationShape(
                name,
                [WorkerShape(worker, record.name, record.queues) for worker, record in sorted(by.items())],
                [shape(partition, known[partition], by, known=True) for partition in sorted(known)],
            )
        )
    return found


ROUTES = (health, tenants, components, problems, connections, status, status_change, events, semaphores, queues)
