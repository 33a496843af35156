"""Test unused machines of the inventory, as clients of the API see them; why they are not controlled there."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from headgate.config.operator.model import Label, Tenant
from headgate.inventory.leases import HELD, ObjectLease
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.map.inventory.nodes import NodeClaim
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create, Remove
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import marks
from headgate.services.nodes.search import FreeMachines
from headgate.services.nodes.status import PooledMachine
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.gate import Gate
from tests.site import client_of
from tests.waiting import until

from .conftest import TENANT, World, token

SITE = "a" * 32
ROOT = Caller("root", "lab", SITE, frozenset({ADMIN}))
SECRET = "hunter2"
LABELS = {
    "debian": Label("image=debian", project="*"),
    "quick": Label("tag:fast", project="*"),
    "broken": Label("a==b 'c", project="*"),
}


def uuid(name: str) -> str:
    return name.encode().hex().ljust(32, "0")


def machine(name: str, *tags: str, **properties: str) -> Create:
    settings = {"provider": "racks", "ansible_host": "10.0.0.7", "ansible_password": SECRET, **properties}
    return Create(Object(SITE, "runm.machine", "lab", uuid(name), name, settings, tags))


@asynccontextmanager
async def stocked(gate: World) -> AsyncIterator[tuple[World, Inventory]]:
    """Provide a gate with an inventory beside it: two machines match labels of its tenant, one matches none."""
    inventory = Inventory(Store(MemoryBackend()), InventoryMap(), gate.running.context.now_ms)
    await inventory.begin()
    await inventory.admin.create_partition(ROOT, Partition(SITE, "site"))
    await inventory.apply(ROOT, [Create(Object(SITE, "runm.provider", "", uuid("p"), "racks", {"kind": "static"}))])
    for one in (machine("m1", "fast", image="debian"), machine("m2", image="debian"), machine("m3", image="plan9")):
        await inventory.apply(ROOT, [one])
    following = asyncio.ensure_future(inventory.journal.run())
    free = FreeMachines(inventory)

    async def pooled(tenant: Tenant) -> list[PooledMachine]:
        return list(await free.of(replace(tenant, labels=LABELS)))

    site = dataclasses.replace(gate.site, pooled=pooled)
    try:
        async with client_of(site) as client:
            yield dataclasses.replace(gate, site=site, client=client), inventory
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def claim(running: Gate, name: str, tenant: str) -> None:
    """Let a build of a tenant use a machine."""
    one = NodeClaim(uuid(name), SITE, "r1", tenant, "code/api", "box", "debian", name, state="ready")
    (entry,) = await running.context.store.commit([], [running.context.map.nodes.claims(one.machine).record.put(one)])
    assert entry is not None
    await running.context.mirror.reached(entry.path, entry.version)


async def states(world: World) -> dict[str, str]:
    return {one["id"]: one["state"] for one in await world.get("T/nodes") if one["connection_type"] != "local"}


async def shown(world: World, name: str, state: str) -> None:
    """Wait until a machine is reported to be in a state."""

    async def has_state() -> bool:
        return (await states(world)).get(name) == state

    await until(f"{name} is {state}", has_state)


@pytest.mark.long
async def test_every_machine_of_a_label_is_listed_without_its_address(world: World) -> None:
    async with stocked(world) as (world, inventory):
        answer = (await world.client.get(f"{TENANT}/nodes")).text
        assert SECRET not in answer and "10.0.0.7" not in answer
        first, second, _ = await world.get("T/nodes")
        assert (first["id"], first["type"], first["state"]) == ("m1", ["debian", "quick"], "ready")
        assert (second["id"], second["type"], second["is_locked"]) == ("m2", ["debian"], False)
        await claim(world.running, "m1", "example")
        await claim(world.running, "m2", "other")
        assert await states(world) == {"m1": "in-use"}, "what builds of others have is theirs to see"
        await inventory.apply(ROOT, [machine("m4", image="debian")])
        await shown(world, "m4", "ready")


async def test_leased_machines_are_in_use_and_their_users_are_not_listed(world: World) -> None:
    async with stocked(world) as (world, inventory):
        lease = ObjectLease("l1", "ada", "lab", SITE, "name=m2", 600, 1, state=HELD, object=uuid("m2"), name="m2")
        place = inventory.places.leases.active.lease(lease.id).record
        await inventory.facts.store.commit([], [place.put(lease), *marks(inventory)])
        await shown(world, "m2", "in-use")
        (found,) = [one for one in await world.get("T/nodes") if one["id"] == "m2"]
        assert found["why"] == "a person leases it" and "ada" not in str(found)


async def test_a_request_to_hold_or_delete_one_is_answered_with_the_alternative(world: World) -> None:
    async def refused(name: str, state: str) -> str:
        answer = await world.client.put(f"{TENANT}/nodes/{uuid(name)}", json={"state": state}, headers=token())
        assert answer.status_code == (404 if name == "m3" else 409), answer.text
        return str(answer.json()["description"])

    async with stocked(world) as (world, inventory):
        assert "headgate inventory lease ask" in await refused("m1", "hold")
        assert "headgate inventory machine delete" in await refused("m1", "used")
        assert "has no machine" in await refused("m3", "used"), "no label of the tenant finds it"
        await claim(world.running, "m1", "example")
        assert "`headgate autohold`" in await refused("m1", "hold")
        assert "headgate cancel" in await refused("m1", "used")
        assert (await inventory.get(ROOT, uuid("m1")))[0].name == "m1"


async def test_many_who_ask_cost_one_search(world: World) -> None:
    async with stocked(world) as (world, inventory):
        free, tenant = FreeMachines(inventory), replace(world.site.tenant("example").tenant, labels=LABELS)
        several = await asyncio.gather(*(free.of(tenant) for _ in range(50)))
        assert all(one is several[0] for one in several)
        await inventory.apply(ROOT, [Remove(uuid("m1"))])
        assert await free.of(tenant) is several[0], "however much changes, not more than once in two seconds"
