"""Hold the objects that all partitions of a worker share: message source, metrics, limits, dead letters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.base.ids import fresh
from headgate.ports.messages import MessageSource, NewMessage, PostedAlready, PostRefused, QueueGone
from headgate.queue.workers.calls import JobCaller, log
from headgate.queueing.message import DEAD_TTL_S, ERROR_MAX_CHARS, DeadLetter, Message, format_dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, PATIENCE_S, QueuePartition
from headgate.queueing.policy import Failure, Routing
from headgate.queueing.progress import Tally

TIMEOUT_S = 60.0
"""Time limit of a request that a plain hook waits for."""


class WorkerMetrics:
    """Keep the metrics of one worker in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        self.done = Counter("headgate_queue_done", "Messages processed.", ["queue"], registry=of)
        self.retries = Counter("headgate_queue_retries", "Attempts after the first.", ["queue"], registry=of)
        self.failures = Counter("headgate_queue_failures", "Attempts that failed.", ["queue"], registry=of)
        self.dead = Counter("headgate_queue_dead", "Messages that became dead letters.", ["queue"], registry=of)
        self.commits = Counter("headgate_queue_commits", "Records of progress written.", registry=of)
        self.hook_errors = Counter("headgate_queue_hook_errors", "Failures of job_failure.", registry=of)
        self.source_errors = Counter(
            "headgate_queue_source_errors", "Requests that the server did not answer.", registry=of
        )
        self.lost = Counter("headgate_queue_partitions_lost", "Partitions that another worker took over.", registry=of)
        self.moved = Counter("headgate_queue_partitions_moved", "Partitions handed over to other workers.", registry=of)
        self.running = Gauge("headgate_queue_in_flight", "Jobs running now.", registry=of)
        self.owned = Gauge("headgate_queue_partitions", "Partitions owned now.", registry=of)
        self.parked = Gauge(
            "headgate_queue_parked", "Messages waiting for another attempt.", ["queue", "partition"], registry=of
        )
        self.lag = Gauge("headgate_queue_lag", "Messages behind the progress.", ["queue", "partition"], registry=of)
        self.job_s = Histogram("headgate_queue_job_seconds", "Time a job takes.", ["queue"], registry=of)

    def forget(self, queue: str, partition: int) -> None:
        """Forget a partition that another worker has taken over."""
        for gauge in (self.parked, self.lag):
            gauge.remove(queue, str(partition))


@dataclass(frozen=True, slots=True)
class JobPace:
    """Limit how much a worker does concurrently and how long it may take."""

    page: int = 200
    """Messages of a partition that are fetched, and marked as started, together."""
    commit_count: int = 200
    """Messages of a partition after which progress is recorded at the latest."""
    commit_s: float = 1.0
    """Seconds after which progress is recorded at the latest."""
    idle_s: float = 30.0
    """Seconds after which a partition is polled even if no post was announced."""
    poll_s: float = 1.0
    """Like `idle_s`, where the server does not announce posts."""
    settle_s: float = 0.2
    """Seconds without a worker joining or leaving that must pass before partitions are handed over."""
    drain_s: float = 30.0
    """Seconds that running jobs may take to end when the worker is to stop."""
    discover_s: float = 30.0
    """Seconds after which the worker asks the server for its queues even if no new one was announced."""
    lag_s: float = 15.0
    """Seconds between two measurements of lag."""
    patience_s: float = PATIENCE_S
    """Age in seconds beyond which a message that waits behind higher priorities is late."""


@dataclass(slots=True)
class MessageProcessor:
    """Hold the objects that all partitions of one worker share, and give messages up."""

    source: MessageSource
    routes: Routing
    caller: JobCaller
    context: Any  # any result of job_context
    now_ms: Callable[[], int]
    failure: Failure | None = None
    client: Any = None  # the client with which failure hooks post
    worker: str = ""
    group: str = ""
    """Name of a group of workers with progress of its own and dead letters of its own; empty: the group without a
    name."""
    pace: JobPace = field(default_factory=JobPace)
    figures: WorkerMetrics = field(default_factory=WorkerMetrics)
    chance: random.Random = field(default_factory=random.Random)

    def works_as(self, worker: str) -> None:
        """Take the name that dead letters give as their worker's; each session of a worker has another one."""
        self.worker = worker

    async def bury(self, message: Message, tally: Tally, error: BaseException) -> None:
        """Post the message to the dead letters, then call the hook. Raise SourceDown; a retry does not post it
        twice."""
        partition = QueuePartition(message.queue, message.partition)
        why = f"{type(error).__name__}: {error}"[:ERROR_MAX_CHARS]
        head = DeadLetter(
            queue=partition.queue,
            partition=partition.number,
            message_id=message.message_id,
            timestamp=message.timestamp,
            attempts=tally.begun,
            error=why,
            worker=self.worker,
            dead_ms=self.now_ms(),
            died=tally.begun - tally.failed - tally.lost - tally.left,
            lost=tally.lost,
            left=tally.left,
            unsure=tally.recorded - tally.begun,
        )
        body = format_dead_letter(head, message.body)
        # The letter is posted before progress is recorded. After a crash in between it is posted again, and the server
        # recognises it by this key.
        key = f"dead-{f'{self.group}-' if self.group else ''}{partition}-{message.message_id}"
        try:
            await self._post(NewMessage(DEAD_LETTERS, body, key, 1, DEAD_TTL_S))
        except PostedAlready:
            log.info("%s: the dead letter of message %s already exists", partition, message.message_id)
        # Nothing else can be done with the message, and kept here it would block its partition forever.
        except PostRefused as refused:
            log.error("%s: giving up on message %s, without a dead letter: %s", partition, message.message_id, refused)
        self.figures.dead.labels(partition.queue).inc()
        count = "1 attempt" if tally.recorded == 1 else f"{tally.recorded} attempts"
        log.warning("%s: giving up on message %s after %s: %s", partition, message.message_id, count, why)
        if self.failure is not None:
            await self._tell(self.failure, message, error)

    async def _post(self, message: NewMessage) -> None:
        try:
            await self.source.post(message)
        except QueueGone:
            await self.source.create(message.queue)
            await self.source.post(message)

    async def _tell(self, failure: Failure, message: Message, error: BaseException) -> None:
        try:
            name = f"{message.queue}-{message.partition}"
            await self.caller.call(failure, message, self.context, name, error, self.client)
        # The letter is posted, and a hook that fails must not bring its message back.
        except Exception:
            log.exception("job_failure itself failed, for message %s", message.message_id)
            self.figures.hook_errors.inc()


class BlockingClient:
    """Post from plain hooks, which run in threads. Async hooks await the methods of `source`."""

    def __init__(self, source: MessageSource, loop: asyncio.AbstractEventLoop) -> None:
        self.source, self._loop = source, loop

    def post(self, queue: str, body: str, *, partition: int | None = None, ttl_s: int | None = None) -> None:
        """Post a message once, however often the network fails. Raise SourceDown, QueueGone or PostRefused."""
        # The fresh key lets the client repeat a request whose answer was lost.
        self._wait(self.source.post(NewMessage(queue, body, fresh(), partition, ttl_s)))

    def create_queue(self, queue: str, partitions: int = 1) -> None:
        """Create the queue if it does not exist."""
        self._wait(self.source.create(queue, partitions))

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)


def log_failure(message: Message, context: object, queue: str, error: BaseException, client: object) -> None:
    """Log a failure; this is a hook for `job_failure`."""
    log.error("%s: message %s: %r", queue, message.message_id, error, exc_info=error)
