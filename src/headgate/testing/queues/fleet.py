"""Worker processes on real queues, disturbed while they work; what it cost: partitions moved, pauses, repetitions."""

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

from headgate.base.ids import fresh
from headgate.map.workers import Application, QueueMap
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queueing.partitions import QueuePartition
from headgate.store.types import Backend
from headgate.testing.deadline import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving

POST_INTERVAL_S = 0.05
LONG_SESSION_S = 60.0
"""Session timeout that outlives an election among servers, however busy the machine is."""
FILE = """
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
JOBS = """
import contextlib, os, time
@contextlib.contextmanager
def context():
    with open(f"seen-{os.getpid()}", "a", buffering=1) as seen:
        yield seen
def process(message, context):
    context.write(f"{time.time()} {message.queue} {message.body}\\n")
"""


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


@dataclass(slots=True)
class QueueFleet:
    root: Path
    url: str
    store_url: str
    backend: Backend
    client: MessageClient
    queues: list[str]
    app: Application = field(default_factory=lambda: QueueMap().app(APP))
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    posted: int = 0

    async def start(self, session_s: float) -> asyncio.subprocess.Process:
        """Start a worker; one that is killed or stopped is missed after its session."""
        settings = self.root / f"fleet-{len(self.workers)}.conf"
        server = f"{self.url}/v1/{APP}/"
        settings.write_text(FILE.format(session_s=session_s, server=server, key=KEY, store=self.store_url))
        line = [str(Path(sys.executable).with_name("headgate")), "worker", "-c", settings.name]
        with open(self.root / f"log-{len(self.workers)}", "ab") as log:  # noqa: ASYNC230 - a small local file
            worker = await asyncio.create_subprocess_exec(*line, cwd=self.root, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    async def owners(self) -> dict[QueuePartition, str]:
        entries = await self.backend.list(self.app.owners.path)
        return {
            partition: e.value.decode() for e in entries if (partition := self.app.partition_of(e.path)) is not None
        }

    async def shared(self, workers: int) -> None:
        """Wait until this many workers share the partitions evenly, within one."""

        async def holds() -> bool:
            owners = list((await self.owners()).values())
            sizes = [owners.count(name) for name in set(owners)]
            return len(owners) == len(self.queues) and len(sizes) == workers and max(sizes) - min(sizes) <= 1

        await self._until(f"{workers} share {len(self.queues)} queues", holds)

    async def post_steadily(self) -> None:
        """Post one message to every queue, again and again, until cancelled."""
        while True:
            body: list[tuple[str, int | None]] = [(str(self.posted), 1)]
            await asyncio.gather(*(self.client.post_many(queue, body, fresh()) for queue in self.queues))
            self.posted += 1
            await asyncio.sleep(POST_INTERVAL_S)

    async def caught_up(self) -> None:
        """Wait until everything posted so far is processed."""
        target = self.posted - 1

        async def holds() -> bool:
            last = self._last()
            return all(last.get(queue, -1) >= target for queue in self.queues)

        await self._until("what was posted is processed", holds)

    async def cost(self, disturb: Callable[[], Awaitable[None]], workers: int) -> DisturbanceCost:
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
        """Queue -> when which message ran, as it happened."""
        found: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for file in self.root.glob("seen-*"):
            for line in file.read_text().splitlines():
                # The last line of a killed worker may be half of one.
                if len(parts := line.split(" ")) == 3:
                    found[parts[1]].append((float(parts[0]), int(parts[2])))
        return {queue: sorted(found[queue]) for queue in self.queues}

    def wrong(self) -> list[str]:
        """Return what must not be: messages that were left out, or ran for the first time behind a later one."""
        found = []
        for queue, runs in self.runs().items():
            # A repetition keeps the place of the first run.
            firsts = list(dict.fromkeys(body for _, body in runs))
            if firsts != list(range(len(firsts))):
                found.append(f"{queue}: {firsts[:50]}")
        return found

    def _last(self) -> dict[str, int]:
        return {queue: max(body for _, body in runs) for queue, runs in self.runs().items() if runs}

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await holds():  # noqa: ASYNC110 - what is looked at is other processes'
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logs = "".join(path.read_text()[-1500:] for path in self.root.glob("log-*"))
            raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}\n{logs}") from None


def _pause(runs: list[tuple[float, int]], since_s: float) -> float:
    times = [at_s for at_s, _ in runs if at_s >= since_s]
    return max((b - a for a, b in pairwise(times)), default=0.0)


@asynccontextmanager
async def fleet(root: Path, store_url: str, backend: Backend, *, queues: int) -> AsyncIterator[QueueFleet]:
    """Provide a server with queues that are posted to all the time; start workers.  The backend is for looking on."""
    board = await MessageBoard.open(f"sqlite:///{root / 'messages.sqlite'}")
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        names = [f"{n:032x}" for n in range(queues)]
        for name in names:
            await client.create(name)
        (root / "fleet_jobs.py").write_text(JOBS)
        found = QueueFleet(root, url, store_url, backend, client, names)
        task = asyncio.ensure_future(found.post_steadily())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for worker in (worker for worker in found.workers if worker.returncode is None):
                with suppress(ProcessLookupError):  # it ended just now
                    # A stopped process would receive SIGTERM only once it goes on.
                    os.kill(worker.pid, signal.SIGCONT)
                    worker.terminate()
            await asyncio.gather(*(worker.wait() for worker in found.workers))
    await board.close()


Disturbance = Callable[[], Awaitable[None]]


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

    async def asked_to_stop() -> None:
        fleet.workers[1].terminate()

    return {
        "a fourth worker joins": (joins, 4),
        "one is killed (-9)": (killed, 3),
        "one is stopped past its session": (stopped, 2),
        "and goes on": (goes_on, 3),
        "one is asked to stop": (asked_to_stop, 2),
        "the store's leader is killed": (lead_dies, 2),
    }
