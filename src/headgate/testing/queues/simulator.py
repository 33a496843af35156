"""Simulate queue workers under random schedules and faults: same seed, same run.

Workers join, leave, are drained, die, stall past their session, and commit late; they have slots for few jobs, some
jobs kill them, and the store is unavailable for a while.

The simulation checks that no partition stays without a worker or has two; each is processed in order with nothing
skipped; a message that runs twice was in flight; a message that is given up was started as often as its dead letter
says, and often enough; no message starts more often than the limits allow; a joining worker moves no more than its
share.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headgate.map.check import check
from headgate.map.trees import StoreTree
from headgate.map.workers import QueueMap
from headgate.queue.workers.calls import JobCaller
from headgate.queue.workers.processor import JobPace, MessageProcessor
from headgate.queue.workers.worker import QueueWorker
from headgate.queueing.message import Message
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At, Conflict, Entry, Op, StoreError, Unavailable
from headgate.testing.backends import MortalBackend
from headgate.testing.clock import run_virtual, tidily
from headgate.testing.queues.world import QueueWorld, SimSource, StrandOracle, now_ms
from headgate.testing.sim.worlds import InvariantBroken

TIME_MAX_S = 400.0
"""Limit in virtual time; a run that is not quiet by then hangs."""
LOOK_INTERVAL_S = 0.5
TTL_S = 3.0
ATTEMPTS = 3
MOST = Policy(attempts=ATTEMPTS, losses=4, departures=3, retry_delay_s=0.5)
DEATHS_MAX = 2
PACE = JobPace(
    page=4,
    commit_count=3,
    commit_s=0.3,
    idle_s=5.0,
    settle_s=0.2,
    drain_s=5.0,
    discover_s=5.0,
    lag_s=60.0,
    patience_s=2.0,
)


class LateBackend(MortalBackend):
    """Lose the connection at random, so that pending requests arrive late unless they are refused. While the world's
    store is unavailable, all connections are lost."""

    late: float = 0.02
    world: QueueWorld
    _away_until_s = 0.0

    def _here(self) -> None:
        if asyncio.get_running_loop().time() < max(self._away_until_s, self.world.away_until_s):
            raise Unavailable("the connection is lost")

    async def get(self, path: str) -> Entry | None:
        self._here()
        return await super().get(path)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        loop = asyncio.get_running_loop()
        self._here()
        if self._chance.random() < self.late:
            # Beyond the session in some cases: the request then arrives when somebody else owns the partition.
            away_s = TTL_S * 1.2 * self._chance.random()
            self._away_until_s = loop.time() + away_s
            loop.call_later(
                away_s + TTL_S * self._chance.random() ** 2, lambda: asyncio.ensure_future(self._arrive(checks, ops))
            )
            raise Unavailable("the connection is lost, the request under way")
        return await super().commit(checks, ops)

    async def _arrive(self, checks: Sequence[At], ops: Sequence[Op]) -> None:
        try:
            await self.inner.commit(checks, ops)
        except (Conflict, StoreError):
            return

    async def keep_alive(self, lease: object) -> None:
        self._here()
        await super().keep_alive(lease)  # type: ignore[arg-type]  # a lease


@dataclass(slots=True)
class QueueSimulation:
    """Simulate queues and their workers with one seed."""

    seed: int
    priorities: int = 1
    rough: bool = True
    """Whether stores and servers are unreachable at times."""
    deaths: int = 0
    repeated: int = 0
    overtaken: int = 0
    """Number of overtaken messages; see `StrandOracle`."""
    calm: bool = False
    """Whether processes no longer die or leave on their own."""
    restless: dict[int, asyncio.Event] = field(default_factory=dict)
    """Process that may still leave on its own -> the event that makes it leave."""
    processes: list[asyncio.Task[None]] = field(default_factory=list)

    def run(self) -> None:
        """Run the seed. Raise InvariantBroken that names the seed."""
        try:
            run_virtual(self._run())
        except InvariantBroken as broken:
            raise InvariantBroken(f"seed {self.seed}: {broken}") from broken

    async def _run(self) -> None:
        chance = random.Random(self.seed)
        backend = MemoryBackend()
        n = self.priorities
        world = QueueWorld(chance, QueueMap().app("sim"), backend, MOST, n)
        if n > 1:
            known = world.must, world.owner, world.taken_s, world.waiting_since
            world.strands = StrandOracle(n, PACE.patience_s, not self.rough, *known)
        partitions = [
            QueuePartition(f"q{q}", p + 1)
            for q in range(chance.randrange(1, 3))
            for p in range(n * chance.randrange(1, 3))
        ]
        for partition in partitions[n:]:
            world.create(partition)
        stop, watching = asyncio.Event(), asyncio.ensure_future(world.watch())
        workers = chance.randrange(1, 4)
        self.processes = [asyncio.ensure_future(self._process(n, world, chance, stop)) for n in range(workers)]
        story = asyncio.ensure_future(_story(world, partitions, chance, rough=self.rough))
        try:
            await self._until(world, lambda: story.done() and world.here(TTL_S) and _quiet(world))
            self.calm = True
            # Those who may still leave do so now, before shares are compared.
            for leaves in self.restless.values():
                leaves.set()
            await self._until(world, lambda: not self.restless and _shared(world, workers))
            await self._joins(world, workers, stop)
        finally:
            stop.set()
            for task in (story, watching):
                task.cancel()
            await asyncio.gather(story, watching, *self.processes, return_exceptions=True)
        await asyncio.sleep(TTL_S + 1)  # sessions of the dead run out
        self.repeated, self.overtaken = world.repeated, world.strands.overtaken if world.strands else 0
        _verify(world)

    async def _joins(self, world: QueueWorld, workers: int, stop: asyncio.Event) -> None:
        """Add one more worker, at rest, and check that it gets its share, and no more than that moves."""
        before = {partition: world.owner(partition) for partition in world.heads()}
        self.processes.append(asyncio.ensure_future(self._life(world, Store(world.backend), stop, stop)))
        await self._until(world, lambda: _shared(world, workers + 1))
        moved = sum(world.owner(partition) != owner for partition, owner in before.items())
        most = len(before) // (workers + 1)
        world.must(moved <= most, f"one worker joined {workers} and {moved} of {len(before)} partitions moved")

    async def _until(self, world: QueueWorld, holds: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not holds():
            await asyncio.sleep(LOOK_INTERVAL_S)
            if world.broken is not None:
                raise world.broken
            for task in self.processes:
                if task.done():
                    task.result()
            if loop.time() > TIME_MAX_S:
                owners = {str(partition): world.owner(partition) for partition in world.messages}
                left = world.unfinished()[:3], [str(partition) for partition in world.unrecorded()]
                raise InvariantBroken(f"not quiet after {TIME_MAX_S:.0f} s: {left} {owners}")

    async def _process(self, number: int, world: QueueWorld, chance: random.Random, stop: asyncio.Event) -> None:
        """Run a worker that dies at some request or is asked to leave, and is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            last, leaves = lives <= 0 or self.calm, asyncio.Event()
            lives -= 1
            self.restless.pop(number, None)
            if not last:
                self.restless[number] = leaves
            backend = LateBackend(world.backend, chance, None if last else chance.randrange(3, 60))
            backend.world = world
            # The last life has no faults, so that every run ends.
            backend.late = 0.0 if last or not self.rough else backend.late
            life = asyncio.ensure_future(self._life(world, Store(backend), stop, leaves, backend.died))
            death = asyncio.ensure_future(backend.died.wait())
            if not last and chance.random() < 0.3:
                asyncio.get_running_loop().call_later(chance.random() * 5, leaves.set)
            await asyncio.wait([life, death], return_when=asyncio.FIRST_COMPLETED)
            if backend.died.is_set():
                self.deaths += 1
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
                await asyncio.sleep(chance.random())
                continue
            death.cancel()
            await life

    async def _life(
        self,
        world: QueueWorld,
        store: Store,
        stop: asyncio.Event,
        leaves: asyncio.Event,
        died: asyncio.Event | None = None,
    ) -> None:
        """Run a worker until `stop` or `leaves`, which is then set."""
        name = f"life-{world.chance.randrange(10**6)}"

        async def job(message: Message, context: None) -> None:
            world.begins(name, message)
            well = False
            try:
                if message.message_id in world.poison and died is not None:
                    await asyncio.sleep(world.chance.choice((0.0, 0.0, 0.1, 2.0)))
                    died.set()
                    # A dead process never answers: the cancellation from outside ends this.
                    await asyncio.Event().wait()
                slow = world.chance.random() < 0.05
                await asyncio.sleep(world.chance.random() * (8.0 if slow else 0.2))
                if world.failing.get(message.message_id, 0) > 0:
                    world.failing[message.message_id] -= 1
                    world.raised[message.message_id] += 1
                    raise RuntimeError("planned failure")
                well = True
            finally:
                world.ends(message, well=well)

        routes = Routing((RoutingRule("*", job, replace(MOST, blocking=world.chance.random() < 0.3)),))
        caller = JobCaller(world.chance.choice((1, 1, 2, 20)), 1)
        source = SimSource(world) if self.rough else SimSource(world, 0.0)
        pace = replace(PACE, drain_s=world.chance.choice((0.2, 5.0)))
        processor = MessageProcessor(source, routes, caller, None, now_ms, pace=pace, chance=world.chance)
        worker = QueueWorker(processor, store, world.app, name, ttl_s=TTL_S)
        both = asyncio.ensure_future(_either(stop, leaves))
        try:
            await worker.run(leaves)
        finally:
            both.cancel()


