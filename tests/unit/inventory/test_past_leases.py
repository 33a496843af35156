"""Test ended leases: their number and age are bounded, and merging them never lowers what a user has spent."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.inventory.leases import ENDED, HELD, ObjectLease, Quota, joinable, joined
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.errors import Unmet
from headgate.services.inventory.quotas import TRIM_INTERVAL_MS, ObjectPast, Quotas
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from tests.unit.inventory.test_leases import ALICE, BOB, PARTITIONS, a_shop
from tests.unit.inventory.world import ADMIN

HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000


def a_past(number: int, user: str, begun_ms: int, ended_ms: int, **amounts: str) -> ObjectLease:
    return ObjectLease(
        f"{number:032x}", user, "blue", PARTITIONS[0], "", 60, 0, amounts=amounts, state=ENDED, begun_ms=begun_ms,
        until_ms=ended_ms, ended_ms=ended_ms,
    )  # fmt: skip


SPANS = st.tuples(
    st.sampled_from(["ann", "bob"]), st.integers(0, 50), st.integers(1, 20), st.sampled_from(["", "1", "2", "7.5"])
)
PASTS = st.lists(SPANS, max_size=12).map(
    lambda spans: [
        a_past(number, user, begun, begun + long, **({"memory": memory} if memory else {}))
        for number, (user, begun, long, memory) in enumerate(spans)
    ]
)


def spent(past: list[ObjectLease], user: str, key: str, since: int) -> Decimal:
    """Add up the hours by hand: the time of each lease after the moment, times its amount of the property."""
    own = [one for one in past if one.user == user]
    weights = [Decimal(1) if not key else Decimal(one.amounts.get(key, "0")) for one in own]
    times = [max(0, one.ended_ms - max(one.begun_ms, since)) for one in own]
    return sum((weight * time for weight, time in zip(weights, times, strict=True)), Decimal())


@given(PASTS, st.integers(0, 80))
def test_two_that_are_joined_count_at_least_as_much_at_any_time(past: list[ObjectLease], since: int) -> None:
    pairs = joinable(past)
    used = [one.id for pair in pairs for one in pair]
    assert len(used) == len(set(used)), "no lease is in two pairs"
    left = [one for one in past if one.id not in used] + [joined(*pair) for pair in pairs]
    for user in ("ann", "bob"):
        for key in ("", "memory"):
            assert spent(left, user, key, since) >= spent(past, user, key, since)
    assert {one.user for one in left} == {one.user for one in past}


@given(PASTS)
def test_past_leases_that_do_not_overlap_can_always_be_joined(past: list[ObjectLease]) -> None:
    """The number of records is bounded by the number of users and by how many leases they had at a time."""
    while pairs := joinable(past):
        ended = {one.id for pair in pairs for one in pair}
        past = [one for one in past if one.id not in ended] + [joined(*pair) for pair in pairs]
    for user in ("ann", "bob"):
        for exclusive in (True, False):
            own = [one for one in past if one.user == user and one.exclusive == exclusive]
            assert all(one.begun_ms < other.ended_ms for one in own for other in own if one.id != other.id)


async def stored_leases(store: Store) -> list[ObjectLease]:
    places = InventoryMap().leases.past
    return [places("_").record.decode(entry.value) for entry in await store.list(places.path)]


async def test_past_leases_are_limited_in_number_and_age() -> None:
    store, now_ms = Store(MemoryBackend()), 40 * DAY_MS
    past = ObjectPast(store, InventoryMap(), entries_max=100)
    for number in range(400):
        user = ("ann", "bob", "eve")[number % 3]
        ended_ms = number * DAY_MS // 10
        await store.commit([], [past.put(a_past(number, user, ended_ms - 1_000, ended_ms))])
    before = {user: spent(await stored_leases(store), user, "", 9 * DAY_MS) for user in ("ann", "bob", "eve")}
    await past.trim(now_ms)
    left = await stored_leases(store)
    assert min(one.ended_ms for one in left) >= 9 * DAY_MS and len(left) == 100
    await store.commit([], [past.put(a_past(1_000, "ann", now_ms, now_ms))])
    await past.trim(now_ms + TRIM_INTERVAL_MS - 1)
    assert len(await stored_leases(store)) == 101, "not again at once"
    await past.trim(now_ms + TRIM_INTERVAL_MS)
    assert len(await past.since(0)) == 100
    assert all(spent(left, user, "", 9 * DAY_MS) >= before[user] for user in before)


async def test_where_everybody_had_one_the_oldest_go() -> None:
    store = Store(MemoryBackend())
    past = ObjectPast(store, InventoryMap(), entries_max=10)
    for number in range(15):
        await store.commit([], [past.put(a_past(number, f"user{number}", number, number + 1))])
    await past.trim(TRIM_INTERVAL_MS)
    assert [one.user for one in await stored_leases(store)] == [f"user{number}" for number in range(5, 15)]


@pytest.mark.heavy
async def test_many_short_leases_do_not_reduce_the_hours_that_a_user_has_spent() -> None:
    """Ten hours are allowed in a day: nine were spent at once, then follow many short leases."""
    async with a_shop() as shop:
        shop.leasing._past = ObjectPast(shop.inventory.facts.store, shop.inventory.places, entries_max=20)
        await shop.put("m")
        await Quotas(shop.inventory).set(ADMIN, Quota("each", "", user="*", hours="10", window_hours=24))
        assert (await shop.ask(ALICE, hours=9)).state == HELD
        await shop.later(9.01)
        for _ in range(120):
            lease = await shop.ask(ALICE, hours=1 / 3_600)
            await shop.later(2 / 3_600)
            assert await shop.state(lease) == ENDED
        await shop.later(1)
        assert len(await stored_leases(shop.inventory.facts.store)) <= 20 + 30, "those of the last minute come on top"
        with pytest.raises(Unmet, match="quota each"):
            await shop.ask(ALICE, hours=24)
        assert (await shop.ask(ALICE, hours=1)).state != HELD, "more than nine hours were spent"
        assert (await shop.ask(BOB, hours=1)).state == HELD


async def test_hours_of_a_property_include_returned_entire_objects() -> None:
    async with a_shop() as shop:
        await shop.put("m", memory="64", bmc="10.0.0.1")
        quota = Quota("memory", "", user="*", property="memory", hours="640", window_hours=24)
        await Quotas(shop.inventory).set(ADMIN, quota)
        held = await shop.ask(ALICE, hours=9)
        await shop.later(9)
        assert await shop.state(held) == ENDED
        (past,) = await stored_leases(shop.inventory.facts.store)
        assert past.properties == {"memory": "64"}, "and nothing else of the machine"
        assert (await shop.ask(ALICE, hours=2)).state != HELD, "9 of 10 hours were spent"
        assert (await shop.ask(ALICE, hours=0.9)).state == HELD
