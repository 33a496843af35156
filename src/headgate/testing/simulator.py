"""The whole gate under random schedules and deaths: same seed, same run.

Each process has its own store connection and dies at a random request.  What is checked: what lands was tested on
exactly the base it lands on; nothing lands twice; every approved change ends landed or rejected with a reason, which
is no fault of another change that did not land; the order within the queue is kept; nothing is left behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.base.tasks import run_until
from headgate.config.tenants import Connection, parse_tenants
from headgate.gate.change import Change
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.records import Finished
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.executor import EVENT_DATA_MAX_BYTES, Executor
from headgate.services.membership import serve
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.loop import run_virtual
from headgate.testing.mortal import MortalBackend
from headgate.testing.simworld import HOST, UNSERVED, Broken, SimForge, SimGit, SimRunner, World

TIME_MAX_S = 900.0
"""Virtual; a run that is not quiet by then hangs."""
LOOK_INTERVAL_S = 1.0
DEATHS_MAX = 3

TENANTS = """
- tenant:
    name: t
    source:
      sim:
        config-projects: [config]
        untrusted-projects: [a, b]
"""
CONFIG = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {sim: [{event: change-approved}]}
    require: {sim: {approved: true}}
    success: {sim: {land: true}}
    failure: {sim: {}}
    window: 3
    window-floor: 2
- job: {name: base, parent: null, run: jobs/x}
- job: {name: unit}
- job: {name: together, dependencies: unit, semaphore: one}
- semaphore: {name: one, max: 2}
- project:
    name: ^.*$
    queue: shared
    gate: {jobs: [unit, together]}
"""
SERVED = (
    CONFIG.replace("[unit, together]", "[unit, serves, together]").replace(
        "dependencies: unit", "dependencies: [unit, serves]"
    )
    + "- job: {name: serves}\n"
)
"""The same with a job that pauses until the one that needs it has ended, and much returned by all."""
SERVED_EVERY = 5
"""Every so many seeds have it."""


@dataclass(slots=True)
class Notes:
    """The history of a simulated gate."""

    finished: dict[str, Finished] = field(default_factory=dict)

    async def record(self, finished: Finished) -> None:
        self.finished[finished.buildset] = finished