async def _either(stop: asyncio.Event, leaves: asyncio.Event) -> None:
    await stop.wait()
    leaves.set()


async def _story(world: QueueWorld, partitions: list[QueuePartition], chance: random.Random, *, rough: bool) -> None:
    """Post messages, some of them bad; one strand comes late."""
    late = partitions[: world.priorities]
    for step in range(chance.randrange(1, 4)):
        for partition in partitions if step else partitions[world.priorities :]:
            for _ in range(chance.randrange(4 if world.priorities == 1 else 9)):
                message = world.post(partition)
                if chance.random() < 0.05:
                    world.poison.add(message.message_id)
                elif chance.random() < 0.2:
                    world.failing[message.message_id] = chance.randrange(1, ATTEMPTS + 2)
        if not step:
            for partition in late:
                world.create(partition)
        await asyncio.sleep(chance.random() * 4)
        if chance.random() < 0.2 and rough:
            world.away_until_s = asyncio.get_running_loop().time() + TTL_S * 2 * chance.random()


def _quiet(world: QueueWorld) -> bool:
    """Return whether everything is processed and recorded, and every partition has its worker."""
    return not world.unfinished() and not world.unrecorded() and all(map(world.owner, world.messages))


def _shared(world: QueueWorld, workers: int) -> bool:
    """Return whether this many workers are registered, and their shares differ by at most one."""
    names = [e.path.rpartition("/")[2] for e in world.backend.tree.under(world.app.workers.path)]
    owners = [world.owner(partition) for partition in world.heads()]
    sizes = [owners.count(name) for name in names]
    return len(names) == workers and None not in owners and max(sizes) - min(sizes) <= 1


