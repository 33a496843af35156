"""Test leases: who gets what, when and for how long; the limits of quotas and shares; failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.inventory.leases import CLEANING, ENDED, HELD, WAITING, ObjectLease, Quota, level
from headgate.inventory.model import Caller, Definition, Object, Permission, ProviderType
from headgate.inventory.names import Invalid
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.draft import Create, Remove, Update
from headgate.services.inventory.errors import NotFound, PermissionDenied, Unmet
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import WAITING_MAX, ObjectLeasing
from headgate.services.inventory.pool import HealthMonitor, Pool
from headgate.services.inventory.quotas import Quotas
from headgate.store.types import Backend
from tests.unit.inventory.objects import PARTITIONS
from tests.unit.inventory.test_search import Counting
from tests.unit.inventory.world import ADMIN, ALICE, a_world, running

BOB, CAROL = Caller("bob", "blue", PARTITIONS[0]), Caller("carol", "red", PARTITIONS[0])
HOUR_S = 3_600


@dataclass
class Shop:
    inventory: Inventory
    now_ms: int = 1_000_000_000
    leasing: ObjectLeasing = field(init=False)

    def __post_init__(self) -> None:
        self.inventory.clock = lambda: self.now_ms
        self.leasing = ObjectLeasing(self.inventory)

    async def put(self, name: str, *tags: str, project: str = "", **properties: str) -> Object:
        type = "runm.machine" if project else "runm.provider"
        made = Object(PARTITIONS[0], type, project, f"{abs(hash(name)) % 2**64:032x}", name, properties, tags)
        await self.inventory.apply(ADMIN, [Create(made)])
        return made

    async def ask(
        self, who: Caller, search: str = "type=runm.provider", hours: float = 1, **fields: Any
    ) -> ObjectLease:
        wait_s = fields.pop("wait_s", 0)
        wanted = ObjectLease("", "", "", "", search, int(hours * HOUR_S), 0, **fields)
        return await self.leasing.ask(who, wanted, wait_s=wait_s)

    async def later(self, hours: float) -> None:
        self.now_ms += int(hours * HOUR_S * 1_000)
        await self.leasing._look()

    async def state(self, lease: ObjectLease) -> str:
        found = (await self.leasing.book()).leases.get(lease.id)
        return found.state if found else ENDED


@asynccontextmanager
async def a_shop(backend: Backend | None = None) -> AsyncIterator[Shop]:
    async with a_world(backend) as world:
        inventory = Inventory(world.store, InventoryMap(), lambda: 0)
        async with running(inventory):
            yield Shop(inventory)


async def test_a_machine_is_leased_until_its_time_is_over_and_then_goes_to_the_next_user() -> None:
    async with a_shop() as shop:
        await shop.put("g1", "gpu")
        await shop.put("c1")
        first = await shop.ask(ALICE, "type=runm.provider tag:gpu", 2)
        assert (first.state, first.name, first.until_ms - first.begun_ms) == (HELD, "g1", 7_200_000)
        second = await shop.ask(BOB, "type=runm.provider tag:gpu")
        third = await shop.ask(CAROL, "type=runm.provider tag:gpu")
        assert second.state == third.state == WAITING
        assert [ahead for _, ahead in await shop.leasing.listed(ADMIN)] == [0, 0, 1]
        assert (await shop.ask(CAROL, "type=runm.provider !tag:gpu")).name == "c1", "what nobody waits for is given"
        await shop.later(1.99)
        assert await shop.state(first) == HELD
        await shop.later(0.02)
        assert [await shop.state(one) for one in (first, second, third)] == [ENDED, HELD, WAITING]
        await shop.leasing.end(BOB, second.id)
        assert await shop.state(third) == HELD


async def test_parts_are_leased_while_there_is_enough_and_a_large_request_is_served_in_time() -> None:
    async with a_shop() as shop:
        await shop.put("big", memory="64", cores="10")
        await shop.put("small", memory="16", cores="4")
        parts = [await shop.ask(ALICE, amounts={"memory": "8", "cores": "2"}) for _ in range(2)]
        assert {one.name for one in parts} == {"small"}, "the fullest that has enough"
        assert (await shop.ask(BOB, amounts={"memory": "56"})).name == "big"
        large = await shop.ask(BOB, amounts={"memory": "60"}, hours=2)
        eager = await shop.ask(CAROL, amounts={"memory": "8"})
        assert large.state == eager.state == WAITING, "who comes later leaves it to who waits"
        with pytest.raises(Unmet, match="never be granted"):
            await shop.ask(CAROL, amounts={"memory": "64.5"})
        with pytest.raises(Unmet, match="never be granted"):
            await shop.ask(CAROL, amounts={"disk": "1"})
        await shop.later(1)
        assert await shop.state(large) == HELD
        assert await shop.state(eager) == HELD, "on the small one"


async def test_shrinking_an_object_ends_no_lease_and_allows_no_further_one() -> None:
    async with a_shop() as shop:
        thing = await shop.put("t", memory="64")
        held = await shop.ask(ALICE, amounts={"memory": "60"})
        await shop.inventory.apply(ADMIN, [Update(thing.uuid, set_properties={"memory": "32"})])
        waiting = await shop.ask(BOB, amounts={"memory": "8"})
        assert (held.state, waiting.state) == (HELD, WAITING)
        await shop.leasing.end(ALICE, held.id)
        assert await shop.state(waiting) == HELD
        await shop.inventory.apply(ADMIN, [Remove(thing.uuid)])
        await shop.later(2)
        assert await shop.state(waiting) == ENDED


async def test_a_lease_is_extended_unless_somebody_waits_for_it_and_ended_by_its_user() -> None:
    async with a_shop() as shop:
        await shop.put("m")
        lease = await shop.ask(ALICE)
        assert (await shop.leasing.extend(ALICE, lease.id, 2 * HOUR_S)).until_ms == shop.now_ms + 7_200_000
        for who, error in ((BOB, PermissionDenied), (CAROL, NotFound)):
            with pytest.raises(error):
                await shop.leasing.end(who, lease.id)
            with pytest.raises(error):
                await shop.leasing.extend(who, lease.id, HOUR_S)
        await shop.ask(BOB)
        with pytest.raises(Unmet, match="others wait"):
            await shop.leasing.extend(ALICE, lease.id, 3 * HOUR_S)
        shorter = await shop.leasing.extend(ALICE, lease.id, 60)
        assert shorter.until_ms == shop.now_ms + 60_000, "to have it for less is always possible"
        assert (await shop.leasing.end(ADMIN, lease.id)).why == "ended by root"


async def test_quotas_limit_concurrent_leases() -> None:
    async with a_shop() as shop:
        quotas = Quotas(shop.inventory)
        for number in range(6):
            await shop.put(f"m{number}", *(["gpu"] if number < 2 else []), memory="64")
        await quotas.set(ADMIN, Quota("each", PARTITIONS[0], user="*", most="2"))
        await quotas.set(ADMIN, Quota("gpus", PARTITIONS[0], search="type=runm.provider tag:gpu", most="1"))
        await quotas.set(ADMIN, Quota("blue", PARTITIONS[0], project="blue", property="memory", most="130"))
        gpu = await shop.ask(ALICE, "type=runm.provider tag:gpu")
        assert await shop.state(await shop.ask(CAROL, "type=runm.provider tag:gpu")) == WAITING, "there are two, but"
        again = await shop.ask(ALICE, "type=runm.provider !tag:gpu")
        third = await shop.ask(ALICE, "type=runm.provider !tag:gpu")
        assert (again.state, third.state) == (HELD, WAITING), "two of each user"
        memory = await shop.ask(BOB, "type=runm.provider !tag:gpu", amounts={"memory": "3"})
        assert memory.state == WAITING, "alice has 128 of 130 by having two whole ones"
        assert (await shop.ask(CAROL, "type=runm.provider !tag:gpu", amounts={"memory": "3"})).state == HELD
        assert {one.name for one in await quotas.listed(CAROL)} == {"each", "gpus"}
        with pytest.raises(Unmet, match="never be granted"):
            await shop.ask(BOB, amounts={"memory": "131"})
        await shop.leasing.end(ALICE, gpu.id)
        assert [await shop.state(one) for one in (third, memory)] == [HELD, WAITING]
        await quotas.delete(ADMIN, "blue")
        await shop.later(0)
        assert await shop.state(memory) == HELD


async def test_quotas_over_time_count_past_and_promised_hours() -> None:
    async with a_shop() as shop:
        await shop.put("m")
        await shop.put("n")
        await Quotas(shop.inventory).set(ADMIN, Quota("h", PARTITIONS[0], user="*", hours="3", window_hours=24))
        first = await shop.ask(ALICE, hours=2)
        assert (await shop.ask(ALICE, hours=2)).state == WAITING
        assert (await shop.ask(ALICE, hours=1)).state == HELD
        await shop.later(0.5)
        await shop.leasing.end(ALICE, first.id)
        assert (await shop.ask(ALICE, hours=1.5)).state == HELD, "an hour and a half was not used"
        with pytest.raises(Unmet, match="hours"):
            await shop.ask(ALICE, hours=3.5)
        assert (await shop.ask(BOB, hours=3)).state == WAITING, "both are taken"


async def test_granting_a_lease_works_after_quotas_went_with_their_partition() -> None:
    async with a_shop() as shop:
        await Quotas(shop.inventory).set(ADMIN, Quota("each", PARTITIONS[0], user="*", most="2"))
        book = await shop.leasing.book()
        await shop.inventory.admin.delete_partition(ADMIN, PARTITIONS[0])
        assert (await shop.leasing.book()).at != book.at


async def test_one_line_by_precedence_and_age() -> None:
    async with a_shop() as shop:
        await shop.put("m")
        held = await shop.ask(ALICE, hours=10)
        plain = await shop.ask(BOB)
        with pytest.raises(PermissionDenied, match="operators"):
            await shop.ask(CAROL, precedence=100)
        urgent = await shop.ask(ADMIN, precedence=100)
        line = [one.user for one, _ in await shop.leasing.listed(ADMIN)]
        assert line == ["alice", "root", "bob"]
        await shop.later(0.5)
        late = await shop.ask(ADMIN, precedence=100)
        assert [one.id for one, _ in await shop.leasing.listed(ADMIN)][1:] == [urgent.id, plain.id, late.id]
        assert await shop.state(held) == HELD
    assert level(200, 1, 1 + 599_999) == 200 and level(200, 1, 1 + 1_200_000) == 0 and level(200, 0, 10**12) == 200


async def test_three_failures_set_a_machine_aside_until_it_is_reported_well() -> None:
    async with a_shop() as shop:
        thing, healths = await shop.put("m"), HealthMonitor(shop.inventory)
        for _ in range(2):
            await healths.report(ADMIN, thing.uuid, "no answer")
        await healths.report(ADMIN, thing.uuid, "")
        assert not await healths.unwell(ADMIN), "in a row"
        for _ in range(3):
            found = await healths.report(ADMIN, thing.uuid, "no answer")
        assert found.aside and found.seen_ms == shop.now_ms and found.why == "no answer"
        waiting = await shop.ask(ALICE)
        assert waiting.state == WAITING
        assert [(uuid, one.failures) for uuid, one in await healths.unwell(ADMIN)] == [(thing.uuid, 3)]
        await healths.report(ADMIN, thing.uuid, "")
        await shop.later(0)
        assert await shop.state(waiting) == HELD
        for who in (ALICE, replace(ALICE, roles=frozenset({"someone"}))):
            with pytest.raises(PermissionDenied):
                await healths.report(who, thing.uuid, "I want it back")


async def test_a_user_with_many_waiting_requests_keeps_nobody_out() -> None:
    async with a_shop() as shop:
        await shop.put("m")
        held = await shop.ask(BOB)
        for _ in range(WAITING_MAX):
            await shop.ask(ALICE, wait_s=60)
        with pytest.raises(Unmet, match="are already waiting"):
            await shop.ask(ALICE)
        assert (await shop.ask(CAROL)).state == WAITING
        await shop.later(0.1)
        assert [one.user for one, _ in await shop.leasing.listed(ADMIN)] == ["bob", "carol"]
        assert await shop.state(held) == HELD


async def test_hidden_objects_and_those_of_another_project_are_not_leased() -> None:
    async with a_shop() as shop:
        definition = Definition("d" * 32, "{}", {"secret": (Permission(), Permission(role="admin", mask=3))})
        await shop.inventory.admin.set_definition(ADMIN, DefinitionScope("runm.machine"), definition)
        machine = await shop.put("m", project="red", secret="64", memory="64")
        await shop.put("own", project="blue", secret="64")
        for search, amounts in (
            (f"uuid={machine.uuid}", {}),
            ("memory>=1", {}),
            ("secret=64", {}),
            ("secret>=1", {}),
            ("name=own", {"secret": "1"}),
        ):
            with pytest.raises(Unmet, match="no object that you may see"):
                await shop.ask(ALICE, search, amounts=amounts)
        with pytest.raises(PermissionDenied):
            await shop.ask(ALICE, "project=*")
        assert (await shop.ask(CAROL, "memory>=1")).state == HELD


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hours": 0}, "a lease is for"),
        ({"hours": 24 * 31}, "a lease is for"),
        ({"amounts": {"memory": "0"}}, "above 0"),
        ({"amounts": {"memory": "-8"}}, "above 0"),
        ({"amounts": {"memory": "8Gi"}}, "above 0"),
        ({"amounts": {str(n): "1" for n in range(17)}}, "at most 16"),
        ({"precedence": 1_001}, "precedence"),
        ({"search": "type=runm.provider 'x"}, "quotes"),
        ({"note": "x" * 2_000}, "at most"),
    ],
)
async def test_impossible_leases_are_refused_with_a_reason(fields: dict[str, Any], why: str) -> None:
    async with a_shop() as shop:
        await shop.put("m", memory="64")
        with pytest.raises(Invalid, match=why):
            await shop.ask(ALICE, **fields)


@pytest.mark.parametrize(
    ("quota", "why"),
    [
        (Quota("", "", most="1"), "empty"),
        (Quota("q", ""), "limits nothing"),
        (Quota("q", "", most="-1"), "not a number from 0"),
        (Quota("q", "", hours="5"), "or neither"),
        (Quota("q", "", hours="5", window_hours=745), "at most"),
        (Quota("q", "", most="1", search="'"), "quotes"),
    ],
)
async def test_a_quota_that_cannot_be_is_refused(quota: Quota, why: str) -> None:
    async with a_shop() as shop:
        with pytest.raises(Invalid, match=why):
            await Quotas(shop.inventory).set(ADMIN, quota)
        with pytest.raises(PermissionDenied):
            await Quotas(shop.inventory).set(ALICE, Quota("q", "", most="1"))


@pytest.mark.parametrize(
    ("properties", "most"), [({}, 2), ({"leases": "0"}, 0), ({"leases": "3"}, 3), ({"leases": "20%"}, 1)]
)
async def test_people_may_lease_a_share_of_the_machines_of_builds(properties: dict[str, str], most: int) -> None:
    async with a_shop() as shop:
        await shop.inventory.admin.set_provider_type(ADMIN, ProviderType("static"))
        await shop.put("racks", kind="static", **properties)
        for number in range(5):
            await shop.put(f"m{number}", project="blue", provider="racks")
        if not most:
            with pytest.raises(Unmet, match="are reserved for builds"):
                await shop.ask(ALICE, "")
            return
        for _ in range(most + 1):
            assert (await shop.ask(ALICE, "")).state == WAITING, "only a launcher gives them"
        given = 0
        for _ in range(most + 1):
            book, pool = await shop.leasing.book(), Pool(shop.inventory)
            lease = book.line(shop.now_ms)[0]
            choice = await shop.leasing.choose(book, pool, lease, launched=True, busy=set())
            if choice.candidate is not None:
                assert await shop.leasing.given(book, lease, choice.candidate) is not None
                given += 1
        assert given == most and "racks" in choice.why
        assert choice.reserved == (await shop.leasing.book()).taken, "builds have the others meanwhile"
        held = next(one for one in (await shop.leasing.book()).leases.values() if one.state == HELD)
        assert (await shop.leasing.end(ALICE, held.id)).state == CLEANING, "a launcher makes it ready"


@pytest.mark.long
@pytest.mark.heavy
async def test_a_new_request_does_not_search_again_for_those_that_wait() -> None:
    """The needs of waiting requests stay known as long as no object changes."""
    backend = Counting()
    async with a_shop(backend) as shop:
        for number in range(40):
            await shop.put(f"m{number}", memory=str(number))
        for _ in range(40):
            await shop.ask(ADMIN, hours=9)
        await shop.inventory.journal.wait_for(await shop.inventory.journal.now())
        costs = []
        for number in range(18):
            backend.read = 0
            await shop.ask(ALICE, f"type=runm.provider memory>={number}")
            costs.append(backend.read)
        assert max(costs[2:]) <= costs[1] + 4 * 18, costs
