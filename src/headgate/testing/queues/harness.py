"""Run a message server and queue workers for tests, in this process and in processes that tests disturb."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.map.workers import Application, QueueMap
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.records import MessageDraft
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
from headgate.testing.clock import DEADLINE_S
from headgate.web.peers.connections import Tls
from headgate.web.routes.pages import MESSAGE_PAGES
from headgate.web.server import serve

APP, KEY = "sync", "cafe1234cafe"
OTHER_APP, OTHER_KEY = "mail", "other-key"
QUICK = JobPace(commit_s=0.1, settle_s=0.05, drain_s=5.0, discover_s=5.0, lag_s=0.2)
POST_INTERVAL_S = 0.05
LONG_SESSION_S = 60.0
"""Session timeout that outlives an election among servers, however busy the machine is."""
FLEET_SETTINGS = """
[qdo-worker]
job = fleet_jobs:process
job_context = fleet_jobs:context
session_timeout = {session_s}
[partitions]
policy = automatic
[queuey]
connection = {server}
app_key = {key}
[store]
url = {store}
"""
FLEET_JOBS = """
import contextlib, os, time
@contextlib.contextmanager
def context():
    with open(f"seen-{os.getpid()}", "a", buffering=1) as seen:
        yield seen
def process(message, context):
    context.write(f"{time.time()} {message.queue} {message.body}\\n")
"""

Disturbance = Callable[[], Awaitable[None]]


@asynccontextmanager
async def serving(board: MessageBoard, port: int = 0, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve messages; provide the URL of the server, without a path."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = create_app(board, ApplicationKeys({APP: [KEY], OTHER_APP: [OTHER_KEY]}), stop, MESSAGE_PAGES)
    running = asyncio.ensure_future(run_until(stop, serve(app, "127.0.0.1", port, stop, bound.set_result, tls=tls)))
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{await bound}"
    finally:
        stop.set()
        await running


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        """Start a worker and return it."""
        routes = more.pop("routes", None) or Routing((RoutingRule("*", job, policy or Policy(retry_delay_s=0.05)),))
        caller = JobCaller(more.pop("concurrency", 50), more.pop("threads", 4))
        context, failure = more.pop("context", None), more.pop("failure", None)
        processor = MessageProcessor(self.source, routes, caller, context, _now_ms, failure, pace=self.pace)
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
        """Wait until a worker ends on its own, and raise its error, if any."""
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
        return await _owners(self.backend, self.app)


async def _owners(backend: Backend, app: Application) -> dict[QueuePartition, str]:
    """Map each partition to the worker that owns it."""
    entries = await backend.list(app.owners.path)
    return {partition: e.value.decode() for e in entries if (partition := app.partition_of(e.path)) is not None}


class _Dead:
    """Imitate a connection of a process that has died."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # any method
        async def nothing(*_: Any, **__: Any) -> Any:  # none of it is done
            raise SessionLost("this process has ended")

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


@dataclass(frozen=True, slots=True)
class DisturbanceCost:
    """Sum up the cost of one disturbance."""

    moved: int
    """Number of partitions that changed their owner."""
    pause_moved_s: float
    """Longest pause in the processing of such a partition."""
    pause_others_s: float
    """Longest pause in the processing of the other partitions."""
    repeated: int
    """Number of messages that ran more than once."""