def _verify(world: QueueWorld) -> None:
    if world.broken is not None:
        raise world.broken
    world.must(not world.unfinished(), f"never processed: {world.unfinished()}")
    world.must(not world.unrecorded(), f"not recorded at the end: {world.unrecorded()}")
    root = QueueMap().path
    left = [e.path for e in world.backend.tree.under(root) if e.lease is not None]
    world.must(not left, f"left behind by workers that have ended: {left}")
    findings = check(world.backend.tree.under(root), [StoreTree(root, QueueMap)])
    world.must(not findings.unknown and not findings.undecodable, f"off the map: {findings.text()}")


def simulate_queues(first: int, count: int) -> tuple[int, int]:
    """Run the seeds `first` … `first + count - 1`, and return the numbers of deaths and repetitions. Raise
    InvariantBroken."""
    found = list(tidily(partial(_run, seed) for seed in range(first, first + count)))
    return sum(one.deaths for one in found), sum(one.repeated for one in found)


def simulate_priorities(first: int, count: int) -> tuple[int, int]:
    """Run seeds with queues of two or three priorities; for even seeds, stores and servers are always available. Return
    the numbers of deaths and of late messages that came before others. Raise InvariantBroken."""
    found = list(tidily(partial(_run, seed, 2 + seed // 2 % 2, seed % 2 == 1) for seed in range(first, first + count)))
    return sum(one.deaths for one in found), sum(one.overtaken for one in found)


def _run(seed: int, priorities: int = 1, rough: bool = True) -> QueueSimulation:
    simulation = QueueSimulation(seed, priorities, rough)
    simulation.run()
    return simulation
