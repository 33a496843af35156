"""Run `headgate worker` without a store: it leases partitions from the message server, which records the progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headgate.base.ids import fresh
from headgate.base.tasks import end, run_until, unless
from headgate.ports.messages import LeaseGone, NoStream, PostRefused, QueueGone, SourceDown
from headgate.queue.messages.client import MessageClient, MessageLeasing
from headgate.queue.messages.holders import DEFAULT_GROUP, Failure, Handed, MessageLease, Outcome
from headgate.queue.workers.calls import RETRY_AFTER_MAX_S, JobCaller, JobExit, Stuck, error_text, log, retry_after_s
from headgate.queue.workers.processor import JobPace, WorkerMetrics
from headgate.queueing import Message, Reject, RetryLater, StopWorker
from headgate.queueing.partitions import RESERVED, QueuePartition
from headgate.queueing.policy import Routing, RoutingRule

SLICE_S = 1.0
"""Seconds for which a partition keeps its slot while others wait for one."""
RETRY_MAX_S = 5.0
Want = tuple[str, int | None]
"""Queue, and number of the wanted partition; None: any."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Hold the settings of a worker without a store."""

    group: str = DEFAULT_GROUP
    only: frozenset[QueuePartition] = frozenset()
    """Partitions that the worker processes; empty: all."""
    leases_max: int = 100
    ttl_s: float = 15.0
    pace: JobPace = field(default_factory=JobPace)


