"""The ASGI application: REST under /api, live status and logs, pages."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response, WebSocket, get, post, websocket
from litestar.datastructures import State as AppState
from litestar.exceptions import HTTPException, NotFoundException, WebSocketDisconnect
from litestar.response import File, Redirect, ServerSentEvent

from headgate import __version__
from headgate.adapters.sql.history import FILTERS, LIMIT_MAX, SqlHistory
from headgate.base.ids import fresh
from headgate.gate.work import Dequeue, Enqueue, Promote
from headgate.services.context import Context
from headgate.services.scheduler.scheduler import Scheduler
from headgate.web.site import Follow, Site, Wanted, site_of

STATIC = Path(__file__).parent / "static"
EVENT_INTERVAL_S = 0.1
"""Between two pushes of the status to one page, at least."""
PING_INTERVAL_S = 20.0
FIRST_MESSAGE_TIMEOUT_S = 10.0
PAGES = ("status", "builds", "build", "buildset")


@get("/health")
async def health(state: AppState) -> dict[str, Any]:
    loaded = {name: runner.loaded.is_set() for name, runner in site_of(state).scheduler.tenants.items()}
    return {"ok": all(loaded.values()), "tenants": loaded}


@get("/api/info")
async def info() -> dict[str, Any]:
    capabilities = {"job_history": True, "auth": {"realms": {}, "read_protected": False}}
    return {"info": {"capabilities": capabilities, "version": __version__, "websocket_url": None}}


@get("/api/tenants")
async def tenants(state: AppState) -> list[dict[str, str]]:
    return [{"name": name} for name in site_of(state).status.tenants()]


@get("/api/components")
async def components(state: AppState) -> dict[str, Any]:
    return site_of(state).status.components()


@get("/api/tenant/{tenant:str}/status")
async def status(state: AppState, request: Request[Any, Any, Any], tenant: str) -> Response[bytes]:
    body = site_of(state).encoded(tenant)
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers={"ETag": tag})
    return Response(body, media_type="application/json", headers={"ETag": tag, "Cache-Control": "no-cache"})


@get("/api/tenant/{tenant:str}/status/change/{id:str}")
async def status_change(state: AppState, tenant: str, id: str) -> list[dict[str, Any]]:
    whole = site_of(state).status.of(site_of(state).tenant(tenant)) or {}
    items = (i for p in whole["pipelines"] for q in p["change_queues"] for head in q["heads"] for i in head)
    return [item for item in items if id in (item["refs"][0]["id"], item["refs"][0]["topic"])]


@get("/api/tenant/{tenant:str}/events")
async def events(state: AppState, tenant: str) -> ServerSentEvent:
    site = site_of(state)
    site.tenant(tenant)

    async def moves() -> AsyncIterator[dict[str, str]]:
        last = b""
        while True:
            seen = site.context.mirror.moves
            body = site.encoded(tenant)
            if body != last:
                last = body
                yield {"event": "status", "data": body.decode()}
            await site.context.mirror.moved(seen)
            await asyncio.sleep(EVENT_INTERVAL_S)

    return ServerSentEvent(moves())


def _filters(request: Request[Any, Any, Any]) -> tuple[dict[str, str], int, int]:
    query = request.query_params
    wanted = {k: query[k] for k in (*FILTERS, "uuid", "job_name", "result") if query.get(k)}
    try:
        limit, skip = int(query.get("limit", 50)), int(query.get("skip", 0))
    except ValueError:
        limit = skip = -1
    if not (0 <= limit <= LIMIT_MAX and 0 <= skip < 1 << 31):
        raise HTTPException(f"limit is a whole number to {LIMIT_MAX}, skip one of at least 0", status_code=400)
    return wanted, limit, skip


@get("/api/tenant/{tenant:str}/builds")
async def builds(state: AppState, request: Request[Any, Any, Any], tenant: str) -> list[dict[str, Any]]:
    wanted, limit, skip = _filters(request)
    site = site_of(state)
    return await site.history.builds(site.tenant(tenant), site.canonical(tenant, wanted), limit=limit, skip=skip)


@get("/api/tenant/{tenant:str}/build/{uuid:str}")
async def build(state: AppState, tenant: str, uuid: str) -> dict[str, Any]:
    site = site_of(state)
    found = await site.history.build(site.tenant(tenant), uuid) or _running_build(site, tenant, uuid)
    if found is None:
        raise NotFoundException(f"there is no build {uuid}")
    return found


def _running_build(site: Site, tenant: str, uuid: str) -> dict[str, Any] | None:
    whole = site.status.of(tenant) or {}
    for pipeline in whole["pipelines"]:
        for item in (i for q in pipeline["change_queues"] for head in q["heads"] for i in head):
            for job in item["jobs"]:
                if job["uuid"] == uuid:
                    ref = {**item["refs"][0], "change": item["refs"][0]["topic"]}
                    buildset = {"uuid": item["zuul_ref"]}
                    shown = {
                        "job_name": job["name"],
                        "final": False,
                        "pipeline": pipeline["name"],
                        "buildset": buildset,
                    }
                    return {**job, **shown, "ref": ref, "start_time": None, "end_time": None, "duration": None}
    return None


@get("/api/tenant/{tenant:str}/buildsets")
async def buildsets(state: AppState, request: Request[Any, Any, Any], tenant: str) -> list[dict[str, Any]]:
    wanted, limit, skip = _filters(request)
    site = site_of(state)
    return await site.history.buildsets(site.tenant(tenant), site.canonical(tenant, wanted), limit=limit, skip=skip)


@get("/api/tenant/{tenant:str}/buildset/{uuid:str}")
async def buildset(state: AppState, tenant: str, uuid: str) -> dict[str, Any]:
    found = await site_of(state).history.buildset(site_of(state).tenant(tenant), uuid)
    if found is None:
        raise NotFoundException(f"there is no buildset {uuid} in the history (yet)")
    return found


@get("/api/tenant/{tenant:str}/config-errors")
async def config_errors(state: AppState, tenant: str) -> list[dict[str, Any]]:
    layout = site_of(state).scheduler.tenants[site_of(state).tenant(tenant)].layouts.landed
    return [
        {
            "source_context": {"project": e.project, "branch": e.branch, "path": e.path, "line": e.line},
            "error": e.render(),
            "short_error": e.text,
            "severity": e.severity,
            "name": e.name,
        }
        for e in layout.errors
    ]


@get("/api/tenant/{tenant:str}/pipelines")
async def pipelines(state: AppState, tenant: str) -> list[dict[str, Any]]:
    layout = site_of(state).scheduler.tenants[site_of(state).tenant(tenant)].layouts.landed
    return [{"name": n, "manager": p.manager, "description": p.description} for n, p in layout.pipelines.items()]


@get("/api/tenant/{tenant:str}/jobs")
async def jobs(state: AppState, tenant: str) -> list[dict[str, Any]]:
    layout = site_of(state).scheduler.tenants[site_of(state).tenant(tenant)].layouts.landed
    return [
        {
            "name": n,
            "description": s[0].body.get("description", ""),
            "variants": [{"parent": v.body.get("parent")} for v in s],
        }
        for n, s in layout.jobs.items()
        if s
    ]


@get("/api/tenant/{tenant:str}/projects")
async def projects(state: AppState, tenant: str) -> list[dict[str, Any]]:
    found = site_of(state).scheduler.tenants[site_of(state).tenant(tenant)].tenant.projects
    return [
        {
            "name": p.name,
            "connection_name": p.connection,
            "canonical_name": p.project,
            "type": "config" if p.trusted else "untrusted",
        }
        for p in found
    ]


@get("/api/tenant/{tenant:str}/semaphores")
async def semaphores(state: AppState, tenant: str) -> list[dict[str, Any]]:
    return site_of(state).status.semaphores(site_of(state).tenant(tenant))


@get("/api/tenant/{tenant:str}/pipeline/{pipeline:str}/project/{rest:path}")
async def freeze_jobs(state: AppState, tenant: str, pipeline: str, rest: str) -> list[dict[str, Any]]:
    """`rest` is `<project>/branch/<branch>/freeze-jobs`; both names may hold slashes."""
    project, _, tail = rest.strip("/").partition("/branch/")
    branch, _, verb = tail.rpartition("/")
    if verb != "freeze-jobs":
        raise NotFoundException("what can be asked of a project in a pipeline is .../branch/<branch>/freeze-jobs")
    site = site_of(state)
    runner = site.scheduler.tenants[site.tenant(tenant)]
    source = runner.tenant.find(project)
    if source is None:
        raise NotFoundException(f"tenant {tenant} has no project {project!r}")
    if pipeline not in runner.layouts.landed.pipelines:
        raise NotFoundException(f"tenant {tenant} has no pipeline {pipeline!r}")
    graph = runner.layouts.landed.freeze(pipeline, source.project, branch)
    return [
        {"name": j.name, "dependencies": [{"name": d.name, "soft": d.soft} for d in j.dependencies]} for j in graph.jobs
    ]


@post("/api/tenant/{tenant:str}/project/{rest:path}", status_code=200)
async def control(state: AppState, request: Request[Any, Any, Any], tenant: str, rest: str, data: Wanted) -> bool:
    """`rest` is `<project>/enqueue` or `<project>/dequeue`; a project's name may hold slashes."""
    site = site_of(state)
    site.allow(request)
    project, _, verb = rest.strip("/").rpartition("/")
    change = site.find(tenant, project, data.change)
    if verb == "enqueue":
        await site.ask(tenant, data.pipeline, Enqueue(change, fresh()))
    elif verb == "dequeue":
        await site.ask(tenant, data.pipeline, Dequeue(change.key))
    else:
        raise NotFoundException(f"{verb!r} is not known; there are enqueue and dequeue")
    return True


