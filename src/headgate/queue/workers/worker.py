"""Run a queue worker, and answer requests about it: health, metrics, and the steering of partitions."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import generate_latest

from headgate.base.tasks import run_until, unless
from headgate.map.workers import Application, Control
from headgate.ports.messages import NoStream, QueueGone, SourceDown
from headgate.queue.workers.calls import JobExit, Stuck, log
from headgate.queue.workers.discovery import DiscoveryTurn, discover
from headgate.queue.workers.processor import MessageProcessor
from headgate.queue.workers.progress import steer
from headgate.queue.workers.shares import PartitionSharing, WorkerFacts, WorkerScope
from headgate.queue.workers.storeless import LeaseWorker
from headgate.queueing import progress as steps
from headgate.queueing.ids import parse_last
from headgate.queueing.message import StopWorker
from headgate.queueing.partitions import QueuePartition, parse_partition
from headgate.recipes.mirror import Mirror
from headgate.rest import HttpRequest, Response, WebApplication, get, post
from headgate.store.store import TTL_S, GuardLost, Session, Store
from headgate.store.types import SessionLost, StoreError, Unavailable

RETRY_MAX_S = 5.0
NAMES_MAX = 20
"""Limit on the names from lost sessions that a worker remembers."""

KEY_NEEDED = (
    "send the application's key (Authorization: Application KEY) or, if it has none, the operator's token as Bearer"
)


@dataclass(slots=True)
class QueueWorker:
    """Share the partitions of an application with its other workers, and process them. Call `run` once; setting
    `abort` after `stop` abandons what still runs."""

    processor: MessageProcessor
    store: Store
    app: Application
    host: str
    choice: WorkerScope = field(default_factory=WorkerScope)
    ttl_s: float = TTL_S
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    sharing: PartitionSharing | None = None
    """Sharing in the current session; None: there is no session."""
    was: tuple[str, ...] = ()
    """Names of this worker in its last lost sessions."""

    async def run(self, stop: asyncio.Event, url: str = "") -> None:
        """Run until `stop` or StopWorker. After a lost session, begin a new one. `url`: where commands reach this
        worker. Raise JobExit or Stuck."""
        while not stop.is_set():
            try:
                async with self.store.session(f"queue-worker@{self.host}", ttl_s=self.ttl_s, stop=stop) as session:
                    await self._live(session, stop, url)
                    return
            # Its partitions went with the session; with the next one, it takes a share again.
            except (SessionLost, GuardLost) as lost:
                log.warning("%s; joining again", lost)
                self._remember()
            except Unavailable as error:
                log.warning("the store does not answer (%s); trying again", error)
                self._remember()
                await unless(stop, asyncio.sleep(1.0))

    def _remember(self) -> None:
        """Remember this name: jobs that ran under it may still run, because the process lives on."""
        if self.sharing is not None and self.sharing.name not in ("", *self.was):
            self.was = (*self.was, self.sharing.name)[-NAMES_MAX:]

    async def _live(self, session: Session, stop: asyncio.Event, url: str) -> None:
        mirror, ended, turn = Mirror(self.store, self.app.path), asyncio.Event(), DiscoveryTurn()
        facts = WorkerFacts(self.host, self.choice, url, self.was)
        sharing = PartitionSharing(self.processor, self.store, session, self.app, mirror, turn, facts)
        self.sharing = sharing
        await run_until(
            ended,
            mirror.run(),
            self._share(sharing, stop, ended),
            self._listen(sharing, turn),
            self._measure(sharing),
            discover(self.processor, self.store, self.app, mirror, turn),
        )

    async def _share(self, sharing: PartitionSharing, stop: asyncio.Event, ended: asyncio.Event) -> None:
        failure: JobExit | Stuck | None = None
        try:
            await sharing.join()
            try:
                await run_until(stop, sharing.run())
            except StopWorker as why:
                log.info("a job asked the worker to stop: %s", why)
            except (JobExit, Stuck) as error:
                failure = error
            await unless(self.abort, sharing.leave(self.processor.pace.drain_s))
        finally:
            # Also after a failure or a cancellation: whatever still runs is stopped before the session ends and others
            # take over.
            await sharing.abandon()
        ended.set()
        if failure is not None:
            raise failure

    async def _listen(self, sharing: PartitionSharing, turn: DiscoveryTurn) -> None:
        """Listen for announcements of posts; poll where the server sends none."""
        wait_s = 0.1
        while True:
            try:
                async for happening in self.processor.source.happenings():
                    wait_s = 0.1
                    if happening.partitions is None:
                        turn.requested.set()
                    sharing.wake(happening.partitions)
            except NoStream:
                await self._poll(sharing)
            except SourceDown as down:
                self.processor.figures.source_errors.inc()
                log.warning("the server announces no posts (%s); connecting again in %.1f s", down, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _poll(self, sharing: PartitionSharing) -> None:
        while True:
            sharing.wake(None)
            await asyncio.sleep(self.processor.pace.poll_s)

    async def _measure(self, sharing: PartitionSharing) -> None:
        figures = self.processor.figures
        figures.running.set_function(lambda: self.processor.caller.running)
        while True:
            await asyncio.sleep(self.processor.pace.lag_s)
            for runner in sharing.owned():
                labels = (runner.partition.queue, str(runner.partition.number))
                figures.parked.labels(*labels).set(len(runner.now.parked))
                try:
                    backlog = await self.processor.source.backlog(runner.partition, steps.position(runner.now))
                    figures.lag.labels(*labels).set(backlog.waiting)
                except (SourceDown, QueueGone):
                    figures.source_errors.inc()


Worker = QueueWorker | LeaseWorker


class PartitionChange(msgspec.Struct, frozen=True):
    """Request a change of one partition; missing fields stay unchanged."""

    partition: str = ""
    former_partition: str = msgspec.field(name="lane", default="")
    """Deprecated: the same as `partition`."""
    paused: bool | None = None
    seek: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the partition."""
        return self.partition or self.former_partition


