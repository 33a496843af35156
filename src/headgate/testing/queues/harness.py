"""A message server and queue workers for tests: real HTTP, real SQL, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.map.workers import Application, QueueMap
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queue.server.access import ApplicationKeys
from headgate.queue.server.app import create_app
from headgate.queue.workers.calls import JobCaller
from headgate.queue.workers.processor import JobPace, MessageProcessor
from headgate.queue.workers.shares import WorkerScope
from headgate.queue.workers.worker import QueueWorker
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.store.store import Store
from headgate.store.types import Backend, SessionLost
from headgate.testing.deadline import DEADLINE_S
from headgate.web.routes.messages import MESSAGE_PAGES
from headgate.web.serve import Tls, serve

APP, KEY = "sync", "cafe1234cafe"
OTHER_APP, OTHER_KEY = "mail", "other-key"
QUICK = JobPace(commit_s=0.1, settle_s=0.05, drain_s=5.0, discover_s=5.0, lag_s=0.2)


@asynccontextmanager
async def serving(board: MessageBoard, port: int = 0, tls: Tls | None = None) -> AsyncIterator[str]:
    """Provide its URL, without a path."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = create_app(board, ApplicationKeys({APP: [KEY], OTHER_APP: [OTHER_KEY]}), stop, MESSAGE_PAGES)
    running = asyncio.ensure_future(run_until(stop, serve(app, "127.0.0.1", port, stop, bound.set_result, tls=tls)))
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{await bound}"
    finally:
        stop.set()
        await running


@dataclass(slots=True)
class QueueHarness:
    """Manage workers of one application, on one store."""

    source: MessageClient
    backend: Backend
    app: Application = field(default_factory=lambda: QueueMap().app(APP))
    pace: JobPace = QUICK
    stops: dict[asyncio.Event, tuple[QueueWorker, asyncio.Task[None]]] = field(default_factory=dict)

    async def post(self, queue: str, *bodies: str, partition: int | None = 1) -> None:
        await self.source.post_many(queue, [(body, partition) for body in bodies], fresh())

    def start(self, job: Any, policy: Policy | None = None, **more: Any) -> QueueWorker:  # people's own functions
        """Return a worker that is at it."""
        routes = more.pop("routes", None) or Routing((RoutingRule("*", job, policy or Policy(retry_delay_s=0.05)),))
        caller = JobCaller(more.pop("concurrency", 50), more.pop("threads", 4))
        processor = MessageProcessor(
            self.source, routes, caller, more.pop("context", None), lambda: time.time_ns() // 1_000_000
        )
        processor.pace, processor.failure = self.pace, more.pop("failure", None)
        worker = QueueWorker(
            processor, Store(self.backend), self.app, "here", more.pop("choice", WorkerScope()), **more
        )
        stop = asyncio.Event()
        self.stops[stop] = worker, asyncio.ensure_future(worker.run(stop))
        return worker

    async def stop(self, worker: QueueWorker) -> None:
        """Stop a worker gracefully, and raise its error, if any."""
        stop = next(stop for stop, (one, _) in self.stops.items() if one is worker)
        stop.set()
        await self.stops.pop(stop)[1]

    async def ended(self, worker: QueueWorker) -> None:
        """Wait until a worker ends by itself, and raise its error, if any."""
        stop = next(stop for stop, (one, _) in self.stops.items() if one is worker)
        await self.stops.pop(stop)[1]

    async def crash(self, worker: QueueWorker) -> None:
        """Crash a worker; its session ends as if it had expired."""
        stop = next(stop for stop, (one, _) in self.stops.items() if one is worker)
        _, task = self.stops.pop(stop)
        assert worker.sharing is not None, "it is at work"
        # First, so that no `finally` of the worker can still write: a killed process runs none.
        worker.store.backend, lease = _Dead(worker.store.backend), worker.sharing.session.lease
        stop.set()
        worker.abort.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.backend.revoke(lease)

    async def until(self, what: str, holds: Callable[[], Any], within_s: float = DEADLINE_S) -> None:
        """Wait for a condition, checking it whenever the store changes and at intervals."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    await asyncio.sleep(0.01)
                    self._look()
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {what}") from None

    def _look(self) -> None:
        """Raise the error with which a worker has ended."""
        for _, task in self.stops.values():
            if task.done():
                task.result()

    async def owners(self) -> dict[QueuePartition, str]:
        entries = await self.backend.list(self.app.owners.path)
        return {
            partition: e.value.decode() for e in entries if (partition := self.app.partition_of(e.path)) is not None
        }


class _Dead:
    """Imitate a connection of a process that is no more."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # any method
        async def nothing(*_: Any, **__: Any) -> Any:  # none of it is done
            raise SessionLost("this process is no more")

        return nothing


@asynccontextmanager
async def harness(url: str, backend: Backend) -> AsyncIterator[QueueHarness]:
    """Open a harness, and stop the workers that still run at the end."""
    async with MessageClient.open([f"{url}/v1/{APP}/"], KEY) as source:
        found = QueueHarness(source, backend)
        try:
            yield found
        finally:
            for stop, (worker, _) in found.stops.items():
                stop.set()
                worker.abort.set()
            await asyncio.gather(*(task for _, task in found.stops.values()), return_exceptions=True)
