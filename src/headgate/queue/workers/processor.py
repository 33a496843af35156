"""Hold what all lanes of a worker share: where messages come from, how jobs are called, where failures go."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headgate.ports.messages import Letter, MessageSource, PostedAlready, PostRefused, QueueGone
from headgate.queue.workers.calls import JobCaller, log
from headgate.queue.workers.figures import WorkerMetrics
from headgate.queueing.lanes import DEAD_LETTERS, Lane
from headgate.queueing.letters import DEAD_TTL_S, ERROR_MAX_CHARS, DeadLetter, letter_of
from headgate.queueing.message import Message
from headgate.queueing.policy import Failure, Routing
from headgate.queueing.priorities import PATIENCE_S
from headgate.queueing.tally import Tally


@dataclass(frozen=True, slots=True)
class JobPace:
    """Bound how much is done at once and how long it may take."""

    page: int = 200
    """Messages of a lane fetched, and marked as begun, at once."""
    commit_count: int = 200
    """Progress is recorded after so many messages of a lane at the latest."""
    commit_s: float = 1.0
    """Or after this time."""
    idle_s: float = 30.0
    """A lane is looked at this often, even when nothing is said to have been posted."""
    poll_s: float = 1.0
    """As above, where the server does not say."""
    settle_s: float = 0.2
    """Workers must not have come or gone for this long before lanes are handed over."""
    drain_s: float = 30.0
    """What jobs may take to end when the worker is to stop."""
    discover_s: float = 30.0
    """How often the server is asked for its queues, even when none is said to be new."""
    lag_s: float = 15.0
    """How often lag is measured."""
    patience_s: float = PATIENCE_S
    """A message that is older than this, and waits for those of higher priorities, is late."""


@dataclass(slots=True)
class MessageProcessor:
    source: MessageSource
    routes: Routing
    caller: JobCaller
    context: Any  # whatever job_context gave
    now_ms: Callable[[], int]
    failure: Failure | None = None
    client: Any = None  # what failure hooks post with
    worker: str = ""
    group: str = ""
    """Of workers with progress of its own; each has its own dead letters."""
    pace: JobPace = field(default_factory=JobPace)
    figures: WorkerMetrics = field(default_factory=WorkerMetrics)
    chance: random.Random = field(default_factory=random.Random)

    async def bury(self, message: Message, tally: Tally, error: BaseException) -> None:
        """Post the message to the dead letters, then call the hook. Raise SourceDown; after a retry it is there at
        most once."""
        lane = Lane(message.queue, message.partition)
        why = f"{type(error).__name__}: {error}"[:ERROR_MAX_CHARS]
        head = DeadLetter(
            queue=lane.queue,
            partition=lane.partition,
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
        body = letter_of(head, message.body)
        key = f"dead-{f'{self.group}-' if self.group else ''}{lane}-{message.message_id}"
        try:
            await self._post(Letter(DEAD_LETTERS, body, key, 1, DEAD_TTL_S))
        except PostedAlready:
            log.info("%s: the dead letter of message %s is there already", lane, message.message_id)
        except PostRefused as refused:
            log.error("%s: message %s is given up, and no dead letter: %s", lane, message.message_id, refused)
        self.figures.dead.labels(lane.queue).inc()
        log.warning("%s: message %s is given up after %s tries: %s", lane, message.message_id, tally.recorded, why)
        if self.failure is not None:
            await self._tell(self.failure, message, error)

    async def _post(self, letter: Letter) -> None:
        try:
            await self.source.post(letter)
        except QueueGone:
            await self.source.create(letter.queue)
            await self.source.post(letter)

    async def _tell(self, failure: Failure, message: Message, error: BaseException) -> None:
        try:
            name = f"{message.queue}-{message.partition}"
            await self.caller.call(failure, message, self.context, name, error, self.client)
        except Exception:
            log.exception("job_failure itself failed, for message %s", message.message_id)
            self.figures.hook_errors.inc()
