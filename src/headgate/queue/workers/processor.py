"""Hold what all partitions of a worker share: where messages come from, how jobs are called, where failures go."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headgate.ports.messages import MessageSource, NewMessage, PostedAlready, PostRefused, QueueGone
from headgate.queue.workers.calls import JobCaller, log
from headgate.queue.workers.figures import WorkerMetrics
from headgate.queueing.message import DEAD_TTL_S, ERROR_MAX_CHARS, DeadLetter, Message, format_dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, PATIENCE_S, QueuePartition
from headgate.queueing.policy import Failure, Routing
from headgate.queueing.progress import Tally


@dataclass(frozen=True, slots=True)
class JobPace:
    """Limit how much is done at once and how long it may take."""

    page: int = 200
    """Messages of a partition that are fetched, and marked as started, together."""
    commit_count: int = 200
    """Messages of a partition after which progress is recorded at the latest."""
    commit_s: float = 1.0
    """Seconds after which progress is recorded at the latest."""
    idle_s: float = 30.0
    """Seconds after which a partition is looked at even if no post was announced."""
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

    async def bury(self, message: Message, tally: Tally, error: BaseException) -> None:
        """Post the message to the dead letters, then call the hook. Raise SourceDown; after a retry it is there at
        most once."""
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
            log.info("%s: the dead letter of message %s is there already", partition, message.message_id)
        # Nothing else can be done with the message, and kept here it would block its partition for ever.
        except PostRefused as refused:
            log.error("%s: message %s is given up, and no dead letter: %s", partition, message.message_id, refused)
        self.figures.dead.labels(partition.queue).inc()
        log.warning("%s: message %s is given up after %s tries: %s", partition, message.message_id, tally.recorded, why)
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
