"""Test that words, images or leftovers of one user cost others no machines, and leave no machine behind for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate.adapters.nodes.clouds.static.driver import StaticHosts
from headgate.config.keys.nodes import LISTED_MAX
from headgate.config.machines import STATIC, FlatLabel, FlatProvider
from headgate.map.inventory.nodes import Installation, MadeNode, NodeRequest
from headgate.map.places import Map
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, LaunchFailed, MachinePending, MachineSpec, Made, Resource, State
from headgate.recipes.codec import decode
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.machines.maker import MachineMaker as Maker
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At
from headgate.testing.clock import run_virtual
from headgate.testing.nodes.doubles import CloudFaults, Sky
from headgate.testing.nodes.machineworld import TENANTS, MachineBuilds, label, unsealed

OURS = "9f0e"
GUARD = "/guard"


@dataclass(slots=True)
class Stubborn(Sky):
    """Refuse to delete some machines."""

    undeletable: set[str] = field(default_factory=set)
    refuses: bool = True
    """Refuse openly; otherwise claim that the deletion is in progress."""
    requested: list[str] = field(default_factory=list)

    async def advance(self, wanted: MachineSpec, state: State) -> MachinePending | Made:
        """Make the machine like any cloud."""
        self.requested.append(wanted.node)
        return await Sky.advance(self, wanted, state)

    async def remove(self, wanted: MachineSpec, state: State) -> bool:
        """Keep it."""
        if wanted.node not in self.undeletable:
            return await Sky.remove(self, wanted, state)
        await asyncio.sleep(0.1)
        if self.refuses:
            raise LaunchFailed("it is protected against termination")
        return False

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Keep it."""
        if resource.id in self.undeletable:
            raise LaunchFailed("it is protected against termination")
        await Sky.delete(self, provider, resource)


@dataclass(slots=True)
class SimulatedMachines:
    """Run a launcher's maker, with its inputs and one cloud."""

    context: Context
    sky: Stubborn
    others: set[str] = field(default_factory=set)
    """Addresses where something else answers by now."""
    rack: StaticHosts = field(default_factory=StaticHosts)
    """The driver of listed machines."""
    looked_at: set[str] = field(default_factory=set)
    """Addresses that somebody connected to."""

    def nodes(self) -> list[MadeNode]:
        entries = self.context.mirror.under(self.context.map.nodes.made.path)
        return [decode(entry.value, MadeNode) for entry in entries]

    async def have(self, *nodes: MadeNode) -> None:
        for one in nodes:
            await self.context.store.commit([], [self.context.map.nodes.made(one.id).record.put(one)])

    async def tell(self, tenant: str, provider: FlatProvider) -> None:
        place = self.context.map.nodes.providers(tenant).provider(provider.name).record
        await self.context.store.commit([], [place.put(provider)])

    async def ask(self, *labels: str, id: str = "r") -> None:
        nodes = tuple((f"n{place}", name) for place, name in enumerate(labels))
        request = NodeRequest(id, "t", "red", "b", "job", nodes, "host")
        await self.context.store.commit([], [self.context.map.nodes.requests(id).record.put(request)])

    async def answered(self, id: str = "r", within_s: float = 600.0) -> str:
        """Return the reason of its wait; empty: it has its machines."""
        place = self.context.map.nodes.answers(id).record
        async with asyncio.timeout(within_s):
            with self.context.mirror.part(place.path) as part:
                while (entry := self.context.mirror.get(place.path)) is None:
                    await part.moved(part.moves)
        return place.decode(entry.value).error


def simulated_machines(walk: Callable[[SimulatedMachines], Awaitable[None]]) -> Callable[[], None]:
    """Run it in a time that jumps."""

    def run() -> None:
        run_virtual(_walked(walk))

    run.__name__ = walk.__name__
    return run


