"""Simulate making machines under random schedules, crashes and clouds that lie: same seed, same run.

The simulation checks that one machine, or one slot of it, serves one build (unless its label allows reuse), and none
disappears while its build runs; in the end every machine in an account is recorded or gone, every build has an answer,
and nothing waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate.adapters.nodes.clouds.static.driver import StaticHosts
from headgate.base.ids import drawn_from
from headgate.base.tasks import run_until, unless
from headgate.config.machines import STATIC, FlatLabel, FlatProvider
from headgate.config.operator.model import Tenant
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.inventory.nodes import Installation, MadeNode, NodeWait
from headgate.map.places import Map
from headgate.ports.clouds import NODE_TAG, Cloud, MachineUnusable
from headgate.ports.work import Contact
from headgate.recipes.codec import decode
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import serve
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.services.nodes.requester import NodeRequester
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import At, Backend, Put
from headgate.testing.backends import SimFault, SimLink, dies
from headgate.testing.clock import run_virtual
from headgate.testing.nodes.doubles import CloudFaults, MachineInvariantBroken, Sky, ask, results, wanted

TIME_MAX_S, TIME_MAX_OF_TWO_S = 3_600.0, 7_200.0
"""Limits in virtual time, for one installation and for two; a run that is not quiet by then hangs."""
DEATHS_MAX = 2
PROJECT_MAX = 4
LABELS = ("small", "large", "east", "again", "iron", "packed", "shared")
LISTED, REUSED = "iron", ("again", "iron", "shared")
SLOTS = {"packed": 3, "shared": 2}
"""Label -> number of builds that share one of its machines, where a driver supports that."""
ZONES: Mapping[str, Mapping[str, str]] = {
    "deep": {"p/one": "cellar"},
    "high": {"p/two": "attic"},
    "both": {"p/one": "cellar", "p/two": "attic"},
}
"""Label -> provider -> the zone whose executors reach its machines there."""
HOSTS: tuple[dict[str, Any], ...] = (
    {"name": "h1", "label": "iron", "slots": 2},
    {"name": "h2", "label": "iron", "host": "10.0.0.2", "host-key": "key of 10.0.0.2"},
)
TENANTS = {name: Tenant(name, (), max_nodes_per_project=PROJECT_MAX) for name in ("t", "u")}
PROVIDER_MAX = 3
"""Limit of the first provider, over all tenants."""


def label(name: str, **settings: Any) -> FlatLabel:
    """Return a label as a provider has it."""
    configuration = {"name": name, "boot-timeout": 300, **settings}
    return FlatLabel(name, configuration, {"connection-type": "ssh"}, {}, digest=name)


def providers(chance: random.Random, ready_max: int = 1) -> list[FlatProvider]:
    """Return two providers in one account and one in another, each with some of the labels. At most `ready_max`
    machines of a label are kept ready."""
    small, large, east = label("small", aliases=["tiny"]), label("large"), label("east")
    again = label("again", reuse=True)
    packed = label("packed", slots=SLOTS["packed"], **chance.choice(({}, {"max-age": 300}, {"max-ready-age": 60})))
    shared = label("shared", slots=SLOTS["shared"], reuse=True)
    ready = FlatLabel("small", small.label, small.image, small.flavor, chance.randrange(ready_max + 1), digest="small")
    one, two = (_zoned(name) for name in ("p/one", "p/two"))
    return [
        FlatProvider("p/one", "west", "sky", (ready, large, packed, *one), limits={"instances": float(PROVIDER_MAX)}),
        FlatProvider("p/two", "west", "sky", (small, again, shared, *two), launch_timeout_s=600),
        FlatProvider("p/three", "far", "sky", (large, east, small, packed)),
        FlatProvider("p/rack", "rack", STATIC, (label("iron"),), hosts=HOSTS),
    ]


def _zoned(provider: str) -> list[FlatLabel]:
    """Return its labels whose machines only some executors reach."""
    return [label(name, **{"executor-zone": of[provider]}) for name, of in ZONES.items() if provider in of]


@dataclass(slots=True)
class MachineBuilds:
    """Run builds on their machines."""

    chance: random.Random
    busy: dict[str, str] = field(default_factory=dict)
    """Machine -> the build on it."""
    served: dict[str, str] = field(default_factory=dict)
    at: dict[str, set[str]] = field(default_factory=dict)
    """Address -> the machines, or slots, that had it."""
    wrong: list[str] = field(default_factory=list)
    skies: list[Sky] = field(default_factory=list)
    """Clouds in which a machine has to stay until its build has ended."""

    @asynccontextmanager
    async def build(self, spec: BuildSpec) -> AsyncIterator[None]:
        """Provide its machines, for itself alone."""
        wanted = {name: node.label for node in spec.job.nodeset.nodes for name in node.name}
        hosts = {name: str(found["ansible_host"]) for name, found in spec.hosts.items()}
        if hosts.keys() != wanted.keys() or len({one["headgate_machine"] for one in spec.hosts.values()}) != len(hosts):
            self.wrong.append(f"{spec.build} wanted {wanted} and has {hosts}")
        for name, host in hosts.items():
            machine = str(spec.hosts[name]["headgate_machine"])
            other = self.busy.get(machine) or (wanted[name] not in REUSED and self.served.get(machine))
            if other:
                self.wrong.append(f"{host} is given to {spec.build} although {other} has or had it")
            if spec.hosts[name].get("headgate_host_key") != f"key of {host}":
                self.wrong.append(f"{host} is given to {spec.build} without its key")
            self.busy[machine] = self.served[machine] = spec.build
            several = self.at.setdefault(host, set())
            several.add(machine)
            if len(several & self.busy.keys()) > SLOTS.get(wanted[name], 1) and wanted[name] != LISTED:
                self.wrong.append(
                    f"{host} of label {wanted[name]} has {len(several & self.busy.keys())} builds at a time"
                )
        try:
            yield
        finally:
            for found in spec.hosts.values():
                self.busy.pop(str(found["headgate_machine"]), None)

    def at_executor(self, spec: BuildSpec, zone: str) -> None:
        """Check that the executor of a build reaches its machines."""
        for found in spec.hosts.values():
            known = found["nodepool"]
            there = ZONES.get(known["label"], {}).get(known["provider"], "")
            if there not in ("", zone):
                self.wrong.append(f"{spec.build} is on an executor of zone {zone!r} and has a machine of {there!r}")

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        async with self.build(spec):
            await unless(cancel, asyncio.sleep(self.chance.random() * 120))
            instances = {id for sky in self.skies for id in sky.instances}
            gone = [
                host for one in spec.hosts.values() if (host := str(one["ansible_host"])).startswith(("west", "far"))
            ]
            if self.skies and not instances.issuperset(gone):
                self.wrong.append(f"{gone} of {spec.build} was taken away under it")
        return BuildOutcome(build=spec.build, result="SUCCESS")

    async def scan(self, host: Mapping[str, Any]) -> str:
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < 0.3:
            raise MachineUnusable("connection refused")
        return f"key of {host['ansible_host']}"


@dataclass(slots=True)
class ExecutorOfZone:
    """Run builds for an executor of one zone."""

    builds: MachineBuilds
    zone: str

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.builds.at_executor(spec, self.zone)
        return await self.builds.run(spec, state, cancel, contact)


async def unsealed(plain: bytes) -> Sealed:
    """Return no sealed data: the model has no secrets."""
    return Sealed()


@dataclass(frozen=True, slots=True)
class SimulatedInstallation:
    """Describe an installation that shares the clouds."""

    backend: MemoryBackend
    labels: Sequence[str]
    """Labels that its builds request."""
    first: int = 0
    """The number of its first build."""
    lists: bool = True
    """Whether it may use the listed machines; only one installation may."""
    done: asyncio.Event = field(default_factory=asyncio.Event)


MakeMaking = Callable[[Context, Mapping[str, CloudAccount], MachineBuilds, At], MachineMaker]


def a_making(context: Context, accounts: Mapping[str, CloudAccount], field: MachineBuilds, guard: At) -> MachineMaker:
    """Return the real maker of machines."""
    return MachineMaker(context, lambda: TENANTS, accounts, field.scan, unsealed, guard)


@dataclass(slots=True)
class MakingSimulation:
    """Run once."""

    seed: int
    making: MakeMaking = a_making
    faults: CloudFaults | None = None
    deaths: int = 0
    made: int = 0
    calls: int = 0
    wanted: dict[str, set[str]] = field(default_factory=dict)
    """Build -> labels of its machines."""
    labels: Sequence[str] = LABELS
    """Labels that builds request."""
    cloned: bool = False
    """Whether a copy of the store works alongside it, with its own builds. Only the original uses the listed machines,
    as the copy's settings lack their connection; neither keeps machines ready, which would leave too few for the other
    forever."""
    tenants: Sequence[str] = ("t",)
    """Tenants that have the providers."""
    room: int = 0
    """Limit on the machines of each account; 0: a random one."""

    def run(self) -> dict[str, str]:
        """Return build -> result.  Raise MachineInvariantBroken, naming the seed."""
        chance = random.Random(self.seed)
        with drawn_from(chance.getrandbits):
            try:
                return run_virtual(self._run(chance))
            except MachineInvariantBroken as broken:
                raise MachineInvariantBroken(f"seed {self.seed}: {broken}") from broken

    def _skies(self, chance: random.Random) -> dict[str, Sky]:
        found = {}
        for name in ("west", "far"):
            well = chance.random() < 0.3
            faults = (
                CloudFaults()
                if well
                else CloudFaults(lost=0.1, away=0.1, throttled=0.05, broken=0.1, refused=0.05, late_s=90.0, slow_s=20.0)
            )
            found[name] = Sky(chance, self.faults or faults, chance.randrange(4, 7), chance.randrange(2), name)
            if self.room:
                found[name].most, found[name].others = self.room, 0
        return found

    async def _run(self, chance: random.Random) -> dict[str, str]:
        meadow, backend = MachineBuilds(chance), MemoryBackend()
        skies, map = self._skies(chance), Map()
        await Store(backend).commit([], [map.nodes.installation.put(Installation("one"))])
        for one in providers(chance, 0 if self.cloned else 1):
            records = [map.nodes.providers(tenant).provider(one.name).record for tenant in self.tenants]
            await Store(backend).commit([], [record.put(one) for record in records])
        meadow.skies = list(skies.values())
        if self.cloned:
            copied = MemoryBackend()
            for entry in list(backend.tree.under("")):
                await copied.commit([], [Put(entry.path, entry.value)])
            both = [SimulatedInstallation(backend, self.labels)]
            others = [name for name in self.labels if name != LISTED]
            both.append(SimulatedInstallation(copied, others, first=100, lists=False))
            first, second = await asyncio.gather(*(self._work(one, meadow, skies, chance, both) for one in both))
            return first | second
        alone = SimulatedInstallation(backend, self.labels)
        return await self._work(alone, meadow, skies, chance, [alone])

    async def _work(
        self,
        one: SimulatedInstallation,
        meadow: MachineBuilds,
        skies: Mapping[str, Sky],
        chance: random.Random,
        every: Sequence[SimulatedInstallation],
    ) -> dict[str, str]:
        """Run the processes of one store until all its builds are done."""
        stop, backend = asyncio.Event(), one.backend
        numbers = range(one.first, one.first + chance.randrange(4, 9))
        specs = [self._spec(number, one.labels, chance) for number in numbers]
        builds = {spec.build: spec for spec in specs}
        self.wanted |= {id: {node.label for node in one.job.nodeset.nodes} for id, one in builds.items()}
        asking = asyncio.ensure_future(ask(backend, list(builds.values()), chance, 60.0))
        kinds = ["launcher", "launcher", "executor1", "executor2"]
        kinds += ["cellar", "attic"] if ZONES.keys() & set(self.labels) else []
        works = [self._process(kind, meadow, one, skies, chance, stop) for kind in kinds]
        running = asyncio.ensure_future(run_until(stop, *works))
        try:
            await asking
            await self._until_quiet(one, running, skies, meadow, every)
            one.done.set()
            for other in every:  # the leftovers of one must not block the others forever
                await other.done.wait()
        finally:
            stop.set()
            asking.cancel()
            await asyncio.gather(running, asking, return_exceptions=True)
        self.made, self.calls = sum(one.made for one in skies.values()), sum(one.calls for one in skies.values())
        return results(backend, builds)

    def _spec(self, number: int, labels: Sequence[str], chance: random.Random) -> BuildSpec:
        several = [chance.choice(labels) for _ in range(chance.randrange(1, 4))]
        return wanted(number, chance.choice(("red", "blue")), several, self.tenants[number % len(self.tenants)])

    async def _process(
        self,
        kind: str,
        meadow: MachineBuilds,
        one: SimulatedInstallation,
        skies: Mapping[str, Sky],
        chance: random.Random,
        stop: asyncio.Event,
    ) -> None:
        """Run a process until `stop`, let it die at some request a few times, and start it again each time."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            faults = {chance.randrange(10, 150): SimFault.DEATH} if lives > 0 else {}
            lives -= 1
            backend = SimLink(one.backend, chance, faults)
            clouds: dict[str, Cloud] = {**skies, **({"rack": StaticHosts()} if one.lists else {})}
            if not await dies(backend, self._life(kind, meadow, backend, clouds, stop)):
                return
            self.deaths += 1

    async def _life(
        self, kind: str, meadow: MachineBuilds, backend: Backend, clouds: Mapping[str, Cloud], stop: asyncio.Event
    ) -> None:
        loop, store = asyncio.get_running_loop(), Store(backend)
        context = Context(store, Mirror(store, Map().path), lambda: int(loop.time() * 1000), ProcessSettings(kind))
        works = [context.mirror.run()]
        if kind == "launcher":
            accounts = {name: CloudAccount(name, one, 0.0 if name == "rack" else 2.0) for name, one in clouds.items()}

            async def body(session: Session) -> None:
                async with lock(store, session, context.map.nodepool.path).hold() as guard:
                    making = self.making(context, accounts, meadow, guard)
                    await run_until(asyncio.Event(), making.run(), _answers(context, guard))

            works.append(serve(context, "launcher", body, stop))
        else:
            zone = "" if kind.startswith("executor") else kind
            asking = NodeRequester(context, lambda: TENANTS, zone=zone)
            executor = Executor(
                context, ExecutorOfZone(meadow, zone), ExecutorSettings(4, zone, unzoned=zone == "attic"), nodes=asking
            )
            works.append(executor.membership.serve(executor.run, stop))
        await run_until(stop, *works)

    async def _until_quiet(
        self,
        one: SimulatedInstallation,
        running: asyncio.Future[None],
        skies: Mapping[str, Sky],
        meadow: MachineBuilds,
        every: Sequence[SimulatedInstallation],
    ) -> None:
        """Wait until every request has an answer and no unrecorded resource costs money. Raise
        MachineInvariantBroken."""
        loop, map, backend = asyncio.get_running_loop(), Map(), one.backend
        most_s = TIME_MAX_OF_TWO_S if self.cloned else TIME_MAX_S
        while True:
            await asyncio.sleep(10.0)
            if meadow.wrong:
                raise MachineInvariantBroken(meadow.wrong[0])
            if running.done():
                await running
            nodes = [decode(one.value, MadeNode) for one in backend.tree.under(map.nodes.made.path)]
            many = sum(node.provider == "p/one" and not node.main for node in nodes)
            if many > PROVIDER_MAX:
                raise MachineInvariantBroken(f"{many} machines are at a provider that may have {PROVIDER_MAX}")
            made = (entry for each in every for entry in each.backend.tree.under(map.nodes.made.path))
            known = {entry.path.rpartition("/")[2] for entry in made}
            machines = [machine for sky in skies.values() for machine in sky.instances.values()]
            lost = [machine for machine in machines if machine.tags[NODE_TAG] not in known]
            places = (map.nodes.requests, map.nodes.waits, map.nodes.answers)
            left = [entry.path for place in places for entry in backend.tree.under(place.path)]
            left += [entry.path for entry in backend.tree.under(map.executor.path)]
            busy = [node for node in nodes if node.state != "ready" and (one.lists or not node.fixed)]
            if not left and not lost and not busy and sum(not node.fixed for node in nodes) <= 1:
                return
            if loop.time() > most_s:
                waits = [decode(one.value, NodeWait) for one in backend.tree.under(map.nodes.waits.path)]
                descriptions = [
                    f"{node.label} at {node.provider}: {node.state} for {node.request} {node.why}" for node in nodes
                ]
                why = [f"{wait.request}: {wait.why} {wait.tried}" for wait in waits]
                raise MachineInvariantBroken(
                    f"not quiet after {most_s:.0f} s: {left[:4]} {why}; lost {lost[:3]}; nodes {descriptions[:9]}"
                )


async def _answers(context: Context, guard: At) -> None:
    """Remove answers whose requests are gone, as the launcher does."""
    nodes = context.map.nodes
    while True:
        for entry in context.mirror.under(nodes.answers.path):
            id = entry.path.rpartition("/")[2]
            if context.mirror.get(nodes.requests(id).record.path) is None:
                await context.store.commit([], [nodes.answers(id).record.delete()], guards=[guard])
                await context.mirror.gone(entry.path)
        await asyncio.sleep(5)
