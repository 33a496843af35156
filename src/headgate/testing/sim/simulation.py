"""Simulate the whole gate under random schedules and faults: same seed, same run.

Each process has its own connection to the store, with faults at random requests.  The simulation checks: a change lands
only if it is approved at that moment, the gate is open and its needs have landed; it was tested on exactly its base,
with the configuration there; nothing lands twice; every change ends with a result and a reason, in the order of its
queue; no build is requested after its base is abandoned; only the writers that the map names write, under its locks;
nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from typing import Any, cast

from headgate.base.ids import drawn_from
from headgate.base.tasks import end, run_until
from headgate.config.parse import ParseCache
from headgate.map.places import Map
from headgate.ports.forge import Forge
from headgate.ports.history import HistoryReader
from headgate.ports.judge import Judging
from headgate.ports.occasions import OccasionSource
from headgate.recipes.mirror import Mirror
from headgate.services.context import COMMIT_OPS_MAX, Context, ProcessSettings
from headgate.services.courier import Courier
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Body, serve
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.occasions.messages import WatchedQueues
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend, Tree
from headgate.store.store import TTL_S, Store
from headgate.testing.backends import Dead, SimFault, SimLink
from headgate.testing.clock import run_virtual, tidily
from headgate.testing.lawful import LawfulBackend, Laws, Unlawful
from headgate.testing.sim.doubles import SimForge, SimGit, SimJudge, SimRunner
from headgate.testing.sim.intruder import Intruder
from headgate.testing.sim.judge import Notes, StoreJudge
from headgate.testing.sim.kinds import KINDS_WITHIN, SimKind, parsed
from headgate.testing.sim.posts import Customer, SimMessages, SimTaker
from headgate.testing.sim.story import Doubter, GateCloser, Mover, Story, Tagger
from headgate.testing.sim.worlds import InvariantBroken, SimWorld

TIME_MAX_S = 400.0
"""Limit in virtual time; a run that is not quiet by then hangs."""
SERVED_MAX_S = 100.0
"""Limit in virtual time on the wait of honest changes after the last proposal, whatever others do, without the time in
which faults happen."""
SimTask = asyncio.Task[None]
LOOK_INTERVAL_S, SERVED_INTERVAL_S = 5.0, 0.5
DEATHS_MAX = 3
FAULTS_MAX = 3
FAULT_AT = 2, 100
"""Range of the number of the request at which a process has a fault: few processes make more requests, most make fewer.
"""
SKEW_MAX_S = 300.0
"""Largest difference between the clocks of two processes."""

JUDGED_EVERY = 3
"""In one world in this many, proposals are judged separately and later."""
CLOSED_EVERY = 6
"""In one seed in this many, the gate is closed and opened at random moments."""
DOUBTED_EVERY = 4
"""In one seed in this many, approvals are withdrawn at random moments."""
FRESH_EVERY = 7
"""One seed in this many begins with an empty store; the others with the store that an earlier gate left."""
CUT_EVERY, CUT_OPS_MAX = 4, 13
"""One seed in this many uses commits of few operations, fewer than this: no larger turn is one commit there."""
APART = {"scheduler": frozenset({"scheduler", "web"}), **{one: frozenset({one}) for one in ("executor", "merger")}}
"""Kind of process -> the components it runs."""
SINGLE = {"gate": frozenset.union(*APART.values())}
SINGLE_EVERY = 5
"""Of this many seeds, every other one has a single process with all components, as `headgate run` has."""


@cache
def _laws() -> Laws:
    return Laws(Map().path)


_PARSED = ParseCache()
"""Cache of parsed configuration for all worlds: the same content has the same meaning in each."""


@dataclass(slots=True)
class Simulation:
    """Simulate a gate with one seed."""

    seed: int
    calm: bool = False
    """Whether there are no faults, and watches show each change immediately."""
    quiet: bool = False
    """Whether nobody proposes anything."""
    hostile: bool = False
    """Whether there is a hostile project; see `intruder`."""
    flood: int = 0
    """Number of hostile changes that are proposed before anything else."""
    circular: bool = False
    """Whether changes need each other."""
    posted: bool = False
    """Whether messages start a pipeline."""
    moving: bool = False
    """Whether pipelines come and go."""
    reusing: bool = False
    """Whether jobs set `reuse`."""
    harmless: bool = False
    """Whether the hostile project of a hostile world does no harm: other runs are compared with this one."""
    served_s: float = 0.0
    """Virtual time that the honest changes of a calm world waited after the last proposal."""
    idle_s: float = 0.0
    """Time for which the processes run on once all is quiet; meanwhile they must not send any request to the store."""
    deaths: int = 0
    links: list[tuple[Store, SimLink]] = field(default_factory=list)
    """Store and connection of each process that ever ran."""

    @property
    def kind(self) -> SimKind:
        if self.moving or self.reusing:
            return (SimKind.moving_of if self.moving else SimKind.reusing_of)(self.seed)
        of = SimKind.posted_of if self.posted else SimKind.circular_of if self.circular else SimKind.of
        of = SimKind.hostile_of if self.hostile else of
        return of(self.seed)

    def run(self) -> SimWorld:
        """Run the seed. Raise InvariantBroken that names the seed."""
        # Most runs begin where an earlier gate stopped, so that old records and locks are met, too.
        if self.seed % FRESH_EVERY == 0:
            return self.run_on(MemoryBackend())
        before = _left(self.kind)
        # A copy, since `_left` is cached and every run writes.
        return self.run_on(MemoryBackend(Tree(before.entries.values(), before.appended, before.revision)))

    def run_on(self, store: MemoryBackend) -> SimWorld:
        """Run the seed like `run`, on a store that may have been used before. Raise InvariantBroken, naming the
        seed."""
        try:
            # Ids decide orders in the store: drawn from the seed, a failing run can be repeated.
            with drawn_from(random.Random(f"ids {self.seed}").getrandbits):
                return run_virtual(self._run(store))
        except InvariantBroken as broken:
            raise InvariantBroken(f"seed {self.seed}: {broken}") from broken

    async def _run(self, store: MemoryBackend) -> SimWorld:
        chance = random.Random(self.seed)
        asyncio.get_running_loop().set_exception_handler(_unless_dead)
        world, notes, stop = self.world(chance), Notes(), asyncio.Event()
        judge = self.judge(store, world, notes)
        # A generator of its own for each question: one more draw somewhere must not change every world.
        cut = random.Random(f"cut {self.seed}").randrange(1, CUT_OPS_MAX)
        judge.turns_are_atomic = self.seed % CUT_EVERY != 1
        ops_max = COMMIT_OPS_MAX if judge.turns_are_atomic else cut
        processes = self.processes(self, world, judge, notes, chance, stop, ops_max)
        together = self.seed % SINGLE_EVERY % 2
        kinds = list(SINGLE) if together else [kind for kind in APART for _ in range(1 + (chance.random() < 0.3))]
        tasks = [asyncio.ensure_future(processes.run(kind, f"{kind}{n}")) for n, kind in enumerate(kinds)]
        story = asyncio.ensure_future(asyncio.sleep(0) if self.quiet else self.people(world, chance, judge))
        try:
            await _until_quiet(world, judge, story, tasks, self._disturbed)
            await self._idle()
        finally:
            stop.set()
            await asyncio.gather(story, *tasks, return_exceptions=True)
        judge.verify()
        world.reused, world.carried = notes.reused, notes.carried
        return world

    def world(self, chance: random.Random) -> SimWorld:
        """Return the world at the start."""
        return self.kind.world(chance)

    def judge(self, store: MemoryBackend, world: SimWorld, notes: Notes) -> StoreJudge:
        """Return the judge, which checks every commit and the final state."""
        return StoreJudge(store, world, notes)

    def processes(self, *of: Any) -> Processes:
        """Return the processes of this world."""
        return Processes(*of)

    async def people(self, world: SimWorld, chance: random.Random, judge: StoreJudge) -> None:
        stories = [self._honest(world, chance, judge)]
        if self.seed % DOUBTED_EVERY == DOUBTED_EVERY - 2:
            stories.append(Doubter(world, random.Random(f"doubts {self.seed}")).run())
        if self.seed % CLOSED_EVERY == CLOSED_EVERY - 1 and not self.hostile:
            stories.append(self._close_gate(world, judge))
        if self.kind.tagged and self.seed % FRESH_EVERY:  # refs that exist at the very first poll start nothing
            stories.append(Tagger(world, random.Random(f"tags {self.seed}")).run())
        if self.posted:
            stories.append(Customer(world.posts, random.Random(f"posts {self.seed}")).run())
        if self.moving:
            stories.append(Mover(world, random.Random(f"moves {self.seed}"), self.kind).run())
        if self.hostile and not self.harmless:
            stories.append(Intruder(world, random.Random(f"harm {self.seed}"), self.flood).run())
        await run_until(asyncio.Event(), *stories)

    async def _close_gate(self, world: SimWorld, judge: StoreJudge) -> None:
        """Close and reopen the gate at random moments, from a process that never fails."""
        loop, store, done = asyncio.get_running_loop(), Store(judge), asyncio.Event()
        context = Context(store, Mirror(store, Map().path), lambda: int((loop.time() + 1e6) * 1000))

        async def keeps() -> None:
            await context.mirror.ready()
            await GateCloser(world, random.Random(f"closings {self.seed}"), context).run()
            done.set()

        await run_until(done, context.mirror.run(), keeps())

    async def _honest(self, world: SimWorld, chance: random.Random, judge: StoreJudge) -> None:
        await Story(world, chance).run()
        if not self.calm:
            return
        loop = asyncio.get_running_loop()
        proposed_s = loop.time()
        for _ in range(int(SERVED_MAX_S / SERVED_INTERVAL_S)):
            if not judge.unserved():
                break
            await asyncio.sleep(SERVED_INTERVAL_S)
        self.served_s = loop.time() - proposed_s

    async def _idle(self) -> None:
        if not self.idle_s:
            return
        before = self._request_count()
        await asyncio.sleep(self.idle_s)
        # A watch reports every change, so that a request in an idle gate is a poll, and thousands of tenants would
        # multiply it.
        if self._request_count() != before:
            raise InvariantBroken(f"{self._request_count() - before} requests in {self.idle_s:.0f} s of idling")

    def _disturbed(self) -> bool:
        """Return whether a fault is in effect, or locks of a lost process may not have expired yet."""
        return asyncio.get_running_loop().time() < max(link.fault_until_s for _, link in self.links) + TTL_S

    def _request_count(self) -> int:
        """Return the number of requests to the store, without keep-alives."""
        return sum(store.counts.requests + store.counts.watches for store, _ in self.links)


def _unless_dead(loop: asyncio.AbstractEventLoop, failed: dict[str, Any]) -> None:
    """Report the failure of a task, unless its process died: then no one awaits the task."""
    if not isinstance(failed.get("exception"), Dead):
        loop.default_exception_handler(failed)


@cache
def _left(kind: SimKind) -> Tree:
    """Return the content of the store after a gate of this kind started, had nothing to do, and stopped."""
    store = MemoryBackend()
    simulations = (
        Simulation(
            seed,
            True,
            True,
            kind.hostile,
            circular=kind.circular,
            posted=kind.posted,
            moving=kind.moving,
            reusing=kind.reusing,
        )
        for seed in count()
    )
    next(simulation for simulation in simulations if simulation.kind == kind).run_on(store)
    return store.tree


def prepare(*of: Callable[[int], SimKind]) -> None:
    """Build the cached initial stores before a test breaks something, so that later tests do not get broken ones. `of`
    returns the kinds of worlds; by default, all kinds are prepared."""
    every = of or (SimKind.of, SimKind.hostile_of, SimKind.circular_of, SimKind.moving_of, SimKind.reusing_of)
    for kind in {kind_of(seed) for kind_of in every for seed in range(KINDS_WITHIN)}:
        _left(kind)


async def _until_quiet(
    world: SimWorld, judge: StoreJudge, story: SimTask, tasks: list[SimTask], disturbed: Callable[[], bool]
) -> None:
    loop = asyncio.get_running_loop()
    waited_s = 0.0
    while not story.done() or judge.left():
        await asyncio.sleep(LOOK_INTERVAL_S)
        # With bad luck, one fault follows another for minutes, and nobody can be served.
        waited_s += LOOK_INTERVAL_S if story.done() and not disturbed() else 0.0
        if world.broken is not None:
            raise world.broken
        for task in (story, *tasks):
            if task.done():
                task.result()
        if loop.time() > TIME_MAX_S:
            raise InvariantBroken(f"not quiet after {TIME_MAX_S:.0f} s: {judge.left()[:6]}")
        if waited_s > SERVED_MAX_S and (unserved := judge.unserved()):
            raise InvariantBroken(f"not served within {SERVED_MAX_S:.0f} s without a fault: {unserved[:6]}")


@dataclass(slots=True)
class Processes:
    """Run the processes of a simulated gate, which die and start again."""

    simulation: Simulation
    world: SimWorld
    judge: StoreJudge
    notes: Notes
    chance: random.Random
    stop: asyncio.Event
    ops_max: int

    async def run(self, kind: str, name: str) -> None:
        """Run a process that dies at some request and is started again, a few times."""
        calm = self.simulation.calm
        lives = 0 if calm else self.chance.randrange(DEATHS_MAX + 1)
        # Nothing that is decided may depend on comparing the clocks of two machines.
        skew_s = (self.chance.random() - 0.5) * SKEW_MAX_S
        while not self.stop.is_set():
            link = SimLink(self.judge, self.chance, {} if calm else self._faults(mortal=lives > 0), lags=not calm)
            lives -= 1
            components = {**APART, **SINGLE}[kind]
            store = Store(LawfulBackend(link, _laws(), components, self._unlawful))
            self.simulation.links.append((store, link))
            life = asyncio.ensure_future(self._life(components, name, store, skew_s))
            death = asyncio.ensure_future(link.died.wait())
            await asyncio.wait([life, death], return_when=asyncio.FIRST_COMPLETED)
            if link.died.is_set():
                self.simulation.deaths += 1
                await end(life)
                continue
            death.cancel()
            await life

    def _faults(self, *, mortal: bool) -> dict[int, SimFault]:
        """Map the number of a request to the fault that happens there; `mortal`: one of them is the process's death."""
        others, draw = [fault for fault in SimFault if fault is not SimFault.DEATH], self.chance.randrange
        met: dict[int, SimFault] = {draw(*FAULT_AT): self.chance.choice(others) for _ in range(draw(FAULTS_MAX))}
        return {**met, draw(*FAULT_AT): SimFault.DEATH} if mortal else met

    def _unlawful(self, unlawful: Unlawful) -> None:
        self.world.broken = self.world.broken or InvariantBroken(str(unlawful))

    @property
    def forges(self) -> Mapping[str, Forge]:
        return {}

    def scheduler(self, context: Context) -> Scheduler:
        text = self.simulation.kind.tenants
        if self.simulation.seed % JUDGED_EVERY == 1:
            context = replace(context, judging=Judging(SimJudge(self.world), at_once_max_bytes=0))
        forges, watched = {"sim": SimForge(self.world)}, dict[str, OccasionSource]()
        if self.simulation.posted:
            chance = random.Random(f"messages {self.simulation.seed}")
            watched = {"bus": WatchedQueues("bus", SimMessages(self.world.posts, chance), 1)}
        return Scheduler.of(context, text, parsed(text), "tenants.yaml", forges, _PARSED, watched=watched)

    def beside(self, context: Context) -> list[Body]:
        """Return further tasks of the web process, such as recording the history."""
        if not self.simulation.posted:
            return []
        taker = SimTaker(self.world.posts, random.Random(f"answers {self.simulation.seed}"))
        return [Courier(context, "bus", taker).run]

    @staticmethod
    def _together(*bodies: Body) -> Body:
        return lambda session: run_until(asyncio.Event(), *(body(session) for body in bodies))

    async def _life(self, components: Set[str], name: str, store: Store, skew_s: float) -> None:
        loop, stop, settings = asyncio.get_running_loop(), self.stop, ProcessSettings(name, ops_max=self.ops_max)
        mirror, past = Mirror(store, Map().path), cast(HistoryReader, self.notes) if self.simulation.reusing else None
        context = Context(
            store, mirror, lambda: int((loop.time() + 1e6 + skew_s) * 1000), settings, forges=self.forges, history=past
        )
        builds_max = random.Random(f"places {self.simulation.seed}").choice((1, 2, 4, 4))
        bodies: dict[str, Callable[[], Body]] = {
            "scheduler": lambda: self.scheduler(context).run,
            "web": lambda: Recorder(context, self.notes).run,
            "executor": lambda: Executor(context, SimRunner(self.world), ExecutorSettings(builds_max)).run,
            "merger": lambda: Merger(context, SimGit(self.world)).run,
        }
        if beside := self.beside(context):
            bodies["web"] = lambda: self._together(Recorder(context, self.notes).run, *beside)
        works = [serve(context, kind, body(), stop) for kind, body in bodies.items() if kind in components]
        await run_until(stop, context.mirror.run(), *works)


def simulate(
    seeds: Iterable[int], *, hostile: bool = False, circular: bool = False, posted: bool = False, moving: bool = False
) -> int:
    """Run all seeds and return the number of deaths. Raise InvariantBroken."""
    return sum(
        tidily(
            partial(_deaths, seed, hostile=hostile, circular=circular, posted=posted, moving=moving) for seed in seeds
        )
    )


def _deaths(seed: int, *, hostile: bool, circular: bool, posted: bool, moving: bool) -> int:
    simulation = Simulation(seed, hostile=hostile, circular=circular, posted=posted, moving=moving)
    simulation.run()
    return simulation.deaths
