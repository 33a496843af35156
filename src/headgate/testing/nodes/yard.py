"""Machines claimed under random schedules and deaths: same seed, same run.

Executors and launchers die at random requests to the store; machines fail to be prepared or cleaned.  What is checked:
no machine serves two builds at a time, none is handed over that is not clean, no project has more than its quota,
every build ends, and in the end nothing is claimed, asked or answered any more.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate.base.tasks import run_until
from headgate.config.model import FrozenJob, Node, Nodeset
from headgate.config.operator.model import Label, Tenant
from headgate.gate.change import Change
from headgate.gate.work import BuildSpec
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.map.inventory.places import InventoryMap
from headgate.map.places import Map
from headgate.ports.provider import Machine, Provider, Unusable
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.inventory.draft import Create
from headgate.services.inventory.inventory import Inventory
from headgate.services.membership import Body, serve
from headgate.services.nodes.asking import Asking, NoNodes
from headgate.services.nodes.launcher import Launcher
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import Backend
from headgate.testing.loop import run_virtual
from headgate.testing.sim.link import Link, Trouble

TIME_MAX_S = 3_000.0
"""Virtual; a run that is not quiet by then hangs."""
LOOK_INTERVAL_S = 5.0
DEATHS_MAX = 3
TROUBLES = 2
"""Of each life, besides its death."""
SURVIVED = tuple(trouble for trouble in Trouble if trouble is not Trouble.DEATH)
PARTITION = "a" * 32
QUOTA = 3
LABELS = {"small": Label("size=small"), "any": Label("size"), "fast": Label("tag:fast")}
TENANTS = {"t": Tenant("t", (), labels=LABELS, max_nodes_per_project=QUOTA)}


class Broken(AssertionError):
    """What must never be, was."""


@dataclass(slots=True)
class Yard:
    """The machines themselves."""

    chance: random.Random
    faults: float
    """How often preparing or cleaning fails."""
    dirty: dict[str, str] = field(default_factory=dict)
    """Machine -> whose traces are on it."""
    busy: dict[str, str] = field(default_factory=dict)
    """Machine -> the build on it."""
    ended: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < self.faults:
            raise Unusable(f"{machine.name} does not boot")
        if self.dirty.get(machine.name, machine.request) != machine.request:
            raise Broken(f"{machine.name} is given to {machine.request} with traces of {self.dirty[machine.name]}")
        self.dirty[machine.name] = machine.request
        return {}

    async def clean(self, machine: Machine) -> None:
        if self.busy.get(machine.name):
            raise Broken(f"{machine.name} is cleaned under build {self.busy[machine.name]}")
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < self.faults:
            raise Unusable(f"{machine.name} does not answer")
        self.dirty.pop(machine.name, None)

    @asynccontextmanager
    async def at_work(self, spec: BuildSpec) -> AsyncIterator[None]:
        """A build has its machines for itself."""
        names = [str(found["headgate_machine"]) for found in spec.hosts.values()]
        for name in names:
            if name in self.busy:
                raise Broken(f"{name} is given to {spec.build} while {self.busy[name]} has it")
            self.busy[name] = spec.build
        if len(set(names)) != len(spec.job.nodeset.nodes):
            raise Broken(f"{spec.build} wanted {len(spec.job.nodeset.nodes)} nodes and has {names}")
        used = Counter(build.partition("-")[0] for build in self.busy.values())
        if max(used.values()) > QUOTA:
            raise Broken(f"a project has more than {QUOTA} nodes: {used}")
        try:
            yield
        finally:
            for name in names:
                del self.busy[name]


MakeLauncher = Callable[[Context, Inventory, Mapping[str, Provider]], Launcher]


def a_launcher(context: Context, inventory: Inventory, providers: Mapping[str, Provider]) -> Launcher:
    return Launcher(context, inventory, lambda: TENANTS, providers)


@dataclass(slots=True)
class Simulation:
    seed: int
    launcher: MakeLauncher = a_launcher
    deaths: int = 0

    def run(self) -> Yard:
        """Raises Broken, naming the seed."""
        try:
            return run_virtual(self._run())
        except Broken as broken:
            raise Broken(f"seed {self.seed}: {broken}") from broken

    async def _run(self) -> Yard:
        chance = random.Random(self.seed)
        yard = Yard(chance, chance.choice((0.0, 0.2)))
        backend, stop = MemoryBackend(), asyncio.Event()
        await _furnish(backend, chance)
        builds = [_spec(number, chance) for number in range(chance.randrange(3, 9))]
        left = {spec.build: spec for spec in builds}
        processes = [
            self._process(kind, yard, backend, chance, stop, left)
            for kind in ("launcher", "launcher", "executor1", "executor2")
        ]
        running = asyncio.ensure_future(run_until(stop, *processes))
        try:
            await _until_quiet(yard, backend, left, running)
        finally:
            stop.set()
            await asyncio.gather(running, return_exceptions=True)
        return yard

    async def _process(
        self, kind: str, yard: Yard, inner: MemoryBackend, chance: random.Random, stop: asyncio.Event,
        left: dict[str, BuildSpec],
    ) -> None:  # fmt: skip
        """Lives, meets troubles, dies, is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            troubles: dict[int, Trouble] = {chance.randrange(3, 200): chance.choice(SURVIVED) for _ in range(TROUBLES)}
            if lives > 0:
                troubles[chance.randrange(3, 80)] = Trouble.DEATH
            lives -= 1
            backend = Link(inner, chance, troubles)
            life = asyncio.ensure_future(self._life(kind, yard, backend, stop, left))
            death = asyncio.ensure_future(backend.died.wait())
            await asyncio.wait([life, death], return_when=asyncio.FIRST_COMPLETED)
            if not backend.died.is_set():
                death.cancel()
                await life
                return
            self.deaths += 1
            life.cancel()
            (end,) = await asyncio.gather(life, return_exceptions=True)
            if isinstance(end, Broken):
                raise end

    async def _life(
        self, kind: str, yard: Yard, backend: Backend, stop: asyncio.Event,
        left: dict[str, BuildSpec],
    ) -> None:  # fmt: skip
        loop, store = asyncio.get_running_loop(), Store(backend)
        context = Context(store, Mirror(store, Map().path), lambda: int(loop.time() * 1000), hostname=kind)
        works = [context.mirror.run()]
        if kind == "launcher":
            inventory = Inventory(store, InventoryMap(), lambda: int(loop.time() * 1000))
            launcher = self.launcher(context, inventory, {"static": yard})
            works += [inventory.journal.run(), serve(context, "launcher", launcher.run, stop)]
        else:
            works.append(serve(context, "executor", _building(context, yard, left, kind), stop))
        await run_until(stop, *works)


