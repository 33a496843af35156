"""Answer requests to a queue worker: its health, its metrics and, for callers with its key, changes of its
partitions."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import generate_latest

from headgate.map.workers import Control
from headgate.queue.workers.control import steer
from headgate.queue.workers.storeless import LeaseWorker
from headgate.queue.workers.worker import QueueWorker
from headgate.queueing.ids import parse_last
from headgate.queueing.partitions import QueuePartition, parse_partition
from headgate.rest import HttpRequest, Response, WebApplication, get, post
from headgate.store.types import StoreError

Worker = QueueWorker | LeaseWorker
NEEDED = "the application's key is needed: Authorization: Application KEY; without one, the operator's token as Bearer"


class PartitionChange(msgspec.Struct, frozen=True):
    """Request a change of one partition; missing fields stay unchanged."""

    partition: str = msgspec.field(name="lane")
    paused: bool | None = None
    seek: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerSite:
    """Hold what the handlers work with: the worker, and the header that callers must send to see its metrics and
    steer it."""

    worker: Worker
    credential: str
    """Value of the required header; empty: no caller is allowed."""

    def knows_the_key(self, request: HttpRequest) -> bool:
        presented = request.headers.get("authorization", "")
        # Without a credential nobody is let in: an empty header would otherwise equal it.
        return bool(self.credential) and hmac.compare_digest(presented.encode(), self.credential.encode())


@get("/health")
async def health(site: WorkerSite) -> Response[dict[str, Any]]:  # JSON
    """Return 200 while the worker is a member and its session with the store holds or, for a worker without a store,
    while the message server answers; otherwise 503.
    """
    worker = site.worker
    if isinstance(worker, LeaseWorker):
        well, name, partitions = worker.well, worker.name, worker.partitions
    else:
        sharing = worker.sharing
        well = sharing is not None and bool(sharing.name) and not sharing.session.lost.is_set()
        partitions = [str(runner.partition) for runner in sharing.owned()] if sharing is not None else []
        name = sharing.name if sharing else ""
    shown = {"status": "ok" if well else "joining", "worker": name, "lanes": partitions}
    return Response(shown, status_code=200 if well else 503)


@get("/metrics")
async def metrics(site: WorkerSite, request: HttpRequest) -> Response[Any]:  # metrics, or an error
    """Return the worker's metrics. They contain names of queues, so the caller needs the application's key."""
    if not site.knows_the_key(request):
        return _refused(401, NEEDED)
    worker = site.worker
    figures = worker.figures if isinstance(worker, LeaseWorker) else worker.processor.figures
    text = generate_latest(figures.registry)
    return Response(text, media_type="text/plain; version=0.0.4")


@post("/control", status_code=200)
async def control(site: WorkerSite, request: HttpRequest) -> Response[dict[str, Any]]:  # JSON
    """Pause, resume or seek a partition. If only this process can open the store, this is the only way to do so."""
    worker = site.worker
    if not site.knows_the_key(request):
        return _refused(401, NEEDED)
    if isinstance(worker, LeaseWorker):
        return _refused(404, "this worker leases its partitions; the message server keeps how far it is")
    try:
        wanted = msgspec.json.decode(await request.body(), type=PartitionChange)
        partition: QueuePartition = parse_partition(wanted.partition)
        # Checked here, where somebody can be told: the owner could only log it and drop the request.
        parse_last(wanted.seek or "")
    except (ValueError, RecursionError) as error:
        return _refused(400, str(error))
    try:
        now: Control = await steer(worker.store, worker.app, partition, paused=wanted.paused, seek=wanted.seek)
    except LookupError as error:
        return _refused(404, str(error))
    except StoreError as error:
        return _refused(503, str(error))
    return Response({"status": "ok", "lane": str(partition), "paused": now.paused, "seek": now.seek})


def _refused(status: int, why: str) -> Response[dict[str, Any]]:  # JSON
    return Response({"status": "error", "error_msg": why}, status_code=status)


def create_worker_app(worker: Worker, key: str, token: str = "") -> WebApplication:
    """Return the application of a worker.  `key`: of its application; if empty, the operator's token is needed."""
    credential = f"Application {key}" if key else f"Bearer {token}" if token else ""
    return WebApplication([health, metrics, control], [WorkerSite(worker, credential)])
