"""Divide partitions among workers: each computes its share from what it sees, takes free ones and hands back the rest.

The store decides: a partition belongs to the worker that its owner entry names, and an owner entry disappears with the
worker's session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from headgate.base.tasks import end, unless
from headgate.map.tree import Address, Undecodable
from headgate.map.workers import WORKER_PREFIX, Application, Control, WorkerRecord
from headgate.queue.workers.calls import JobExit, Rank, StrandTurns, Stuck, log
from headgate.queue.workers.discovery import DiscoveryTurn
from headgate.queue.workers.ownership import take
from headgate.queue.workers.partition import PartitionRunner, WorkerView
from headgate.queue.workers.processor import MessageProcessor
from headgate.queueing.message import StopWorker
from headgate.queueing.partitions import RESERVED, QueuePartition, head_of, priority_of, share_out, strand_of
from headgate.recipes.mirror import Mirror
from headgate.store.store import Session, Store
from headgate.store.types import Append, Entry, Put, StoreError, Unavailable

R = TypeVar("R")

RETRY_S = 0.5
AGAIN_S = 5.0
"""Seconds after which a partition whose runner failed unexpectedly is taken up again."""
REST_MIN_S = 0.005
REST_FACTOR = 9.0
"""Pause after a check, as a multiple of its duration: checks take at most a tenth of the time."""


@dataclass(frozen=True, slots=True)
class SharingView:
    """Hold the state that the mirror shows."""

    workers: Mapping[str, WorkerRecord]
    owners: Mapping[QueuePartition, str]
    partitions: frozenset[QueuePartition]
    """Partitions that exist."""
    controls: Mapping[QueuePartition, Control]
    alive: frozenset[str]
    """Names that live workers had in sessions they have lost."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Queue -> its number of priorities, for queues with more than one."""

    def head(self, partition: QueuePartition) -> QueuePartition:
        """Return the first partition of the strand that this partition is in, which represents the strand where work is
        shared out."""
        return head_of(partition, self.priorities.get(partition.queue, 1))

    def strand(self, partition: QueuePartition) -> list[QueuePartition]:
        """Return the existing partitions of the strand."""
        return [one for one in strand_of(partition, self.priorities.get(partition.queue, 1)) if one in self.partitions]


def view(app: Application, mirror: Mirror) -> SharingView:
    """Read the mirror; unreadable records count as missing. A worker of another program has no name and takes no
    locks: it gets no share, and keeps what it claims to handle for as long as it lives."""
    everybody = {
        entry.path.rpartition("/")[2]: record
        for entry in mirror.under(app.workers.path)
        if (record := _read(app.workers, entry)) is not None
    }
    workers = {name: record for name, record in everybody.items() if record.name}
    others = {text for record in everybody.values() if not record.name for text in record.queues}
    owners = {
        partition: e.value.decode() for e in mirror.under(app.owners.path) if (partition := app.partition_of(e.path))
    }
    controls, partitions = dict[QueuePartition, Control](), set[QueuePartition]()
    for entry in mirror.under(app.control.path):
        partition = app.partition_of(entry.path)
        if partition is not None and (control := _read(app.controls(partition), entry)) is not None:
            controls[partition] = control
    for entry in mirror.under(app.queues.path):
        if (
            (partition := app.partition_of(entry.path))
            # Zero is omitted from records, and quotes inside a string are escaped, so these bytes occur only if the
            # queue is gone. Decoding every record at every check would take far longer.
            and b'"gone_ms"' not in entry.value
            and str(partition) not in others
        ):
            partitions.add(partition)
    alive = frozenset(name for record in workers.values() for name in record.was)
    priorities = dict[str, int]()
    for entry in mirror.under(app.shapes.path):
        if (queue := app.queue_of(entry.path)) and (shape := _read(app.shape(queue), entry)) is not None:
            priorities[queue] = shape.priorities
    return SharingView(workers, owners, frozenset(partitions), controls, alive, priorities)


