"""Test accounts with made machines: they are polled after their providers are removed, and reported if nobody can
poll them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.base.ids import derived
from headgate.map.inventory.nodes import MadeNode, NodeAccount
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, TERM_TAG, MachineSpec
from headgate.store.types import Delete
from headgate.testing.nodes.machineworld import label
from headgate.web.access import Access
from tests.hostile.test_made_machines import OURS, SimulatedMachines, leftover, provider, simulated_machines
from tests.integration.reference.conftest import World, token

WHERE = {"region": "west"}


async def account(simulated: SimulatedMachines, connection: str = "sky", region: str = "") -> NodeAccount | None:
    record = simulated.context.map.nodes.accounts(derived(connection, region)).record
    entry = simulated.context.mirror.get(record.path)
    return record.decode(entry.value) if entry is not None else None


async def lost(simulated: SimulatedMachines, node: str, **more: str) -> str:
    """Let the cloud make a machine that nobody records, and return its id."""
    before = set(simulated.sky.instances)
    await simulated.sky.advance(MachineSpec(node, {}, {}, {}, {}, {SYSTEM_TAG: OURS, NODE_TAG: node, **more}), {})
    (id,) = set(simulated.sky.instances) - before
    return id


@simulated_machines
async def test_records_of_a_removed_provider_are_deleted(simulated: SimulatedMachines) -> None:
    await simulated.tell("t", provider(label("small")))
    await simulated.ask("small")
    assert await simulated.answered() == "" and await account(simulated) is not None
    path = simulated.context.map.nodes.providers("t").provider("p/one").record.path
    requests = simulated.context.map.nodes.requests("r").record.path
    await simulated.context.store.commit([], [Delete(path), Delete(requests)])
    await asyncio.sleep(120)
    assert simulated.nodes() == []
    late = await lost(simulated, "late")
    await asyncio.sleep(300)
    assert late not in simulated.sky.instances, (
        "nobody configures the account any more, and it is looked at all the same"
    )
    await asyncio.sleep(1_200)
    assert await account(simulated) is None, "nothing was there for long"


@simulated_machines
async def test_a_machine_of_a_copy_of_the_store_is_left_alone_and_reported(simulated: SimulatedMachines) -> None:
    await simulated.tell("t", provider(label("small")))
    twin, old = await lost(simulated, "twin", **{TERM_TAG: "another"}), await lost(simulated, "old")
    await asyncio.sleep(400)
    assert twin in simulated.sky.instances and old not in simulated.sky.instances
    known = await account(simulated)
    assert known is not None and known.strange == (f"instance/{twin}",) and known.strange_ms


@simulated_machines
async def test_a_lost_connection_is_reported_until_somebody_gives_it_up(simulated: SimulatedMachines) -> None:
    node = leftover("left")
    await simulated.have(MadeNode(**{**{f: getattr(node, f) for f in node.__struct_fields__}, "connection": "gone"}))
    await asyncio.sleep(60)
    known = await account(simulated, "gone")
    assert known is not None and known.lacking_ms and [one.id for one in simulated.nodes()] == ["left"]
    record = simulated.context.map.nodes.accounts(derived("gone", "")).record
    fields: dict[str, Any] = {f: getattr(known, f) for f in known.__struct_fields__}
    await simulated.context.store.commit([], [record.put(NodeAccount(**{**fields, "given_up": "ada"}))])
    await asyncio.sleep(60)
    assert simulated.nodes() == [] and await account(simulated, "gone") is None


async def test_an_operator_sees_accounts_and_forgets_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    context, everybodys = world.running.context, token()
    one = NodeAccount(connection="gone", region="west", settings=WHERE, lacking_ms=61_000)
    fine = NodeAccount(connection="sky", strange=("instance/i-7",), strange_ms=1_000)
    places = {name: context.map.nodes.accounts(name).record for name in ("a1", "b2")}
    for entry in await context.store.commit([], [places["a1"].put(one), places["b2"].put(fine)]):
        assert entry is not None
        await context.mirror.reached(entry.path, entry.version)
    assert (await world.client.get("/api/node-accounts", headers=everybodys)).status_code == 403, "not of one tenant"
    monkeypatch.setattr(Access, "permits_all", lambda self, bearer: True)
    found = (await world.client.get("/api/node-accounts", headers=everybodys)).json()
    assert [(x["id"], x["connection"], x["lacking"], x["strange"]) for x in found] == [
        ("a1", "gone", True, []),
        ("b2", "sky", False, ["instance/i-7"]),
    ]
    problems = {t["project"]: t["text"] for t in (await world.get("T/status"))["problems"]}
    assert "headgate node forget a1" in problems["the connection gone, region west"]
    assert "made by another one" in problems["the connection sky"]
    for id, status in (("zz", 404), ("b2", 409), ("a1", 200)):
        answer = await world.client.post(f"/api/node-accounts/{id}", json={"do": "forget"}, headers=everybodys)
        assert answer.status_code == status, answer.text
    entry = await context.store.get(places["a1"].path)
    assert entry is not None and places["a1"].decode(entry.value).given_up
