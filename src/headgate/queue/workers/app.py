"""Answer for a queue worker: whether it is well, its figures and, to whoever has its key, changes of its partitions."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec
from prometheus_client import generate_latest

from headgate.map.workers import Control
from headgate.queue.workers.control import steer
from headgate.queue.workers.storeless import LeaseWorker
from headgate.queue.workers.worker import QueueWorker
from headgate.queueing.ids import parse_last
from headgate.queueing.lanes import Lane, parse_lane
from headgate.rest import AppState, HttpRequest, Response, WebApplication, get, post
from headgate.store.types import StoreError

Worker = QueueWorker | LeaseWorker
NEEDED = "the application's key is needed: Authorization: Application KEY; without one, the operator's token as Bearer"


class PartitionChange(msgspec.Struct, frozen=True):
    """Request a change of one partition; what is missing stays."""

    lane: str
    paused: bool | None = None
    seek: str | None = None


def _worker(state: AppState) -> Worker:
    worker = state["worker"]
    assert isinstance(worker, QueueWorker | LeaseWorker), "set by create_worker_app"
    return worker


@get("/health")
async def health(state: AppState) -> Response[dict[str, Any]]:  # JSON
    """Return 200 once the worker is among the workers and its session holds, or, if it has no store, while the message
    server answers; else 503."""
    worker = _worker(state)
    if isinstance(worker, LeaseWorker):
        well, name, lanes = worker.well, worker.name, worker.lanes
    else:
        sharing = worker.sharing
        well = sharing is not None and bool(sharing.name) and not sharing.session.lost.is_set()
        lanes = [str(runner.lane) for runner in sharing.owned()] if sharing is not None else []
        name = sharing.name if sharing else ""
    shown = {"status": "ok" if well else "joining", "worker": name, "lanes": lanes}
    return Response(shown, status_code=200 if well else 503)


@get("/metrics")
async def metrics(state: AppState, request: HttpRequest) -> Response[Any]:  # figures, or why there are none
    """Return the figures of the worker.  They name queues, so they are only for whoever has the key."""
    if not _knows_the_key(state, request):
        return _refused(401, NEEDED)
    worker = _worker(state)
    figures = worker.figures if isinstance(worker, LeaseWorker) else worker.processor.figures
    text = generate_latest(figures.registry)
    return Response(text, media_type="text/plain; version=0.0.4")


@post("/control", status_code=200)
async def control(state: AppState, request: HttpRequest) -> Response[dict[str, Any]]:  # JSON
    """Pause, resume or seek a partition, for stores that one process owns: whoever wants that asks this process."""
    worker = _worker(state)
    if not _knows_the_key(state, request):
        return _refused(401, NEEDED)
    if isinstance(worker, LeaseWorker):
        return _refused(404, "this worker leases its partitions; the message server keeps how far it is")
    try:
        wanted = msgspec.json.decode(await request.body(), type=PartitionChange)
        lane: Lane = parse_lane(wanted.lane)
        parse_last(wanted.seek or "")
    except (ValueError, RecursionError) as error:
        return _refused(400, str(error))
    try:
        now: Control = await steer(worker.store, worker.app, lane, paused=wanted.paused, seek=wanted.seek)
    except LookupError as error:
        return _refused(404, str(error))
    except StoreError as error:
        return _refused(503, str(error))
    return Response({"status": "ok", "lane": str(lane), "paused": now.paused, "seek": now.seek})


def _refused(status: int, why: str) -> Response[dict[str, Any]]:  # JSON
    return Response({"status": "error", "error_msg": why}, status_code=status)


def _knows_the_key(state: AppState, request: HttpRequest) -> bool:
    said: str = state["credential"]
    return bool(said) and hmac.compare_digest(request.headers.get("authorization", "").encode(), said.encode())


def create_worker_app(worker: Worker, key: str, token: str = "") -> WebApplication:
    """Return the application of a worker.  `key`: of its application; if empty, the operator's token is needed."""
    state = AppState(
        {"worker": worker, "credential": f"Application {key}" if key else f"Bearer {token}" if token else ""}
    )
    return WebApplication([health, metrics, control], state)