def _building(context: Context, yard: Yard, left: dict[str, BuildSpec], kind: str) -> Body:
    """An executor that runs the builds that are its own, each until it has ended once."""
    asking = Asking(context, lambda: TENANTS)

    async def one(session: Session, spec: BuildSpec) -> None:
        try:
            async with asking.take(session, spec, asyncio.Event()) as ready:
                assert ready is not None, "nothing cancels it"
                async with yard.at_work(ready):
                    await asyncio.sleep(yard.chance.random() * 20)
        except NoNodes as none:
            yard.refused.append(str(none))
        left.pop(spec.build, None)
        yard.ended.add(spec.build)

    async def body(session: Session) -> None:
        own = [spec for build, spec in left.items() if int(build[-1]) % 2 == int(kind[-1]) % 2]
        await run_until(asyncio.Event(), *(one(session, spec) for spec in own))
        await asyncio.Event().wait()

    return body


async def _furnish(backend: MemoryBackend, chance: random.Random) -> None:
    """An inventory with a few machines."""
    inventory = Inventory(Store(backend), InventoryMap(), lambda: 0)
    root = Caller("root", "lab", PARTITION, frozenset({ADMIN}))
    await inventory.begin()
    await inventory.admin.create_partition(root, Partition(PARTITION, "site"))
    provider = Object(PARTITION, "runm.provider", "", "b" * 32, "lab", {"kind": "static"})
    await inventory.apply(root, [Create(provider)])
    for number in range(chance.randrange(2, 6)):
        size = "small" if number % 2 else "large"
        tags = ("fast",) if number < 2 else ()
        machine = Object(
            PARTITION, "runm.machine", "lab", f"{number:032x}", f"m{number}", {"provider": "lab", "size": size}, tags
        )
        await inventory.apply(root, [Create(machine)])


def _spec(number: int, chance: random.Random) -> BuildSpec:
    project = chance.choice(("red", "blue"))
    labels = [chance.choice(sorted(LABELS)) for _ in range(chance.randrange(1, 4))]
    nodes = tuple(Node((f"n{place}",), label) for place, label in enumerate(labels))
    change = Change(connection="sim", project=project, branch="m", topic="t", commit="c", ref="r")
    job = FrozenJob(name="j", nodeset=Nodeset(nodes=nodes))
    return BuildSpec(
        build=f"{project}-{number}", buildset="s", tenant="t", pipeline="p", item="i", job=job, change=change
    )


async def _until_quiet(
    yard: Yard, backend: MemoryBackend, left: dict[str, BuildSpec], running: asyncio.Future[None]
) -> None:
    loop = asyncio.get_running_loop()
    while left or backend.tree.under(Map().nodes.path):
        await asyncio.sleep(LOOK_INTERVAL_S)
        if running.done():
            await running
        if loop.time() > TIME_MAX_S:
            paths = sorted(entry.path for entry in backend.tree.under(Map().nodes.path))
            raise Broken(f"not quiet after {TIME_MAX_S:.0f} s: {sorted(left)} {paths[:6]}")
    if yard.dirty:
        raise Broken(f"traces are left on machines: {yard.dirty}")
