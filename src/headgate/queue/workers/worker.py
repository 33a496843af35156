"""A queue worker: it joins, takes its share, runs until it is to stop, and hands everything back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headgate.base.tasks import run_until, unless
from headgate.map.workers import Application
from headgate.ports.messages import NoStream, QueueGone, SourceDown
from headgate.queue.workers.calls import JobExit, Stuck, log
from headgate.queue.workers.discovery import DiscoveryTurn, discover
from headgate.queue.workers.processor import MessageProcessor
from headgate.queue.workers.shares import PartitionSharing, WorkerScope
from headgate.queueing import progress as steps
from headgate.queueing.message import StopWorker
from headgate.recipes.mirror import Mirror
from headgate.store.store import TTL_S, GuardLost, Session, Store
from headgate.store.types import SessionLost, Unavailable

RETRY_MAX_S = 5.0
NAMES_MAX = 20
"""Limit on the names from lost sessions that a worker remembers."""


@dataclass(slots=True)
class QueueWorker:
    """Run a worker with `run`, once. Setting `abort` after `stop` abandons what still runs."""

    processor: MessageProcessor
    store: Store
    app: Application
    host: str
    choice: WorkerScope = field(default_factory=WorkerScope)
    url: str = ""
    ttl_s: float = TTL_S
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    sharing: PartitionSharing | None = None
    """Sharing in the current session; None: there is no session."""
    was: tuple[str, ...] = ()
    """Names of this worker in its last lost sessions."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` or StopWorker. After a lost session, begin a new one. Raise JobExit or Stuck."""
        while not stop.is_set():
            try:
                async with self.store.session(f"queue-worker@{self.host}", ttl_s=self.ttl_s) as session:
                    await self._live(session, stop)
                    return
            # Its partitions went with the session; the next one takes a share anew.
            except (SessionLost, GuardLost) as lost:
                log.warning("%s; joining anew", lost)
                self._remember()
            except Unavailable as error:
                log.warning("the store does not answer (%s); trying again", error)
                self._remember()
                await unless(stop, asyncio.sleep(1.0))

    def _remember(self) -> None:
        """Remember that what ran under this name has not ended: the process lives on."""
        if self.sharing is not None and self.sharing.name not in ("", *self.was):
            self.was = (*self.was, self.sharing.name)[-NAMES_MAX:]

    async def _live(self, session: Session, stop: asyncio.Event) -> None:
        mirror, ended, turn = Mirror(self.store, self.app.path), asyncio.Event(), DiscoveryTurn()
        sharing = PartitionSharing(
            self.processor, self.store, session, self.app, mirror, self.choice, turn, self.host, self.url
        )
        sharing.was = self.was
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
            except StopWorker as asked:
                log.info("a job asked the worker to stop: %s", asked)
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