@post("/api/tenant/{tenant:str}/promote", status_code=200)
async def promote(state: AppState, request: Request[Any, Any, Any], tenant: str, data: Wanted) -> bool:
    site = site_of(state)
    site.allow(request)
    await site.ask(site.tenant(tenant), data.pipeline, Promote(tuple(data.changes), fresh()))
    return True


@get("/logs/{path:path}")
async def logs(state: AppState, path: str) -> File:
    root = site_of(state).log_root.resolve()
    file = (root / path.lstrip("/")).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        raise NotFoundException("there is no such log")
    return File(file, content_disposition_type="inline", media_type="text/plain; charset=utf-8")


@websocket("/api/tenant/{tenant:str}/console-stream")
async def console(socket: WebSocket[Any, Any, Any], state: AppState, tenant: str) -> None:
    """The client names a build; its log is sent as it is written, then the connection is closed."""
    site = site_of(state)
    await socket.accept()
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            wanted = json.loads(await socket.receive_text())
        uuid = str(wanted["uuid"])
    except (TimeoutError, ValueError, KeyError, TypeError):
        await socket.close(4000, 'say which build: {"uuid": ...}')
        return
    except WebSocketDisconnect:
        return
    path = site.log_root / uuid / "job-output.txt"
    if tenant not in site.scheduler.tenants:
        await socket.close(4011, f"there is no tenant {tenant}")
        return
    if not uuid.isalnum() or not (path.exists() or _running_build(site, tenant, uuid)):
        await socket.close(4011, f"there is no log of build {uuid}")
        return

    def finished() -> bool:
        return site.context.mirror.get(f"{site.context.map.executor.unzoned.requests.path}/{uuid}") is None

    text = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        async for chunk in site.follow(path, finished, 0):
            await socket.send_text(text.decode(chunk))
        await socket.close(1000)
    except WebSocketDisconnect:
        return


