"""Test the cost of searches: a page costs its own size, and any further reading is bounded and reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter, Sort
from headgate.inventory.model import Caller, Object
from headgate.inventory.names import Invalid
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create, Remove, Update
from headgate.services.inventory.errors import Broad
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.search import PORTION_MAX, PROBED_MAX, VALUES_MAX, SearchBounds
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Entry, Op, Put
from headgate.testing.clock import run_virtual
from tests.unit.inventory.objects import PARTITIONS
from tests.unit.inventory.world import ADMIN, ALICE, a_world, running

TYPE = "runm.image"
SIZE = 4_000
OTHERS = 20
"""Entries that a search may read besides: the moment, a partition, a definition."""


class Counting(MemoryBackend):
    """Count the entries that are read."""

    read = 0

    async def get(self, path: str) -> Entry | None:
        self.read += 1
        return await super().get(path)

    async def list(self, prefix: str) -> Sequence[Entry]:
        found = await super().list(prefix)
        self.read += len(found)
        return found

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        self.read += len(paths)
        return await super().get_many(paths)

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        found = await super().scan(directory, begins=begins, after=after, limit=limit)
        self.read += len(found)
        return found


def number(of: int) -> Object:
    """All objects are `dense`, one of forty is `sparse`; `left` and `right` are disjoint halves."""
    uuid = f"{of * 2_654_435_761 % 2**32:08x}{of:024x}"
    properties = {"dense": "1", "left" if of % 2 else "right": "1", **({"sparse": "1"} if of % 40 == 0 else {})}
    return Object(PARTITIONS[0], TYPE, "blue", uuid, f"n{of:05}", properties, ())


async def fill(store: Store, places: InventoryMap, size: int) -> None:
    for start in range(0, size, 15):
        ops: list[Op] = []
        for one in map(number, range(start, min(size, start + 15))):
            found = entries.indexes(places, one, True)
            ops += [places.objects.by_uuid(one.uuid).record.put(one), *(Put(p, value) for p, value in found.items())]
        assert len(ops) <= OPS_MAX
        await store.commit([], ops)


@asynccontextmanager
async def a_crowd(size: int = SIZE, bounds: SearchBounds | None = None) -> AsyncIterator[tuple[Inventory, Counting]]:
    backend = Counting()
    async with a_world(backend) as world:
        await fill(world.store, world.places, size)
        inventory = Inventory(world.store, world.places, lambda: 1_000, bounds=bounds or SearchBounds())
        async with running(inventory):
            await inventory.journal.wait_for(await inventory.journal.now())
            yield inventory, backend


def wanted(*keys: str, value: str = "1", prefix: bool = False) -> Filter:
    items = tuple(PropertyFilter(key, value, prefix) for key in keys)
    return Filter((PARTITIONS[0],), (TYPE,), "blue", wanted=PropertyConditions(require_items=items))


def wanted_number(value: str, order: str) -> Filter:
    item = PropertyFilter("dense", value, order=order)
    return Filter((PARTITIONS[0],), (TYPE,), "blue", wanted=PropertyConditions(require_items=(item,)))


FILTERS = {
    "all of a type": Filter((PARTITIONS[0],), (TYPE,), "blue"),
    "of every project": Filter((PARTITIONS[0],), (TYPE,)),
    "a property": wanted("dense"),
    "two properties": wanted("dense", "left"),
    "a begin of a value": wanted("dense", value="", prefix=True),
    "a key": Filter((PARTITIONS[0],), (TYPE,), "blue", wanted=PropertyConditions(require_keys=("dense",))),
    "a begin of a name": Filter((PARTITIONS[0],), (TYPE,), "blue", name="n", name_prefix=True),
    "a number": wanted_number("0", ">="),
    "any of two": Filter(
        (PARTITIONS[0],),
        wanted=PropertyConditions(any_items=(PropertyFilter("left", "1"), PropertyFilter("right", "1"))),
    ),
}


@pytest.mark.heavy
async def test_a_page_costs_the_same_however_many_matches_there_are() -> None:
    costs: dict[str, list[int]] = {name: [] for name in FILTERS}
    for size in (400, SIZE):
        async with a_crowd(size) as (inventory, backend):
            for name, condition in FILTERS.items():
                page = await inventory.page(ADMIN, [condition], limit=100)  # facts are cached from now on
                backend.read = 0
                page = await inventory.page(ADMIN, [condition], limit=100, token=page.next_token)
                assert len(page.objects) == 100 and page.next_token and not page.bounded, name
                costs[name].append(backend.read)
    for name, (small, large) in costs.items():
        assert large <= max(small, 210) + OTHERS and small <= 420 + OTHERS, (name, small, large)


@pytest.mark.heavy
async def test_pages_are_all_there_is_each_once() -> None:
    async with a_crowd(500) as (inventory, _):
        for name, condition in FILTERS.items():
            found, token = list[str](), ""
            while True:
                page = await inventory.page(ADMIN, [condition], limit=90, token=token)
                found += [one.object.uuid for one in page.objects]
                token = page.next_token
                if not token:
                    break
            assert sorted(found) == sorted(one.uuid for one in map(number, range(500)) if condition.matches(one)), name


async def test_a_range_of_numbers_comes_in_their_order_as_long_as_they_are_few() -> None:
    async with a_world() as world, running(inventory := Inventory(world.store, world.places, lambda: 1_000)):
        texts = ["9", "10", "-2", "1e1", "064", "many", "64.5", "7"]
        for number in range(40):
            size = texts[number % len(texts)]
            one = Object(PARTITIONS[0], TYPE, "blue", f"{number:032x}", f"n{number}", {"size": size}, ())
            await inventory.apply(ADMIN, [Create(one)])
        item = PropertyFilter("size", "7.5", order=">=")
        at_least = Filter((PARTITIONS[0],), (TYPE,), "blue", wanted=PropertyConditions(require_items=(item,)))
        found, token = list[str](), ""
        while True:
            page = await inventory.page(ADMIN, [at_least], limit=4, token=token)
            found += [one.object.properties["size"] for one in page.objects]
            if not found[4:]:  # objects found later are shown in their state at the first page
                await inventory.apply(ADMIN, [Remove(f"{38:032x}"), Update(f"{4:032x}", set_properties={"size": "1"})])
                late = Object(PARTITIONS[0], TYPE, "blue", "f" * 32, "late", {"size": "8"}, ())
                await inventory.apply(ADMIN, [Create(late)])
            token = page.next_token
            if not token:
                break
        assert found == ["9"] * 5 + ["10"] * 5 + ["1e1"] * 5 + ["064"] * 5 + ["64.5"] * 5
        for number in range(100, 100 + VALUES_MAX):
            one = Object(PARTITIONS[0], TYPE, "blue", f"{number:032x}", f"n{number}", {"size": f"{number}"}, ())
            await inventory.apply(ADMIN, [Create(one)])
        page = await inventory.page(ADMIN, [at_least], limit=1_000)
        assert len(page.objects) == 24 + VALUES_MAX, "too many numbers to go through them, and all there is"


@pytest.mark.heavy
async def test_a_search_reads_the_shortest_index() -> None:
    async with a_crowd() as (inventory, backend):
        for keys in (("dense", "sparse"), ("sparse", "dense")):
            await inventory.page(ADMIN, [wanted(*keys)], limit=10)
            backend.read = 0
            page = await inventory.page(ADMIN, [wanted(*keys)], limit=100)
            assert len(page.objects) == 100 == SIZE // 40
            assert backend.read <= 2 * 100 + 100 + OTHERS, "the sparse list, its objects, the begin of the other"


@pytest.mark.long
@pytest.mark.heavy
async def test_pages_of_a_search_with_few_matches_end_early_and_say_so() -> None:
    async with a_crowd(bounds=SearchBounds(examined_max=500)) as (inventory, backend):
        token, pages = "", 0
        while True:
            backend.read = 0
            page = await inventory.page(ADMIN, [wanted("left", "right")], limit=100, token=token)
            assert not page.objects and backend.read <= 2 * 500 + 2 * PORTION_MAX + OTHERS
            pages, token = pages + 1, page.next_token
            if not token:
                break
            assert page.bounded
        assert pages == SIZE // 2 // 500 + 1 and not page.bounded


@pytest.mark.long
@pytest.mark.heavy
async def test_other_orders_and_counts_are_bounded_and_say_so() -> None:
    async with a_crowd(bounds=SearchBounds(gathered_max=1_000)) as (inventory, backend):
        with pytest.raises(Broad, match="more than 1000 objects"):
            await inventory.page(ADMIN, [wanted("dense")], sorts=[Sort("properties.left")])
        with pytest.raises(Broad, match="more than 1000 objects"):
            [one async for one in inventory.every(ADMIN, [wanted("dense")], sorts=[Sort("name")])]
        few = await inventory.page(ADMIN, [wanted("sparse")], sorts=[Sort("name", True)], limit=5)
        assert [one.object.name for one in few.objects] == ["n03960", "n03920", "n03880", "n03840", "n03800"]
        backend.read = 0
        page = await inventory.page(ADMIN, [wanted("dense")], count=True)
        assert page.count_is_least and 900 <= (page.count or 0) <= 1_000
        assert backend.read <= 2 * 1_000 + 2 * PORTION_MAX + 2 * 100 + OTHERS
        page = await inventory.page(ADMIN, [wanted("sparse")], count=True)
        assert page.count == SIZE // 40 and not page.count_is_least


@pytest.mark.heavy
async def test_time_ends_a_page_too() -> None:
    async with a_crowd(bounds=SearchBounds(page_max_s=0.0)) as (inventory, _):
        page = await inventory.page(ADMIN, [wanted("left", "right")], limit=100)
        assert page.bounded and page.next_token and not page.objects


async def test_an_answer_in_one_piece_has_an_end() -> None:
    async with a_crowd(400, SearchBounds(every_max_s=0.0)) as (inventory, _):
        with pytest.raises(Broad, match="request pages"):
            [one async for one in inventory.every(ADMIN, [wanted("dense")])]


@pytest.mark.heavy
def test_a_slow_reader_gets_all_objects() -> None:
    async def main() -> None:
        async with a_crowd(2_500, SearchBounds(every_max_s=5.0)) as (inventory, _):
            found = 0
            async for _one in inventory.every(ADMIN, [wanted("dense")]):
                found += 1
                if found % 500 == 0:
                    await asyncio.sleep(60)
            assert found == 2_500

    run_virtual(main())


@pytest.mark.heavy
async def test_a_page_continues_at_its_marker_whatever_precedes_it() -> None:
    async with a_crowd() as (inventory, backend):
        every = [one.object.uuid async for one in inventory.every(ADMIN, [wanted("dense")])]
        assert len(every) == SIZE
        backend.read = 0
        rest = [
            one.object.uuid async for one in inventory.every(ADMIN, [wanted("dense")], limit=50, marker=every[3_000])
        ]
        assert rest == every[3_001:3_051] and backend.read <= 200 + OTHERS


@pytest.mark.long
@pytest.mark.heavy
async def test_no_search_blocks_the_loop_for_longer_than_a_portion() -> None:
    """Clients that read everything, in pages, in order, counted and as a stream, and some that write."""
    async with a_crowd(bounds=SearchBounds(page_max_s=600)) as (inventory, backend):
        most, looks, ended = 0, 0, asyncio.Event()

        def look() -> None:
            nonlocal most, looks
            most, looks, backend.read = max(most, backend.read), looks + 1, 0
            if not ended.is_set():
                loop.call_soon(look)

        loop = asyncio.get_running_loop()

        async def pages(one: Filter) -> None:
            token = ""
            while True:
                page = await inventory.page(ADMIN, [one], limit=1_000, token=token)
                token = page.next_token
                if not token:
                    return

        async def stream() -> None:
            assert len([one async for one in inventory.every(ADMIN, [wanted("dense")])]) >= SIZE - 10

        backend.read = 0
        loop.call_soon(look)
        await asyncio.gather(
            *(pages(FILTERS[name]) for name in ("all of a type", "a property", "two properties")),
            inventory.page(ADMIN, [wanted("dense")], sorts=[Sort("name")]),
            inventory.page(ADMIN, [wanted("dense")], count=True),
            stream(),
            inventory.remove(ALICE, [f"{n:032x}" for n in range(3_000)]),
            *(inventory.apply(ALICE, [Update(number(n).uuid, add_tags=("new",))]) for n in range(5)),
        )
        ended.set()
        assert looks > SIZE * 6 // PORTION_MAX
        assert most <= PORTION_MAX + PORTION_MAX + 4 * OTHERS, most


@pytest.mark.long
@pytest.mark.heavy
async def test_a_question_of_many_terms_is_answered_in_smaller_portions() -> None:
    """Matching an object costs in proportion to the filter, and filters are bounded."""
    async with a_crowd() as (inventory, backend):
        items = tuple(PropertyFilter("left", f"{n}") for n in range(2, 600))
        heavy = [
            Filter(
                (PARTITIONS[0],), (TYPE,), "blue", wanted=PropertyConditions(require_keys=("dense",), any_items=items)
            )
        ] * 5
        most, ended, loop = 0, False, asyncio.get_running_loop()

        def look() -> None:
            nonlocal most
            most, backend.read = max(most, backend.read), 0
            if not ended:
                loop.call_soon(look)

        await inventory.page(ADMIN, [wanted("dense")], limit=1)
        backend.read = 0
        look()
        page = await inventory.page(ADMIN, heavy, limit=100)
        ended = True
        assert not page.objects and most <= PROBED_MAX + OTHERS, (
            "a list that is compared is read once, its objects are not"
        )
        with pytest.raises(Invalid, match="at most 5000 are allowed in one search"):
            await inventory.page(ADMIN, heavy * 2, limit=100)


async def test_a_page_shows_its_moment_whatever_was_changed_by_which_index() -> None:
    async with a_crowd(300) as (inventory, _):
        first = await inventory.page(ADMIN, [wanted("dense")], limit=100)
        shown = {one.object.uuid for one in first.objects}
        later = [one for one in map(number, range(300)) if one.uuid not in shown]
        caller = Caller("alice", "blue", PARTITIONS[0])
        for n, one in enumerate(later[:40]):
            step = (Remove(one.uuid), Update(one.uuid, set_properties={"dense": "0"}), Update(one.uuid, name=f"z{n}"))
            await inventory.apply(caller, [step[n % 3]])
        new = Object(PARTITIONS[0], TYPE, "blue", "f" * 32, "new", {"dense": "1"}, ())
        await inventory.apply(caller, [Create(new)])
        found, token = list[Object](), first.next_token
        while token:
            page = await inventory.page(ADMIN, [wanted("dense")], limit=100, token=token)
            found += [one.object for one in page.objects]
            token = page.next_token
        assert sorted(found, key=lambda one: one.uuid) == sorted(later, key=lambda one: one.uuid)
