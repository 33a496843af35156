"""Simulate claims of machines under random schedules and crashes: same seed, same run.

Executors and launchers die at random requests to the store; preparing or cleaning of machines fails; people lease
machines, too.  The simulation checks that no machine serves two builds at a time, or a build and a person; only clean
machines are handed over; no project exceeds its quota; no executor runs more builds than it has places; people have no
more machines than their share; every build is answered once; in the end nothing is claimed, leased or requested.
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
from headgate.config.operator.model import Label, Tenant
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.inventory.leases import HELD, ObjectLease
from headgate.inventory.model import ADMIN, Caller, Object, Partition, ProviderType
from headgate.map.inventory.places import InventoryMap
from headgate.map.places import Map
from headgate.ports.clouds import Machine, MachineUnusable, Provider
from headgate.ports.work import Contact
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.inventory.draft import Create
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.membership import serve
from headgate.services.nodes.launcher import Launcher
from headgate.services.nodes.requester import NodeRequester
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Backend, Entry
from headgate.testing.backends import SimFault, SimLink, dies
from headgate.testing.clock import run_virtual
from headgate.testing.nodes.doubles import MachineInvariantBroken, ask, results, wanted

TIME_MAX_S = 3_000.0
"""Limit in virtual time; a run that is not quiet by then hangs."""
LOOK_INTERVAL_S = 5.0
DEATHS_MAX = 3
FAULTS = 3
"""Faults of each process's life, besides its death."""
SURVIVED = tuple(fault for fault in SimFault if fault is not SimFault.DEATH)
STALLS = (SimFault.STALL, *SURVIVED)
"""Faults of launchers; a launcher with a late claim might claim machines that are taken."""
PARTITION = "a" * 32
QUOTA = 3
PLACES = 2
"""Builds that each executor runs at a time."""
PEOPLE, SHARE = 2, 2
"""Number of people who lease machines, and their share of the machines together."""
SEARCHES = {"small": "size=small", "any": "size", "fast": "tag:fast"}
LABELS = {name: Label(search, project="*") for name, search in SEARCHES.items()}
TENANTS = {"t": Tenant("t", (), labels=LABELS, max_nodes_per_project=QUOTA)}


@dataclass(slots=True)
class SimulatedMachines:
    """Represent the machines themselves."""

    chance: random.Random
    faults: float
    """Chance that preparing or cleaning fails."""
    dirty: dict[str, str] = field(default_factory=dict)
    """Machine -> the request or lease whose traces are on it."""
    busy: dict[str, str] = field(default_factory=dict)
    """Machine -> the build on it."""
    at_work: Counter[str] = field(default_factory=Counter)
    """Executor -> number of its running builds."""
    wrong: list[MachineInvariantBroken] = field(default_factory=list)
    """Broken invariants; they are kept here because the task that found one may end with another error."""

    def _broken(self, what: str) -> MachineInvariantBroken:
        self.wrong.append(MachineInvariantBroken(what))
        return self.wrong[-1]

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < self.faults:
            raise MachineUnusable(f"{machine.name} does not boot")
        # The same request may prepare a machine again, after an attempt whose end was not recorded.
        if self.dirty.get(machine.name, machine.request) != machine.request:
            raise self._broken(
                f"{machine.name} is given to {machine.request} with traces of {self.dirty[machine.name]}"
            )
        self.dirty[machine.name] = machine.request
        return {}

    async def clean(self, machine: Machine) -> None:
        if self.busy.get(machine.name):
            raise self._broken(f"{machine.name} is cleaned under build {self.busy[machine.name]}")
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < self.faults:
            raise MachineUnusable(f"{machine.name} does not answer")
        self.dirty.pop(machine.name, None)

    async def probe(self, machine: Machine) -> None:
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < 2 * self.faults:
            raise MachineUnusable(f"{machine.name} says nothing")

    @asynccontextmanager
    async def visit(self, lease: ObjectLease) -> AsyncIterator[None]:
        """Put a person on the machine, who leaves traces. Raise MachineInvariantBroken if it is in use, or if people
        have too many machines."""
        if other := self.busy.get(lease.name):
            raise self._broken(f"{lease.name} is leased to {lease.user} while {other} has it")
        self.busy[lease.name], self.dirty[lease.name] = f"{lease.user}-person", lease.id
        if (many := sum(user.endswith("-person") for user in self.busy.values())) > SHARE:
            raise self._broken(f"people have {many} machines; their share is {SHARE}")
        try:
            yield
        finally:
            del self.busy[lease.name]

    @asynccontextmanager
    async def build(self, spec: BuildSpec, executor: str) -> AsyncIterator[None]:
        """Reserve the build's machines and a place. Raise MachineInvariantBroken if another build has them."""
        names = [str(found["headgate_machine"]) for found in spec.hosts.values()]
        for name in names:
            if name in self.busy:
                raise self._broken(f"{name} is given to {spec.build} while {self.busy[name]} has it")
            self.busy[name] = spec.build
        if len(set(names)) != len(spec.job.nodeset.nodes):
            raise self._broken(f"{spec.build} wanted {len(spec.job.nodeset.nodes)} nodes and has {names}")
        # Builds are named PROJECT-NUMBER (`builds.wanted`).
        used = Counter(one.partition("-")[0] for one in self.busy.values() if not one.endswith("-person"))
        if max(used.values(), default=0) > QUOTA:
            raise self._broken(f"a project has more than {QUOTA} nodes: {used}")
        self.at_work[executor] += 1
        if self.at_work[executor] > PLACES:
            raise self._broken(f"{executor} has {self.at_work[executor]} builds at work, and {PLACES} places")
        try:
            yield
        finally:
            self.at_work[executor] -= 1
            for name in names:
                del self.busy[name]