@get("/")
async def index(state: AppState) -> Redirect | File:
    names = site_of(state).status.tenants()
    return Redirect(f"/t/{names[0]}/status") if len(names) == 1 else _page("tenants.html")


@get(["/t/{tenant:str}/{page:str}", "/t/{tenant:str}/{page:str}/{uuid:str}"])
async def page(state: AppState, tenant: str, page: str, uuid: str = "") -> File:
    site_of(state).tenant(tenant)
    if page not in PAGES:
        raise NotFoundException(f"there is no page {page!r}")
    return _page(f"{page}.html")


@get("/static/{name:str}")
async def static(name: str) -> File:
    return _page(name)


_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _page(name: str) -> File:
    file = (STATIC / name).resolve()
    if not file.is_relative_to(STATIC) or not file.is_file():
        raise NotFoundException(f"there is no {name}")
    return File(
        file, content_disposition_type="inline", media_type=f"{_TYPES.get(file.suffix, 'text/plain')}; charset=utf-8"
    )


def create_app(
    context: Context, scheduler: Scheduler, history: SqlHistory, log_root: Path, token: str, follow: Follow
) -> Litestar:
    """The application; it keeps nothing of its own."""
    routes = [
        health, info, tenants, components, status, status_change, events, builds, build, buildsets, buildset,
        config_errors, pipelines, jobs, projects, semaphores, freeze_jobs, control, promote, logs, console, index, page,
        static,
    ]  # fmt: skip
    site = Site(context, scheduler, history, log_root, token, follow)
    headers = {"Access-Control-Allow-Origin": "*"}
    return Litestar(
        routes, state=AppState({"site": site}), response_headers=headers, openapi_config=None, logging_config=None
    )