class FleetRuns:
    """Collect what the jobs of a fleet write down, reading each line once."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[float, int]]] = defaultdict(list)
        """Queue -> times and numbers of the messages that ran."""
        self.last: dict[str, int] = defaultdict(lambda: -1)
        """Queue -> greatest number of a message that ran."""
        self._read: dict[Path, int] = defaultdict(int)
        """File -> number of bytes that have been read."""

    def read(self, root: Path) -> None:
        """Read what was written since the last call."""
        for path in root.glob("seen-*"):
            with open(path, "rb") as file:
                file.seek(self._read[path])
                # The last line may still be half of one, and stays so if its worker was killed.
                lines = [line for line in file if line.endswith(b"\n")]
            self._read[path] += sum(map(len, lines))
            for line in lines:
                at_s, queue, body = line.decode().split()
                self.runs[queue].append((float(at_s), int(body)))
                self.last[queue] = max(self.last[queue], int(body))


@dataclass(slots=True)
class QueueFleet:
    """Run worker processes of one application on queues that are posted to all the time."""

    root: Path
    url: str
    store_url: str
    backend: Backend
    board: MessageBoard
    """Board of the server, to post without a request per queue: reading is what the workers are tested for."""
    queues: list[str]
    app: Application = field(default_factory=lambda: QueueMap().app(APP))
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    posted: int = 0
    seen: FleetRuns = field(default_factory=FleetRuns)

    async def start(self, session_s: float) -> asyncio.subprocess.Process:
        """Start a worker; one that is killed or stopped is missed after its session."""
        settings = self.root / f"fleet-{len(self.workers)}.conf"
        server = f"{self.url}/v1/{APP}/"
        settings.write_text(FLEET_SETTINGS.format(session_s=session_s, server=server, key=KEY, store=self.store_url))
        line = [str(Path(sys.executable).with_name("headgate")), "worker", "-c", settings.name]
        with open(self.root / f"log-{len(self.workers)}", "ab") as log:  # noqa: ASYNC230 - a small local file
            worker = await asyncio.create_subprocess_exec(*line, cwd=self.root, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    async def owners(self) -> dict[QueuePartition, str]:
        return await _owners(self.backend, self.app)

    async def shared(self, workers: int) -> None:
        """Wait until this many workers share the partitions evenly, within one."""

        async def holds() -> bool:
            owners = list((await self.owners()).values())
            sizes = [owners.count(name) for name in set(owners)]
            return len(owners) == len(self.queues) and len(sizes) == workers and max(sizes) - min(sizes) <= 1

        await self._until(f"{workers} share {len(self.queues)} queues", holds)

    async def post_steadily(self) -> None:
        """Post one message to every queue, repeatedly, until cancelled."""
        while True:
            draft = MessageDraft(str(self.posted), partition=1)
            await asyncio.gather(*(self.board.post(APP, queue, [draft]) for queue in self.queues))
            self.posted += 1
            await asyncio.sleep(POST_INTERVAL_S)

    async def caught_up(self) -> None:
        """Wait until everything posted so far is processed."""
        target = self.posted - 1

        async def holds() -> bool:
            self.seen.read(self.root)
            return all(self.seen.last[queue] >= target for queue in self.queues)

        await self._until("what was posted is processed", holds)

    async def cost(self, disturb: Disturbance, workers: int) -> DisturbanceCost:
        """Measure a disturbance until this many workers share the partitions and have caught up."""
        await self.caught_up()
        before, began_s = await self.owners(), time.time()
        await disturb()
        await self.shared(workers)
        await self.caught_up()
        after, runs = await self.owners(), self.runs()
        moved = {partition.queue for partition in before if after.get(partition) != before[partition]}
        pauses = {queue: _pause(runs[queue], began_s - 1) for queue in self.queues}
        counts = [body for queue in self.queues for at_s, body in runs[queue] if at_s >= began_s - 1]
        distinct = {(queue, body) for queue in self.queues for at_s, body in runs[queue] if at_s >= began_s - 1}
        return DisturbanceCost(
            len(moved),
            max((pauses[queue] for queue in moved), default=0.0),
            max((pauses[queue] for queue in self.queues if queue not in moved), default=0.0),
            len(counts) - len(distinct),
        )

    def runs(self) -> dict[str, list[tuple[float, int]]]:
        """Return queue -> times and numbers of the messages that ran, in order."""
        self.seen.read(self.root)
        return {queue: sorted(self.seen.runs[queue]) for queue in self.queues}

    def wrong(self) -> list[str]:
        """Return queues that break the order: a message was skipped, or first ran after a later one."""
        found = []
        for queue, runs in self.runs().items():
            # A repetition keeps the place of the first run.
            firsts = list(dict.fromkeys(body for _, body in runs))
            if firsts != list(range(len(firsts))):
                found.append(f"{queue}: {firsts[:50]}")
        return found

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await holds():  # noqa: ASYNC110 - other processes decide it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logs = "".join(path.read_text()[-1500:] for path in self.root.glob("log-*"))
            raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}\n{logs}") from None


def _pause(runs: list[tuple[float, int]], since_s: float) -> float:
    times = [at_s for at_s, _ in runs if at_s >= since_s]
    return max((b - a for a, b in pairwise(times)), default=0.0)


@asynccontextmanager
async def fleet(root: Path, store_url: str, backend: Backend, *, queues: int) -> AsyncIterator[QueueFleet]:
    """Provide a fleet without workers, with a server of its own. The backend, at `store_url`, is for inspection."""
    board = await MessageBoard.open(f"sqlite:///{root / 'messages.sqlite'}")
    async with serving(board) as url:
        names = [f"{n:032x}" for n in range(queues)]
        async with MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
            for name in names:
                await client.create(name)
        (root / "fleet_jobs.py").write_text(FLEET_JOBS)
        found = QueueFleet(root, url, store_url, backend, board, names)
        task = asyncio.ensure_future(found.post_steadily())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for worker in (worker for worker in found.workers if worker.returncode is None):
                with suppress(ProcessLookupError):  # it ended just now
                    # A stopped process would receive SIGTERM only after it continues.
                    os.kill(worker.pid, signal.SIGCONT)
                    worker.terminate()
            await asyncio.gather(*(worker.wait() for worker in found.workers))
    await board.close()


async def start_three(fleet: QueueFleet, session_s: float) -> None:
    """Start the workers that `disturbances` begins with: two whose end is missed soon, and one that stays."""
    for session in (session_s, session_s, LONG_SESSION_S):
        await fleet.start(session)
    await fleet.shared(3)


def disturbances(fleet: QueueFleet, lead_dies: Disturbance) -> dict[str, tuple[Disturbance, int]]:
    """Return the disturbances in the order in which they come, from a start with three workers: name -> the
    disturbance, and the number of workers that share partitions afterwards.

    The store's leader dies while all workers have long sessions: whether a short one outlives the election depends
    on how busy the machine is.
    """

    async def joins() -> None:
        await fleet.start(LONG_SESSION_S)

    async def killed() -> None:
        fleet.workers[0].kill()

    async def stopped() -> None:
        os.kill(fleet.workers[1].pid, signal.SIGSTOP)

    async def goes_on() -> None:
        os.kill(fleet.workers[1].pid, signal.SIGCONT)

    async def terminated() -> None:
        fleet.workers[1].terminate()

    return {
        "a fourth worker joins": (joins, 4),
        "one is killed (-9)": (killed, 3),
        "one is stopped past its session": (stopped, 2),
        "and continues": (goes_on, 3),
        "one is terminated": (terminated, 2),
        "the store's leader is killed": (lead_dies, 2),
    }