@dataclass(slots=True)
class Building:
    """Imitate a runner of builds that use their machines."""

    simulated: SimulatedMachines
    executor: str

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        async with self.simulated.build(spec, self.executor):
            await asyncio.sleep(self.simulated.chance.random() * 20)
        return BuildOutcome(build=spec.build, result="SUCCESS")


MakeLauncher = Callable[[Context, Inventory, Mapping[str, Provider]], Launcher]


def a_launcher(context: Context, inventory: Inventory, providers: Mapping[str, Provider]) -> Launcher:
    return Launcher(context, inventory, lambda: TENANTS, providers)


@dataclass(slots=True)
class MachineSimulation:
    """Simulate claims of machines with one seed."""

    seed: int
    launcher: MakeLauncher = a_launcher
    deaths: int = 0
    leases: int = 0
    """Number of leases that were returned."""

    def run(self) -> dict[str, str]:
        """Build -> result.  Raise MachineInvariantBroken, naming the seed."""
        try:
            return run_virtual(self._run())
        except MachineInvariantBroken as broken:
            raise MachineInvariantBroken(f"seed {self.seed}: {broken}") from broken

    async def _run(self) -> dict[str, str]:
        chance = random.Random(self.seed)
        simulated = SimulatedMachines(chance, chance.choice((0.0, 0.2)))
        backend, stop = MemoryBackend(), asyncio.Event()
        await _furnish(backend, chance)
        builds = {spec.build: spec for spec in (_spec(number, chance) for number in range(chance.randrange(3, 9)))}
        await ask(backend, builds.values(), chance)
        processes = [
            self._process(kind, simulated, backend, chance, stop)
            for kind in ("launcher", "launcher", "executor1", "executor2")
        ]
        running = asyncio.ensure_future(run_until(stop, *processes))
        people = asyncio.gather(*(self._person(f"p{number}", simulated, backend, chance) for number in range(PEOPLE)))
        try:
            await self._until_quiet(simulated, backend, running, people)
        finally:
            stop.set()
            people.cancel()
            await asyncio.gather(running, people, return_exceptions=True)
        return results(backend, builds)

    async def _process(
        self, kind: str, simulated: SimulatedMachines, inner: MemoryBackend, chance: random.Random, stop: asyncio.Event
    ) -> None:
        """Run a process that meets faults, dies and is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            fault = STALLS if kind == "launcher" else SURVIVED
            faults: dict[int, SimFault] = {chance.randrange(3, 60): chance.choice(fault) for _ in range(FAULTS)}
            if lives > 0:
                faults[chance.randrange(3, 80)] = SimFault.DEATH
            lives -= 1
            backend = SimLink(inner, chance, faults)
            if not await dies(backend, self._life(kind, simulated, backend, stop)):
                return
            self.deaths += 1

    async def _life(self, kind: str, simulated: SimulatedMachines, backend: Backend, stop: asyncio.Event) -> None:
        loop, store = asyncio.get_running_loop(), Store(backend)
        context = Context(store, Mirror(store, Map().path), lambda: int(loop.time() * 1000), ProcessSettings(kind))
        works = [context.mirror.run()]
        if kind == "launcher":
            inventory = Inventory(store, InventoryMap(), lambda: int(loop.time() * 1000))
            launcher = self.launcher(context, inventory, {"static": simulated})
            works += [inventory.journal.run(), serve(context, "launcher", launcher.run, stop)]
            works.append(ObjectLeasing(inventory).run())
        else:
            runner = Building(simulated, kind)
            executor = Executor(
                context, runner, ExecutorSettings(PLACES), nodes=NodeRequester(context, lambda: TENANTS)
            )
            works.append(executor.membership.serve(executor.run, stop))
        await run_until(stop, *works)

    async def _person(
        self, user: str, simulated: SimulatedMachines, inner: MemoryBackend, chance: random.Random
    ) -> None:
        """Lease a machine, use it, and return it, in a loop."""
        loop, store = asyncio.get_running_loop(), Store(inner)
        inventory = Inventory(store, InventoryMap(), lambda: int(loop.time() * 1000))
        journal = asyncio.ensure_future(inventory.journal.run())
        leasing, caller = ObjectLeasing(inventory), Caller(user, "lab", PARTITION)
        try:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(chance.random() * 30)
                wanted = ObjectLease("", "", "", "", chance.choice(("size", "size=small", "tag:fast")), 120, 0)
                lease = await leasing.ask(caller, wanted, wait_s=2_000)
                while lease.state != HELD:
                    await asyncio.sleep(LOOK_INTERVAL_S)
                    lease, _ = await leasing.get(caller, lease.id)
                async with simulated.visit(lease):
                    await asyncio.sleep(chance.random() * 60)
                await leasing.end(caller, lease.id)
                self.leases += 1
        finally:
            journal.cancel()
            await asyncio.gather(journal, return_exceptions=True)

    @staticmethod
    async def _until_quiet(
        simulated: SimulatedMachines,
        backend: MemoryBackend,
        running: asyncio.Future[None],
        people: asyncio.Future[list[None]],
    ) -> None:
        loop, map = asyncio.get_running_loop(), Map()
        leases = InventoryMap().leases.active.path

        def left() -> list[Entry]:
            found = [*backend.tree.under(map.executor.path), *backend.tree.under(map.nodes.path)]
            return [*found, *(one for one in backend.tree.under(leases) if one.path != leases)]

        while left() or not people.done():
            await asyncio.sleep(LOOK_INTERVAL_S)
            if simulated.wrong:
                raise simulated.wrong[0]
            # It only ends by an error, which is raised here.
            if running.done():
                await running
            if loop.time() > TIME_MAX_S:
                raise MachineInvariantBroken(
                    f"not quiet after {TIME_MAX_S:.0f} s: {sorted(entry.path for entry in left())[:6]}"
                )
        # Raises what a person's task has met.
        await people
        if simulated.wrong:
            raise simulated.wrong[0]
        # Every machine was cleaned in the end, also those whose executor or launcher died while they were in use.
        if simulated.dirty:
            raise MachineInvariantBroken(f"traces are left on machines: {simulated.dirty}")


async def _furnish(backend: MemoryBackend, chance: random.Random) -> None:
    """Make an inventory with a few machines."""
    inventory = Inventory(Store(backend), InventoryMap(), lambda: 0)
    root = Caller("root", "lab", PARTITION, frozenset({ADMIN}))
    await inventory.begin()
    await inventory.admin.create_partition(root, Partition(PARTITION, "site"))
    await inventory.admin.set_provider_type(root, ProviderType("static"))
    provider = Object(PARTITION, "runm.provider", "", "b" * 32, "lab", {"kind": "static", "leases": str(SHARE)})
    await inventory.apply(root, [Create(provider)])
    for number in range(chance.randrange(2, 6)):
        size = "small" if number % 2 else "large"
        tags = ("fast",) if number < 2 else ()
        machine = Object(
            PARTITION, "runm.machine", "lab", f"{number:032x}", f"m{number}", {"provider": "lab", "size": size}, tags
        )
        await inventory.apply(root, [Create(machine)])


def _spec(number: int, chance: random.Random) -> BuildSpec:
    return wanted(
        number, chance.choice(("red", "blue")), [chance.choice(sorted(LABELS)) for _ in range(chance.randrange(4))]
    )