def _read(place: Address[R], entry: Entry) -> R | None:
    try:
        return place.decode(entry.value)
    except Undecodable:
        return None


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """State what this worker processes."""

    patterns: tuple[str, ...] = ()
    """Patterns of queues that the worker processes; empty: all."""
    only: frozenset[QueuePartition] = frozenset()
    """Partitions that the worker processes; empty: all."""
    manual: bool = False
    """Whether the worker takes all partitions that it processes, regardless of other workers."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """State what other workers, and commands, know of this one."""

    host: str
    scope: WorkerScope = field(default_factory=WorkerScope)
    url: str = ""
    was: tuple[str, ...] = ()
    """Names of this worker in earlier sessions, which it has lost."""

    def record(self, partitions: tuple[str, ...]) -> WorkerRecord:
        """Return the record of the worker while it has these partitions."""
        return WorkerRecord(partitions, self.host, self.scope.patterns, self.scope.manual, self.url, was=self.was)


@dataclass(slots=True)
class PartitionSharing:
    """Take part in the sharing for one session."""

    processor: MessageProcessor
    store: Store
    session: Session
    app: Application
    mirror: Mirror
    turn: DiscoveryTurn
    facts: WorkerFacts
    _path: str = ""
    """Path of the worker's record; empty before it has joined."""
    _runners: dict[QueuePartition, tuple[PartitionRunner, asyncio.Task[None]]] = field(default_factory=dict)
    _now: SharingView = field(default_factory=lambda: SharingView({}, {}, frozenset(), {}, frozenset()))
    """What the last check saw."""
    _seen: set[QueuePartition] = field(default_factory=set)
    """Partitions whose owner entry was seen to name this worker."""
    _failed: dict[QueuePartition, float] = field(default_factory=dict)
    """Partition -> time of the loop, in seconds, until which the worker leaves it alone."""
    _shown: tuple[str, ...] = ()
    _unreadable: set[str] = field(default_factory=set)
    _stirred: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Return the name of the worker in this session; empty before it has joined."""
        return self._path.rpartition("/")[2]

    async def join(self) -> None:
        """Register among the workers."""
        record = self.facts.record(())
        op = Append(self.app.workers.path, self.app.workers.encode(record), self.session.lease, WORKER_PREFIX)
        (entry,) = await self.store.commit([], [op])
        assert entry is not None, "an append answers with its entry"
        self._path = entry.path
        self.processor.works_as(f"{self.name} {self.facts.host}")
        await self.mirror.ready()
        # A mirror that does not show this worker yet would give it no share.
        await self.mirror.reached(entry.path, entry.version)

    async def run(self) -> None:
        """Share until cancelled. Raise StopWorker, JobExit or Stuck when a job demands the end."""
        loop = asyncio.get_running_loop()
        settled: frozenset[str] = frozenset()
        since_s = loop.time()
        while True:
            # Read before the view: a change that arrives in between is then not missed.
            seen, began_s = self.mirror.moves, loop.time()
            self._stirred.clear()
            now = view(self.app, self.mirror)
            self._steer(now)
            # Workers that start together join one after another; handing over after each would move partitions many
            # times.
            if frozenset(now.workers) != settled:
                settled, since_s = frozenset(now.workers), loop.time()
            still_s = since_s + self.processor.pace.settle_s - loop.time()
            try:
                busy = await self._look(now, settled=still_s <= 0)
                await self._show()
            except Unavailable as error:
                log.warning("the store does not answer (%s); trying again", error)
                # The check is incomplete, so the next one does not wait for the mirror to change.
                busy, seen = True, -1
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(max(REST_MIN_S, REST_FACTOR * (loop.time() - began_s)) if busy else REST_MIN_S)
            patience_s = AGAIN_S if self._failed else self.processor.pace.idle_s
            await self._stir(seen, still_s if still_s > 0 else patience_s)

    def wake(self, partitions: frozenset[QueuePartition] | None) -> None:
        """Wake the partitions in which something was posted; None means that any may be affected."""
        for partition, (runner, _) in self._runners.items():
            if partitions is None or partition in partitions:
                runner.wake()

    def owned(self) -> list[PartitionRunner]:
        return [runner for runner, _ in self._runners.values()]

    async def leave(self, within_s: float) -> None:
        """Give all partitions back once the running jobs have ended, or after `within_s` seconds."""
        for runner, _ in self._runners.values():
            runner.leave()
        # Announced after the runners were asked to leave: others now wait for these partitions and take each as soon as
        # it is free.
        await self._say_leaving()
        tasks = [task for _, task in self._runners.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        await self.abandon()

    async def abandon(self) -> None:
        """Stop immediately, and give back as much as the session still allows."""
        if self.session.lost.is_set():
            await self._stop()
        else:
            await unless(self.session.lost, self._hand_back())
        self._runners.clear()

    async def _hand_back(self) -> None:
        left = [runner for runner, task in self._runners.values() if not task.done()]
        await self._stop()
        await asyncio.gather(*(runner.give_back() for runner in left))

    async def _stop(self) -> None:
        """Cancel the runners and wait for them. This does without `end`: a job may swallow one cancellation, and
        must get the next."""
        tasks = [task for _, task in self._runners.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one check

    def _steer(self, now: SharingView) -> None:
        self.turn.give(now.workers, self.name)
        before, self._now = self._now.controls, now
        for partition, (runner, _) in self._runners.items():
            if before.get(partition) != now.controls.get(partition):
                runner.wake()

    async def _look(self, now: SharingView, *, settled: bool) -> bool:
        """Take and leave partitions according to the share; return whether there are any partitions."""
        self._reap()
        self._stop_lost(now)
        share = self._share(now)
        gone = [partition for partition in self._runners if partition not in now.partitions]
        for partition in gone:
            self._runners[partition][0].leave()
        # Taking what is free needs no pause, because owner entries decide. Only handing over waits until membership is
        # calm.
        if settled:
            for partition in self._runners.keys() - share:
                self._runners[partition][0].leave()
        rested = {
            partition for partition, until_s in self._failed.items() if until_s > asyncio.get_running_loop().time()
        }
        wanted = share - self._runners.keys() - rested
        # A strand is taken only if all of it is free: its partitions take turns, which only one worker can arrange.
        strands = [now.strand(head) for head in sorted({now.head(partition) for partition in wanted})]
        free = [strand for strand in strands if all(now.owners.get(one, self.name) == self.name for one in strand)]
        await asyncio.gather(*(self._take(now, strand, wanted) for strand in free))
        return bool(now.partitions)

    def _stop_lost(self, now: SharingView) -> None:
        """Stop the partitions whose owner entries named this worker and no longer do: their next commit would be
        refused. The entry of a partition that its runner releases may disappear before the runner has ended."""
        ours = {partition for partition in self._runners if now.owners.get(partition) == self.name}
        for partition in (self._seen & self._runners.keys()) - ours:
            runner, task = self._runners[partition]
            if partition in now.owners or not runner.leaving:
                task.cancel()
        self._seen = ours

    def _share(self, now: SharingView) -> frozenset[QueuePartition]:
        """Return the partitions of the strands that this worker should own."""
        only = {now.head(partition) for partition in self.facts.scope.only}
        able = {
            head
            for head in map(now.head, now.partitions)
            if not head.queue.startswith(RESERVED)
            and (not only or head in only)
            and self.processor.routes.of(head.queue) is not None
        }
        if not self.facts.scope.manual:
            takers = {n: record.takes for n, record in now.workers.items() if not (record.manual or record.leaving)}
            heads = {now.head(partition) for partition in now.partitions if not partition.queue.startswith(RESERVED)}
            # All workers must compute from the same heads. Those that only this worker cannot process are removed
            # afterwards.
            able &= set(share_out(takers, heads, now.owners).get(self.name, ()))
        return frozenset(partition for head in able for partition in now.strand(head))

    async def _take(self, now: SharingView, strand: list[QueuePartition], wanted: frozenset[QueuePartition]) -> None:
        """Take the wanted partitions of a strand, all or none."""
        queue = strand[0].queue
        route, priorities = self.processor.routes.of(queue), now.priorities.get(queue, 1)
        assert route is not None, "only partitions that a route fits are shared out"
        partitions = [partition for partition in strand if partition in wanted]
        owned = await take(self.store, self.session, self.app, partitions, self.name, self._leave_alone)
        # A partition added to a strand, or taken again after a failure, joins the order of those that already run.
        known = [self._runners[partition][0].rank.turns for partition in strand if partition in self._runners]
        turns = next((one for one in known if one.count == priorities), None) or self._turns(priorities)
        for ownership in owned:
            if ownership.partition in self._runners:
                continue
            rank = turns.of(priority_of(ownership.partition.number, priorities) - 1)
            view = WorkerView(
                lambda partition: self._now.controls.get(partition, Control()), lambda: self._now.alive, rank
            )
            runner = PartitionRunner(self.processor, ownership, route, view)
            task = asyncio.ensure_future(runner.run())
            task.add_done_callback(partial(self._ended, rank))
            self._runners[ownership.partition] = runner, task
            self.processor.figures.owned.set(len(self._runners))

    def _turns(self, priorities: int) -> StrandTurns:
        pace, places = self.processor.pace, self.processor.caller.places
        return StrandTurns(priorities, pace.patience_s, self.processor.now_ms, places.grant)

    def _ended(self, rank: Rank, _: asyncio.Task[None]) -> None:
        rank.rests()
        self._stirred.set()

    def _leave_alone(self, partition: QueuePartition, error: ValueError) -> None:
        self._say_once(f"{partition}: its progress is unreadable, so it is left alone: {error}")

    def _reap(self) -> None:
        """Raise what a job raised to end the worker."""
        for partition, (_, task) in list(self._runners.items()):
            if not task.done():
                continue
            del self._runners[partition]
            self.processor.figures.owned.set(len(self._runners))
            self.processor.figures.forget(partition.queue, partition.number)
            self._seen.discard(partition)
            if task.cancelled():
                log.warning("%s: this worker has lost it", partition)
                self.processor.figures.lost.inc()
                continue
            try:
                task.result()
            except (StopWorker, JobExit, Stuck):
                raise
            except StoreError as error:
                log.warning("%s: not released cleanly: %s", partition, error)
            except Exception:
                log.exception("%s: unexpected error; the partition is taken again in %s s", partition, AGAIN_S)
                self._failed[partition] = asyncio.get_running_loop().time() + AGAIN_S

    async def _show(self) -> None:
        shown = tuple(str(partition) for partition in sorted(self._runners))
        # The record only informs people; writing it at every check would wake the mirrors of all workers.
        if shown != self._shown:
            value = self.app.workers.encode(self.facts.record(shown))
            await self.store.commit([], [Put(self._path, value, self.session.lease)])
            self._shown = shown

    async def _stir(self, seen: int, for_s: float) -> None:
        """Wait for the store to change, or for a partition to end."""
        moved = asyncio.ensure_future(self.mirror.moved(seen))
        stirred = asyncio.ensure_future(self._stirred.wait())
        try:
            await asyncio.wait({moved, stirred}, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(moved, stirred)

    async def _say_leaving(self) -> None:
        """Announce that this worker leaves, so that others take its partitions immediately."""
        if not self._path:
            return
        record = replace(self.facts.record(self._shown), leaving=True)
        try:
            await self.store.commit([], [Put(self._path, self.app.workers.encode(record), self.session.lease)])
        except StoreError as error:
            log.info("cannot announce that this worker leaves (%s); others notice when it has left", error)

    def _say_once(self, text: str) -> None:
        if text not in self._unreadable:
            self._unreadable.add(text)
            log.error("%s", text)