@dataclass(slots=True)
class LeaseWorker:
    """Run a worker without a store with `run`, once. Setting `abort` after `stop` abandons what still runs."""

    source: MessageClient
    routes: Routing
    caller: JobCaller
    context: Any  # any result of job_context
    name: str
    settings: LeaseSettings = field(default_factory=LeaseSettings)
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    figures: WorkerMetrics = field(default_factory=WorkerMetrics)
    well: bool = False
    """Whether the server has listed its queues and no request has failed since."""
    held: dict[str, QueuePartition] = field(default_factory=dict)
    """Name of a lease -> partition."""
    _wakeups: dict[Want, asyncio.Event] = field(default_factory=dict)
    _listing_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the queues must be listed again."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failure: BaseException | None = None

    @property
    def partitions(self) -> list[str]:
        """Return the partitions that the worker holds."""
        return sorted(map(str, self.held.values()))

    async def run(self, stop: asyncio.Event, url: str = "") -> None:
        """Run until `stop` or StopWorker: let running jobs end, then return all leases. Only workers with a store
        record their `url`. Raise JobExit or Stuck."""
        self.figures.running.set_function(lambda: self.caller.running)
        self.figures.owned.set_function(lambda: len(self.held))
        try:
            await run_until(self._over, self._stopped(stop), self._discover(), self._listen())
            if self._tasks and self._failure is None:
                await unless(self.abort, _ended(self._tasks, self.settings.pace.drain_s))
        finally:
            await end(*self._tasks)
        if self._failure is not None:
            raise self._failure

    async def _stopped(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._over.set()

    def _start(self, work: Any) -> None:  # a coroutine
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # An unexpected error ends the worker: otherwise one queue would have no worker, unnoticed.
            self._failure = self._failure or error
            self._over.set()

    async def _discover(self) -> None:
        """Start to watch every queue that the server lists, as soon as it lists it."""
        while True:
            self._listing_due.clear()
            try:
                for want in self._wanted(await self.source.partitions()):
                    if want not in self._wakeups:
                        self._wakeups[want] = asyncio.Event()
                        # A task of its own for each queue: one that is always busy does not keep the worker from
                        # polling others.
                        self._start(self._seek(want))
                self.well = True
            except (SourceDown, PostRefused, QueueGone) as down:
                self._failed("the queues could not be listed: %s", down)
            # A worker whose first listing failed processes nothing until one succeeds.
            await _either(self._listing_due.wait(), self.settings.pace.discover_s if self.well else RETRY_MAX_S)

    def _wanted(self, partitions: Iterable[QueuePartition]) -> set[Want]:
        there = [partition for partition in partitions if self._is_ours(partition.queue)]
        if not self.settings.only:
            return {(partition.queue, None) for partition in there}
        return {(partition.queue, partition.number) for partition in there if partition in self.settings.only}

    def _is_ours(self, queue: str) -> bool:
        return not queue.startswith(RESERVED) and self.routes.of(queue) is not None

    def _failed(self, text: str, *what: object) -> None:
        self.well = False
        self.figures.source_errors.inc()
        log.warning(text, *what)

    async def _listen(self) -> None:
        """Listen for announcements of posts; if the server sends none, poll each queue at intervals."""
        wait_s = 0.1
        while True:
            try:
                async for happening in self.source.happenings():
                    wait_s = 0.1
                    self._wake(
                        None
                        if happening.partitions is None
                        else {partition.queue for partition in happening.partitions}
                    )
            except NoStream:
                wait_s = self.settings.pace.discover_s
            except SourceDown as down:
                self._failed("the server announces no posts (%s); connecting again in %.1f s", down, wait_s)
            self._listing_due.set()
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)

    def _wake(self, queues: set[str] | None) -> None:
        """Poll these queues, and list the queues again if one is new; None means all queues."""
        known = {want[0] for want in self._wakeups}
        if queues is None or any(self._is_ours(queue) for queue in queues - known):
            self._listing_due.set()
        for want, wakeup in self._wakeups.items():
            if queues is None or want[0] in queues:
                wakeup.set()

    async def _seek(self, want: Want) -> None:
        """Take leases of one queue while there is something to do, up to the limit on leases."""
        queue, partition = want
        wakeup, wait_s = self._wakeups[want], 0.1
        try:
            while not self._over.is_set():
                wakeup.clear()
                found = None
                try:
                    if len(self.held) < self.settings.leases_max:
                        leasing, group = MessageLeasing(self.source), self.settings.group
                        found = await leasing.take(queue, self.name, group, self.settings.ttl_s, partition)
                    wait_s = 0.1
                except SourceDown as down:
                    self._failed("%s: %s; trying again in %.1f s", queue, down, wait_s)
                    await unless(self._over, asyncio.sleep(wait_s))
                    wait_s = min(wait_s * 2, RETRY_MAX_S)
                    continue
                if found is not None:
                    self.held[found.lease] = QueuePartition(queue, found.partition)
                    self._start(self._process(queue, found))
                else:
                    await unless(self._over, _either(wakeup.wait(), self.settings.pace.poll_s))
        except (QueueGone, PostRefused) as gone:
            log.info("%s: %s", queue, gone)
        finally:
            del self._wakeups[want]

    async def _process(self, queue: str, lease: MessageLease) -> None:
        held = _ExtendedLease(MessageLeasing(self.source), queue, lease, self.settings.ttl_s)
        try:
            await run_until(held.lost, held.keep(), self._work(held))
        except (LeaseGone, QueueGone):
            log.warning("%s: the lease of partition %s has ended; other workers continue", queue, lease.partition)
        except PostRefused as refused:
            log.error("%s: partition %s stays untouched until its lease ends: %s", queue, lease.partition, refused)
        finally:
            # If the limit was reached, every queue may have work that no poll has found.
            full = len(self.held) >= self.settings.leases_max
            del self.held[lease.lease]
            self._wake({want[0] for want in self._wakeups} if full else {queue})

    async def _work(self, held: _ExtendedLease) -> None:
        """Work through messages until none are left or the worker is to stop; then give the lease back."""
        route = self.routes.of(held.queue)
        assert route is not None, "only such queues are polled"
        try:
            while not self._over.is_set():
                async with self.caller.place(route.job, self._over) as got:
                    # Without messages the slot and the lease go back immediately, for partitions that have some.
                    if not got or not await self._slice(held, route):
                        break
            await held.leasing.give_back(held.queue, held.lease)
        except SourceDown as down:
            self._failed("%s: the lease could not be returned: %s", held.queue, down)
        except StopWorker as asked:  # it was started: the lease expires, so that the next attempt counts as a retry
            log.info("a job asked the worker to stop: %s", asked)
            self._over.set()
        held.lost.set()

    async def _slice(self, held: _ExtendedLease, route: RoutingRule) -> bool:
        """Work through messages for a while; return False when there are none."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SLICE_S
        found = await held.leasing.fetch(held.queue, held.lease, self.settings.pace.page)
        for one in found:
            await held.tell(await self._tried(held.queue, one, route))
            if self._over.is_set() or loop.time() >= until_s:
                break
        return bool(found)

    async def _tried(self, queue: str, one: Handed, route: RoutingRule) -> Outcome:
        """Call the job with one message, and return the outcome.  Raise StopWorker, JobExit, Stuck."""
        message = Message(one.message_id, one.body, one.partition, one.timestamp, queue, one.attempt)
        policy, figures = route.policy, self.figures
        figures.retries.labels(queue).inc(one.attempt > 1)
        try:
            with figures.job_s.labels(queue).time():
                await self.caller.run(route.job, message, self.context, limit_s=policy.time_limit_s)
        except (StopWorker, JobExit, Stuck):
            raise
        except Exception as error:
            figures.failures.labels(queue).inc()
            log.warning("%s: attempt %s at message %s failed: %r", queue, one.attempt, one.message_id, error)
            delay_s = min(policy.delay_s(one.attempt, random.random()), RETRY_AFTER_MAX_S)  # noqa: S311 - no secret
            if isinstance(error, RetryLater):
                delay_s = retry_after_s(error)
            # The server announces posts, but not retries that become due: look again just after that time.
            asyncio.get_running_loop().call_later(delay_s + 0.05, self._wake, {queue})
            failure = Failure(one.message_id, error_text(error), delay_s, isinstance(error, Reject))
            return Outcome(failed=(failure,), ttl=self.settings.ttl_s, attempts=policy.attempts)
        figures.done.labels(queue).inc()
        return Outcome(done=(one.message_id,), ttl=self.settings.ttl_s)


@dataclass(slots=True)
class _ExtendedLease:
    """Hold a lease, and extend it while work under it continues."""

    leasing: MessageLeasing
    queue: str
    lease: MessageLease
    ttl_s: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self) -> None:
        """Extend the lease until cancelled. Raise LeaseGone when it cannot be extended in time; QueueGone,
        PostRefused."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.ttl_s
        while True:
            await asyncio.sleep(self.ttl_s / 4)
            requested_s = loop.time()
            try:
                # The request ends an eighth of the TTL before the lease: a slow answer must not let the job run on
                # without one.
                async with asyncio.timeout(max(until_s - requested_s - self.ttl_s / 8, 0)):
                    await self.leasing.tell(self.queue, self.lease, Outcome(ttl=self.ttl_s))
                # Counted from before the request, so the lease ends here before it ends on the server.
                until_s = requested_s + self.ttl_s
            except (SourceDown, TimeoutError) as error:
                log.warning("%s: the lease could not be extended: %s", self.queue, error or type(error).__name__)
                if loop.time() + self.ttl_s / 4 >= until_s:
                    raise LeaseGone(f"{self.queue}: it could not be extended in time") from error

    async def tell(self, outcome: Outcome) -> None:
        """Record an outcome, and retry while the lease is valid. Raise LeaseGone, QueueGone, PostRefused."""
        # The answer may be lost after the outcome is recorded: without a key, a repeated failure would count twice.
        wait_s, key = 0.1, fresh()
        while True:
            try:
                await self.leasing.tell(self.queue, self.lease, outcome, key)
                return
            except SourceDown as down:
                log.warning("%s: the outcome of a message is not recorded yet: %s", self.queue, down)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, 1.0)


async def _either(work: Any, for_s: float) -> None:  # a coroutine
    """Run the work until it ends, or cancel it after `for_s` seconds."""
    try:
        async with asyncio.timeout(for_s):
            await work
    except TimeoutError:
        return


async def _ended(tasks: set[asyncio.Task[None]], within_s: float) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while tasks and loop.time() < until_s:  # a task that ends may have started another
        await asyncio.wait({*tasks}, timeout=until_s - loop.time())