@dataclass(frozen=True, slots=True)
class WorkerSite:
    """Hold the objects that the handlers use: the worker, and the header that callers must send to see its metrics and
    steer it."""

    worker: Worker
    credential: str
    """Value of the required header; empty: no caller is allowed."""

    def knows_the_key(self, request: HttpRequest) -> bool:
        presented = request.headers.get("authorization", "")
        # Without a credential nobody is admitted: an empty header would otherwise equal it.
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
    # The last member has the former name of the one before it.
    shown = {"status": "ok" if well else "joining", "worker": name, "partitions": partitions, "lanes": partitions}
    return Response(shown, status_code=200 if well else 503)


@get("/metrics")
async def metrics(site: WorkerSite, request: HttpRequest) -> Response[Any]:  # metrics, or an error
    """Return the worker's metrics. They contain names of queues, so the caller needs the application's key."""
    if not site.knows_the_key(request):
        return _refused(401, KEY_NEEDED)
    worker = site.worker
    figures = worker.figures if isinstance(worker, LeaseWorker) else worker.processor.figures
    text = generate_latest(figures.registry)
    return Response(text, media_type="text/plain; version=0.0.4")


@post("/control", status_code=200)
async def control(site: WorkerSite, request: HttpRequest) -> Response[dict[str, Any]]:  # JSON
    """Pause, resume or seek a partition. If only this process can open the store, this is the only way to do so."""
    worker = site.worker
    if not site.knows_the_key(request):
        return _refused(401, KEY_NEEDED)
    if isinstance(worker, LeaseWorker):
        return _refused(404, "this worker leases its partitions; the message server keeps its progress")
    try:
        wanted = msgspec.json.decode(await request.body(), type=PartitionChange)
        partition: QueuePartition = parse_partition(wanted.name)
        # Checked here, where the caller gets an answer: the owner could only log it and drop the request.
        parse_last(wanted.seek or "")
    except (ValueError, RecursionError) as error:
        return _refused(400, str(error))
    try:
        now: Control = await steer(worker.store, worker.app, partition, paused=wanted.paused, seek=wanted.seek)
    except LookupError as error:
        return _refused(404, str(error))
    except StoreError as error:
        return _refused(503, str(error))
    name = str(partition)
    # `lane` is the former name of `partition`.
    return Response({"status": "ok", "partition": name, "lane": name, "paused": now.paused, "seek": now.seek})


def _refused(status: int, why: str) -> Response[dict[str, Any]]:  # JSON
    return Response({"status": "error", "error_msg": why}, status_code=status)


def create_worker_app(worker: Worker, key: str, token: str = "") -> WebApplication:
    """Return the application of a worker.  `key`: of its application; if empty, the operator's token is needed."""
    credential = f"Application {key}" if key else f"Bearer {token}" if token else ""
    return WebApplication([health, metrics, control], [WorkerSite(worker, credential)])