@dataclass(slots=True)
class Simulation:
    seed: int
    deaths: int = 0

    def run(self) -> World:
        """Raises Broken, naming the seed."""
        try:
            return run_virtual(self._run())
        except Broken as broken:
            raise Broken(f"seed {self.seed}: {broken}") from broken

    async def _run(self) -> World:
        chance = random.Random(self.seed)
        served = self.seed % SERVED_EVERY == 0
        heads = {f"{HOST}/{name}": "h" for name in ("a", "b", "config")}
        world = World(chance, SERVED if served else CONFIG, heads)
        if served:
            world.served, world.returned = ("together",), {"much": "x" * (EVENT_DATA_MAX_BYTES + 1)}
        backend, notes, stop = MemoryBackend(), Notes(), asyncio.Event()
        kinds = ("scheduler", "executor", "merger")
        tasks = [asyncio.ensure_future(self._process(k, world, backend, notes, chance, stop)) for k in kinds]
        story = asyncio.ensure_future(_story(world, chance))
        try:
            await self._until_quiet(world, backend, notes, story, tasks)
        finally:
            stop.set()
            await asyncio.gather(story, *tasks, return_exceptions=True)
        _verify(world, notes, backend)
        return world

    async def _until_quiet(
        self,
        world: World,
        backend: MemoryBackend,
        notes: Notes,
        story: asyncio.Task[None],
        tasks: list[asyncio.Task[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        while not (story.done() and _quiet(world, backend, notes)):
            await asyncio.sleep(LOOK_INTERVAL_S)
            if world.broken is not None:
                raise world.broken
            for task in tasks:
                if task.done():
                    task.result()
            if loop.time() > TIME_MAX_S:
                left = sorted(e.path for e in backend.tree.under(Map().tenant("t").path))
                raise Broken(f"not quiet after {TIME_MAX_S:.0f} s: {sorted(world.open)} {left[:6]}")

    async def _process(
        self, kind: str, world: World, inner: MemoryBackend, notes: Notes, chance: random.Random, stop: asyncio.Event
    ) -> None:
        """Lives, dies at some request, is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            dies_at = chance.randrange(5, 150) if lives > 0 else None
            lives -= 1
            backend = MortalBackend(inner, chance, dies_at)
            life = asyncio.ensure_future(self._life(kind, world, Store(backend), notes, stop))
            death = asyncio.ensure_future(backend.died.wait())
            await asyncio.wait([life, death], return_when=asyncio.FIRST_COMPLETED)
            if backend.died.is_set():
                self.deaths += 1
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
                continue
            death.cancel()
            await life

    async def _life(self, kind: str, world: World, store: Store, notes: Notes, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        context = Context(store, Mirror(store, Map().path), lambda: int(loop.time() * 1000), hostname=kind)
        scheduler = _scheduler(context, world) if kind == "scheduler" else None
        works = [context.mirror.run()]
        if scheduler is not None:
            works += [
                serve(context, "scheduler", scheduler.run, stop),
                serve(context, "web", Recorder(context, notes).run, stop),
            ]
        elif kind == "executor":
            works.append(serve(context, "executor", Executor(context, SimRunner(world), builds_max=4).run, stop))
        else:
            works.append(serve(context, "merger", Merger(context, SimGit(world)).run, stop))
        await run_until(stop, *works)


def _scheduler(context: Context, world: World) -> Scheduler:
    tenants = parse_tenants(TENANTS, "tenants.yaml", {"sim": Connection("sim", HOST)})
    return Scheduler.of(context, TENANTS, tenants, "tenants.yaml", {"sim": SimForge(world)})


async def _story(world: World, chance: random.Random) -> None:
    """People propose, approve, withdraw, and now and then push past the gate."""
    count = chance.randrange(2, 7)
    for number in range(count):
        project = chance.choice(("a", "b"))
        needs: tuple[str, ...] = ()
        if number and chance.random() < 0.3:
            needs = (chance.choice([*world.open.values()]).change.key,) if world.open else ()
        commit = f"c{number}"
        if chance.random() < 0.2:
            world.conflicting.add(frozenset([commit]))
        elif number and chance.random() < 0.25:
            world.conflicting.add(frozenset([commit, f"c{chance.randrange(number)}"]))
        if number and chance.random() < 0.1:
            world.unmergeable.add(frozenset([commit, f"c{chance.randrange(number)}"]))
        change = Change(
            connection="sim", project=f"{HOST}/{project}", branch="master", topic=f"t{number}", commit=commit,
            ref=f"refs/for/master/t{number}", files=("x",), needs=needs,
        )  # fmt: skip
        world.propose(change, approved=True)
        await asyncio.sleep(chance.random() * 2)
        if chance.random() < 0.1:
            world.push_past_the_gate(f"{HOST}/{project}")
        if world.open and chance.random() < 0.1:
            del world.open[chance.choice(sorted(world.open))]
            world.stir()


def _quiet(world: World, backend: MemoryBackend, notes: Notes) -> bool:
    """Every change has an end, nothing waits, nothing runs."""
    map = Map()
    known = {finished.change.key for finished in notes.finished.values()}
    if any(key not in known for key in world.open):
        return False
    busy = (map.events.path, map.history.queue.path, map.merger.requests.path, map.executor.unzoned.requests.path)
    waiting = [e for p in busy for e in backend.tree.under(p) if "election" not in e.path]
    return not waiting and not backend.tree.under(f"{map.tenant('t').pipeline('gate').path}/item")


def _verify(world: World, notes: Notes, backend: MemoryBackend) -> None:
    twice = [key for key, count in world.pushes.items() if count > 1]
    if twice:
        raise Broken(f"landed twice: {twice}")
    told = {f.change.key for f in notes.finished.values() if f.result == "SUCCESS"}
    if told != set(world.landed):
        raise Broken(f"landed {sorted(world.landed)} but told {sorted(told)}")
    reasonless = [f.change.key for f in notes.finished.values() if f.result != "SUCCESS" and not f.message]
    if reasonless:
        raise Broken(f"rejected without a reason: {reasonless}")
    for finished in notes.finished.values():
        on = {commit for build in finished.builds for commit in world.failed.get(build["uuid"], ())}
        beneath = {key for commit, key in world.proposed.items() if commit in on} - {finished.change.key}
        if finished.result == "FAILURE" and not finished.change.needs and not beneath <= set(world.landed):
            raise Broken(f"{finished.change.key} was rejected for {sorted(beneath - set(world.landed))}")
    if any(UNSERVED in f.message and "RETRY_LIMIT" not in f.message for f in notes.finished.values()):
        raise Broken("rejected because the executor of a paused build was lost")
    for one, other in zip(world.landed, world.landed[1:], strict=False):
        times = {f.change.key: f.enqueued_ms for f in notes.finished.values() if f.result == "SUCCESS"}
        if times[one] > times[other]:
            raise Broken(f"{other} was before {one} in the queue and landed after it")
    left = [entry.path for entry in backend.tree.under(Map().executor.unzoned.result_data.path)]
    if left:
        raise Broken(f"data that no event names: {left}")
    findings = check(backend.tree.under(Map().path))
    if findings.unknown or findings.undecodable:
        raise Broken(f"off the map: {findings.unknown} {findings.undecodable}")


def simulate(first: int, count: int, progress: Callable[[int], None] = lambda seed: None) -> int:
    """Runs seeds `first` … `first + count - 1`; how many deaths there were in all.  Raises Broken."""
    deaths = 0
    for seed in range(first, first + count):
        simulation = Simulation(seed)
        simulation.run()
        deaths += simulation.deaths
        progress(seed)
    return deaths