async def _walked(walk: Callable[[SimulatedMachines], Awaitable[None]]) -> None:
    loop, store, chance = asyncio.get_running_loop(), Store(MemoryBackend()), random.Random(1)
    context = Context(
        store, Mirror(store, Map().path), lambda: int((1_000_000 + loop.time()) * 1000), ProcessSettings("host")
    )
    simulated = SimulatedMachines(context, Stubborn(chance, CloudFaults(slow_s=0.2, boot_s=5.0), most=500))
    await store.commit([], [context.map.nodes.installation.put(Installation(OURS))])
    accounts = {"sky": CloudAccount("sky", simulated.sky, 2.0), "rack": CloudAccount("rack", simulated.rack, 0.0)}
    meadow = MachineBuilds(random.Random(9))

    async def scan(host: Mapping[str, Any]) -> str:
        simulated.looked_at.add(host["ansible_host"])
        return "key of another" if host["ansible_host"] in simulated.others else await meadow.scan(host)

    making = Maker(context, lambda: TENANTS, accounts, scan, unsealed, At(GUARD, None))
    reading = asyncio.ensure_future(context.mirror.run())
    await context.mirror.ready()
    running = asyncio.ensure_future(making.run())
    walking = asyncio.ensure_future(walk(simulated))
    try:
        await asyncio.wait([walking, running, reading], return_when=asyncio.FIRST_COMPLETED)
        if not walking.done():
            running.result()
        await walking
    finally:
        for one in (walking, running, reading):
            one.cancel()
        await asyncio.gather(walking, running, reading, return_exceptions=True)


def provider(*labels: FlatLabel, name: str = "p/one", **settings: Any) -> FlatProvider:
    return FlatProvider(name, "sky", "sky", labels, settings=settings)


def leftover(id: str, state: str = "used", **more: Any) -> MadeNode:
    settings = {"label": {"name": "small"}, "image": {}, "flavor": {}, "provider": {}}
    tags = {SYSTEM_TAG: OURS, NODE_TAG: id}
    return MadeNode(
        id=id, provider="p/one", connection="sky", label="small", state=state, settings=settings, digest="small",
        tags=tags, uses={"instances": 1.0}, since_ms=900_000_000, **more,
    )  # fmt: skip


@simulated_machines
async def test_machines_that_never_go_keep_nobody_waiting(simulated: SimulatedMachines) -> None:
    many = [f"stuck{number}" for number in range(120)]
    simulated.sky.undeletable, simulated.sky.refuses = {*many, "protected"}, False
    await simulated.have(*(leftover(one) for one in many))
    await simulated.tell("t", provider(label("small")))
    await asyncio.sleep(120)
    await simulated.ask("small")
    assert await simulated.answered() == ""
    assert len([node for node in simulated.nodes() if node.state == "used"]) == len(many), "they are not forgotten"


@simulated_machines
async def test_a_machine_that_cannot_be_deleted_does_not_prevent_deletion_of_others(
    simulated: SimulatedMachines,
) -> None:
    for place in ("a", "b"):
        await simulated.sky.advance(MachineSpec(place, {}, {}, {}, {}, {SYSTEM_TAG: OURS, NODE_TAG: place}), {})
    (first, second), simulated.sky.requested = simulated.sky.instances, []
    simulated.sky.undeletable = {first, "held"}
    await simulated.have(leftover("held"))
    await simulated.tell("t", provider(label("small")))
    await asyncio.sleep(300)
    assert second not in simulated.sky.instances
    await simulated.ask("small")
    assert await simulated.answered() == "" and first in simulated.sky.instances


@simulated_machines
async def test_a_provider_that_two_tenants_define_differently_serves_each_as_defined(
    simulated: SimulatedMachines,
) -> None:
    """Its section belongs to another project in each tenant: neither takes the other's machines, nor loses its own."""
    for tenant, region in (("t", "here"), ("u", "there")):
        label = FlatLabel("small", {"name": "small", "boot-timeout": 300}, {}, {}, 1, digest=region)
        await simulated.tell(tenant, provider(label, region=region))
    await asyncio.sleep(300)
    assert {(one.settings["provider"]["region"], one.state) for one in simulated.nodes()} == {
        (w, "ready") for w in ("here", "there")
    }
    assert len(simulated.nodes()) == len(set(simulated.sky.requested)) == 2, "none was made in vain"
    await simulated.ask("small")
    assert await simulated.answered() == ""
    (given,) = (one for one in simulated.nodes() if one.request)
    assert given.settings["provider"]["region"] == "here"


@simulated_machines
async def test_a_useless_machine_delays_no_other(simulated: SimulatedMachines) -> None:
    damaged = leftover("damaged", "building", external_id="i-9", host={"ansible_host": 7}, request="q", node="n0")
    damaged.settings["label"]["boot-timeout"] = "soon"
    await simulated.have(damaged)
    await simulated.tell("t", provider(label("small")))
    await simulated.ask("small", id="q")
    await simulated.ask("small")
    assert await simulated.answered() == ""


@pytest.mark.parametrize("how", ["local", "{{ lookup('pipe', 'id') }}", "chroot"])
def test_no_machine_is_reached_in_a_way_that_is_the_executors_own(how: str) -> None:
    @simulated_machines
    async def walk(simulated: SimulatedMachines) -> None:
        image = {"name": "debian", "connection-type": how}
        await simulated.tell("t", provider(FlatLabel("small", {"name": "small"}, image, {}, digest="x")))
        await simulated.ask("small")
        assert "connection-type must be one of ssh, winrm" in await simulated.answered()
        assert simulated.sky.requested == []

    walk()


def rack(*hosts: dict[str, Any], name: str = "p/rack") -> FlatProvider:
    return FlatProvider(name, "rack", STATIC, (label("iron"),), hosts=hosts)


@pytest.mark.long
@simulated_machines
async def test_an_endless_list_of_machines_delays_nobody(simulated: SimulatedMachines) -> None:
    """Act as if the check of the configuration had accepted the list."""
    flood = rack(*({"name": f"h{n}", "label": "iron", "slots": 100} for n in range(50)))
    await simulated.tell("u", flood)
    await simulated.tell("t", provider(label("small")))
    await simulated.ask("small")
    assert await simulated.answered() == ""
    assert sum(one.fixed for one in simulated.nodes()) <= LISTED_MAX


@simulated_machines
async def test_a_listed_machine_with_another_key_is_given_to_nobody(simulated: SimulatedMachines) -> None:
    await simulated.tell("t", rack({"name": "h1", "label": "iron"}))
    await simulated.ask("iron")
    assert await simulated.answered() == ""
    simulated.others.add("h1")
    nodes = simulated.context.map.nodes
    await simulated.context.store.commit([], [nodes.requests("r").record.delete()])
    await simulated.ask("iron", id="next")
    with pytest.raises(TimeoutError):
        await simulated.answered("next")
    (one,) = simulated.nodes()
    assert one.state == "rebuilding" and "does not have the key" in one.why
    simulated.others.clear()
    assert await simulated.answered("next", 900.0) == ""


@simulated_machines
async def test_a_request_that_waits_for_the_limit_of_its_project_reserves_nothing(simulated: SimulatedMachines) -> None:
    """Its project has reached its limit; its further request would use everything that the provider has left."""
    simulated.sky.most = 8
    await simulated.tell("t", provider(label("small")))
    await simulated.ask("small", "small", "small", "small", id="first")
    assert await simulated.answered("first") == ""
    await simulated.ask("small", "small", "small", "small", id="greedy")
    await asyncio.sleep(60)
    request = NodeRequest("other", "t", "blue", "b", "job", (("n0", "small"),), "host", requested_ms=2_000_000_000)
    await simulated.context.store.commit([], [simulated.context.map.nodes.requests("other").record.put(request)])
    assert await simulated.answered("other", 200.0) == ""
