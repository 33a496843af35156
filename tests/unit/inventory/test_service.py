"""Test the whole service on a store in memory: indexes equal a rebuild, and searches equal a full scan."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter, Sort
from headgate.inventory.journal import JournalKind
from headgate.inventory.leases import Quota
from headgate.inventory.model import (
    READ,
    WRITE,
    Caller,
    Definition,
    Object,
    ObjectType,
    Partition,
    Permission,
    ProviderType,
)
from headgate.inventory.names import Invalid
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.draft import Create, Remove, Step, Update
from headgate.services.inventory.errors import (
    AlreadyExists,
    InventoryError,
    MomentExpired,
    NotFound,
    PermissionDenied,
    Stale,
    Unmet,
)
from headgate.services.inventory.fsck import repair
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.journal import Journal
from headgate.services.inventory.quotas import QUOTAS_MAX, Quotas
from headgate.store.memory import MemoryBackend
from headgate.store.types import Delete, Put
from tests.tiers import share
from tests.unit.inventory.objects import NAMES, PARTITIONS, PROJECTS, TYPES, an_object, filters, properties, tags
from tests.unit.inventory.world import ADMIN, ALICE, World, a_world, running

UUIDS = tuple(f"{n:x}" * 32 for n in range(6))
uuids = st.sampled_from(UUIDS)
created = st.builds(
    Object,
    st.sampled_from(PARTITIONS),
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(PROJECTS),
    uuids,
    st.sampled_from(NAMES),
    properties,
    tags,
)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Create, created),
    st.builds(
        Update,
        uuids,
        name=st.just("") | st.sampled_from(NAMES),
        set_properties=properties,
        remove_properties=st.lists(st.sampled_from(("arch", "..")), max_size=2).map(tuple),
        add_tags=tags,
        remove_tags=tags,
    ),
    st.builds(Remove, uuids),
)
batches = st.lists(steps, min_size=1, max_size=3)


def caller(step: Step, model: dict[str, Object]) -> Caller:
    """Return the administrator of the partition that the first step concerns."""
    known = step.object if isinstance(step, Create) else model.get(step.uuid)
    return msgspec.structs.replace(ADMIN, partition=known.partition if known else PARTITIONS[0])


async def play(world: World, script: Sequence[list[Step]], model: dict[str, Object]) -> None:
    for batch in script:
        with suppress(InventoryError, Invalid):
            await world.inventory.apply(caller(batch[0], model), batch)
            after = dict(model)
            for step in batch:
                if isinstance(step, Create):
                    after[step.object.uuid] = step.object
                elif isinstance(step, Update):
                    after[step.uuid] = step.applied(after[step.uuid])
                else:
                    del after[step.uuid]
            model.clear()
            model.update(after)


async def pages(inventory: Inventory, any: Sequence[Filter], limit: int, token: str = "") -> list[Object]:
    found: list[Object] = []
    while True:
        page = await inventory.page(ADMIN, any, limit=limit, token=token)
        found += [one.object for one in page.objects]
        token = page.next_token
        if not token:
            return found


def naive(model: dict[str, Object], any: Sequence[Filter]) -> list[str]:
    return sorted(object.uuid for object in model.values() if _any(any, object))


def _any(any: Sequence[Filter], object: Object) -> bool:
    return next((True for one in any if one.matches(object)), False)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.heavy
@given(st.lists(batches, max_size=12), st.lists(filters(uuids), min_size=1, max_size=2), st.integers(1, 3))
@settings(max_examples=share(60))
def test_indexes_equal_a_rebuild_and_a_search_equals_a_full_scan(
    script: list[list[Step]], any: list[Filter], limit: int
) -> None:
    async def main() -> None:
        async with a_world() as world:
            model: dict[str, Object] = {}
            await play(world, script, model)
            assert await world.findings() == []
            found = await pages(world.inventory, any, limit)
            assert sorted(one.uuid for one in found) == naive(model, any)
            assert {one.uuid: one for one in found}.items() <= model.items()
            counted = await world.inventory.page(ADMIN, any, count=True, sorts=[Sort("name", True), Sort("uuid")])
            assert counted.count == len(found)
            names = [(one.object.name, one.object.uuid) for one in counted.objects]
            assert names == sorted(sorted(names, key=lambda one: one[1]), key=lambda one: one[0], reverse=True)

    run(main())


@pytest.mark.heavy
@given(st.lists(batches, max_size=8), st.lists(batches, max_size=8), filters(uuids))
@settings(max_examples=share(40))
def test_every_page_shows_the_moment_of_the_first(
    before: list[list[Step]], later: list[list[Step]], one: Filter
) -> None:
    async def main() -> None:
        async with a_world() as world:
            model: dict[str, Object] = {}
            await play(world, before, model)
            expected = naive(model, [one])
            first = await world.inventory.page(ADMIN, [one], limit=1)
            await play(world, later, model)
            rest = await pages(world.inventory, [one], 2, first.next_token) if first.next_token else []
            assert sorted(o.uuid for o in [*(f.object for f in first.objects), *rest]) == expected

    run(main())


@given(st.lists(batches, max_size=10), filters(uuids))
@settings(max_examples=share(30))
def test_a_watcher_that_follows_every_change_knows_the_objects_that_a_search_finds(
    script: list[list[Step]], one: Filter
) -> None:
    async def main() -> None:
        async with a_world() as world:
            begin = await world.inventory.journal.now()
            model: dict[str, Object] = {}
            await play(world, script, model)
            known: dict[str, Object] = {}
            end = await world.inventory.journal.now()
            async for changes, reached in world.inventory.changes(ADMIN, [one], begin, quiet_s=1):
                for change, _ in changes:
                    known.pop(change.object.uuid, None)
                    if change.new is not None:
                        known[change.new.uuid] = change.new
                if reached >= end:
                    break
            assert known == {uuid: model[uuid] for uuid in naive(model, [one])}

    run(main())


async def test_of_two_creations_of_one_name_one_wins() -> None:
    async with a_world() as world:
        other = world.another()
        async with running(other):
            tries = [
                service.apply(ALICE, [Create(an_object(uuid=uuid))])
                for service, uuid in zip((world.inventory, other) * 3, UUIDS, strict=True)
            ]
            ends = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(end, AlreadyExists) for end in ends) == 5
        assert await world.findings() == []


async def test_deleting_and_creating_one_name_concurrently_leaves_no_orphan() -> None:
    async with a_world() as world:
        other = world.another()
        async with running(other):
            for round in range(20):
                old, new = UUIDS[round % 2], UUIDS[(round + 1) % 2]
                with suppress(AlreadyExists):
                    await world.inventory.apply(ALICE, [Create(an_object(uuid=old))])
                await asyncio.gather(
                    world.inventory.apply(ALICE, [Remove(old)]),
                    other.apply(ALICE, [Create(an_object(uuid=new))]),
                    other.apply(ALICE, [Remove(old)]),
                    return_exceptions=True,
                )
                assert await world.findings() == []


async def test_the_keys_are_those_of_the_layout() -> None:
    async with a_world() as world:
        await world.inventory.apply(
            ALICE, [Create(an_object(properties={"architecture": "x86_64"}, tags=("unicorn",)))]
        )
        await world.inventory.apply(
            ADMIN, [Create(an_object(type="runm.provider", uuid="2" * 32, properties={}, tags=()))]
        )
        paths = {e.path.removeprefix("/runm/metadata/"): e.value for e in await world.store.list("/runm/metadata")}
        p, u = PARTITIONS[0], "1" * 32
        assert paths[f"partitions/{p}/objects/by-type/runm.image/by-project/blue/by-name/n"] == u.encode()
        assert paths[f"partitions/{p}/objects/by-type/runm.provider/by-name/n"] == b"2" * 32
        assert paths[f"partitions/{p}/properties/by-type/runm.image/architecture/x86_64/{u}"] == b""
        assert paths[f"partitions/{p}/tags/unicorn/{u}"] == b""
        assert paths["partitions/by-name/part0"] == p.encode()
        default = paths["definitions/by-type/runm.provider/default"].decode()
        assert f"definitions/by-uuid/{default}" in paths and f"objects/by-uuid/{u}" in paths
        assert {"types/object/runm.machine", "types/runm.provider/runm.compute"} <= paths.keys()


@pytest.mark.heavy
async def test_a_search_by_two_properties_costs_five_reads_and_a_tag_one_more() -> None:
    async with a_world() as world:
        for n in range(400):
            found = an_object(
                uuid=f"{n:032x}", name=f"n{n}", properties={"a": str(n % 20), "b": str(n % 8)}, tags=(f"t{n % 2}",)
            )
            await world.inventory.apply(ALICE, [Create(found)])
        for tags, reads in (((), 5), (("t0",), 6)):  # the moment, lists, records, the moment again
            wanted = PropertyConditions(
                require_items=(PropertyFilter("a", "4"), PropertyFilter("b", "4")), require_tags=tags
            )
            one = Filter(partitions=(PARTITIONS[0],), types=("runm.image",), wanted=wanted)
            await world.inventory.page(ALICE, [one])
            world.store.counts.reads = 0
            page = await world.inventory.page(ALICE, [one])
            assert len(page.objects) == 10 and world.store.counts.reads == reads


async def test_creating_costs_one_commit_and_no_read_once_the_facts_are_known() -> None:
    async with a_world() as world:
        await world.inventory.apply(ALICE, [Create(an_object())])
        await world.inventory.journal.wait_for(await world.inventory.journal.now())
        await world.inventory.apply(ALICE, [Create(an_object(uuid=UUIDS[3], name="another"))])
        counts = world.store.counts
        counts.reads = counts.commits = 0
        await world.inventory.apply(ALICE, [Create(an_object(uuid=UUIDS[2], name="other"))])
        assert (counts.reads, counts.commits) == (0, 1)


async def test_a_batch_is_all_or_nothing() -> None:
    async with a_world() as world:
        good, same = an_object(), an_object(uuid=UUIDS[2])
        with pytest.raises(AlreadyExists):
            await world.inventory.apply(ALICE, [Create(good), Create(same)])
        with pytest.raises(NotFound):
            await world.inventory.get(ALICE, good.uuid)
        await world.inventory.apply(ALICE, [Create(good)])
        await world.inventory.apply(ALICE, [Remove(good.uuid), Create(same)])
        assert (await world.inventory.get_named(ALICE, "runm.image", "", "n"))[0] == same
        assert await world.findings() == []


async def test_more_than_fits_into_one_commit_is_refused_with_the_limit() -> None:
    async with a_world() as world:
        many = [Create(an_object(uuid=f"{n:032x}", name=f"n{n}")) for n in range(40)]
        with pytest.raises(Invalid, match="200 entries in one commit, which may have at most 94"):
            await world.inventory.apply(ALICE, many)


async def test_a_change_is_made_to_the_generation_that_was_seen() -> None:
    async with a_world() as world:
        written = await world.inventory.apply(ALICE, [Create(an_object())])
        seen = written.objects[0][1]
        after = await world.inventory.apply(ALICE, [Update("1" * 32, seen, name="renamed")])
        assert after.objects[0][0].name == "renamed" and after.objects[0][1] > seen
        with pytest.raises(Stale, match=f"not {seen}"):
            await world.inventory.apply(ALICE, [Remove("1" * 32, seen)])


async def test_validating_writes_nothing() -> None:
    async with a_world() as world:
        before = await world.store.list("/")
        await world.inventory.apply(ALICE, [Create(an_object())], validate_only=True)
        assert await world.store.list("/") == before
        await world.inventory.apply(ALICE, [Create(an_object())])
        with pytest.raises(AlreadyExists):
            await world.inventory.apply(ALICE, [Create(an_object(uuid=UUIDS[2]))], validate_only=True)


async def test_objects_of_another_partition_or_project_do_not_exist_for_a_caller() -> None:
    async with a_world() as world:
        await world.inventory.apply(ALICE, [Create(an_object())])
        for stranger in (
            msgspec.structs.replace(ALICE, project="red"),
            msgspec.structs.replace(ADMIN, partition=PARTITIONS[1]),
        ):
            with pytest.raises(NotFound):
                await world.inventory.get(stranger, "1" * 32)
            with pytest.raises(NotFound):
                await world.inventory.apply(stranger, [Remove("1" * 32)])
        with pytest.raises(PermissionDenied):
            await world.inventory.apply(ALICE, [Create(an_object(partition=PARTITIONS[1], uuid=UUIDS[2]))])


def definition(uuid: str, required: str = "", **rules: tuple[Permission, ...]) -> Definition:
    return Definition(uuid, f'{{"properties": {{"properties": {{"required": [{required}]}}}}}}', rules)


async def test_the_most_explicit_definition_applies() -> None:
    async with a_world() as world:
        admin = world.inventory.admin
        places = [
            DefinitionScope("runm.image"),
            DefinitionScope("runm.image", "", "iso"),
            DefinitionScope("runm.image", PARTITIONS[0]),
            DefinitionScope("runm.image", PARTITIONS[0], "iso"),
        ]
        for number, place in enumerate(places):
            await admin.set_definition(ADMIN, place, definition(UUIDS[number], f'"p{number}"'))
            with pytest.raises(Invalid, match=f'"p{number}" is a required'):
                await world.inventory.apply(ALICE, [Create(an_object(properties={"kind": "iso"}))])
            assert (await admin.definition(places[3], exact=False))[0] == place
        for number in (3, 2, 1):
            await admin.delete_definition(ADMIN, places[number])
            with pytest.raises(Invalid, match=f'"p{number - 1}" is a required'):
                await world.inventory.apply(ALICE, [Create(an_object(properties={"kind": "iso"}))])


async def test_setting_a_definition_again_leaves_one() -> None:
    async with a_world() as world:
        place = DefinitionScope("runm.provider", PARTITIONS[0])
        for uuid in UUIDS[:2]:
            await world.inventory.admin.set_definition(ADMIN, place, definition(uuid))
        entries = await world.store.list(world.places.definitions.by_uuid.path)
        assert len(entries) == 2 and await world.findings() == []  # with the one for every partition


async def test_a_definition_set_by_another_process_applies_to_the_next_commit() -> None:
    async with a_world() as world:
        await world.inventory.apply(ALICE, [Create(an_object())])
        other = world.another()
        await other.admin.set_definition(ADMIN, DefinitionScope("runm.image"), definition(UUIDS[0], '"missing"'))
        with pytest.raises(Invalid, match="missing"):
            await world.inventory.apply(ALICE, [Create(an_object(uuid=UUIDS[2], name="m"))])


async def test_hidden_properties_are_hidden_everywhere() -> None:
    rules = (Permission(), Permission(role="admin", mask=READ | WRITE))
    async with a_world() as world:
        begin = await world.inventory.journal.now()
        await world.inventory.admin.set_definition(
            ADMIN, DefinitionScope("runm.image"), definition(UUIDS[0], key=rules)
        )
        secret = an_object(properties={"key": "s3cret", "arch": "x"})
        with pytest.raises(PermissionDenied, match="key"):
            await world.inventory.apply(ALICE, [Create(secret)])
        await world.inventory.apply(ADMIN, [Create(secret)])
        shown = {"arch": "x"}
        assert (await world.inventory.get(ALICE, secret.uuid))[0].properties == shown
        assert (await world.inventory.history(ALICE, secret.uuid))[0].object.properties == shown
        probe = Filter((PARTITIONS[0],), wanted=PropertyConditions(require_keys=("key",)))
        assert not (await world.inventory.page(ALICE, [probe])).objects
        assert (await world.inventory.page(ADMIN, [probe])).objects
        async for changes, _ in world.inventory.changes(ALICE, [], begin, quiet_s=1):
            assert [change.object.properties for change, _ in changes] == [shown]
            break
        after = await world.inventory.apply(ALICE, [Update(secret.uuid, set_properties={"arch": "y"})])
        assert after.objects[0][0].properties == {"arch": "y"}
        assert (await world.inventory.get(ADMIN, secret.uuid))[0].properties == {"arch": "y", "key": "s3cret"}
        with pytest.raises(PermissionDenied, match=r"properties that alice may not remove$"):
            await world.inventory.apply(ALICE, [Remove(secret.uuid)])


async def test_a_partition_or_type_with_objects_stays() -> None:
    async with a_world() as world:
        admin = world.inventory.admin
        await world.inventory.apply(ALICE, [Create(an_object())])
        with pytest.raises(Unmet, match="has objects"):
            await admin.delete_partition(ADMIN, PARTITIONS[0])
        with pytest.raises(Unmet, match="in partition part0"):
            await admin.delete_type(ADMIN, "runm.image", provider=False)
        with pytest.raises(Unmet):
            await admin.set_object_type(ADMIN, ObjectType("runm.image", "", False))
        await world.inventory.apply(ALICE, [Remove("1" * 32)])
        await admin.set_definition(ADMIN, DefinitionScope("runm.image", PARTITIONS[0]), definition(UUIDS[0]))
        await admin.delete_partition(ADMIN, PARTITIONS[0])
        await admin.delete_type(ADMIN, "runm.image", provider=False)
        assert await world.findings() == []
        with pytest.raises(Unmet):
            await world.inventory.apply(ALICE, [Create(an_object())])


async def test_a_partition_larger_than_a_commit_can_be_deleted() -> None:
    async with a_world() as world:
        admin, quotas = world.inventory.admin, Quotas(world.inventory)
        for n in range(QUOTAS_MAX):
            await quotas.set(ADMIN, Quota(f"q{n}", PARTITIONS[0], user="*", most="2"))
        for n in range(QUOTAS_MAX):
            await admin.set_provider_type(ADMIN, ProviderType(f"kind{n}", ""))
            scope = DefinitionScope("runm.provider", PARTITIONS[0], f"kind{n}")
            await admin.set_definition(ADMIN, scope, definition(f"{n:032x}"))
        before = {entry.path for entry in await world.store.list(world.places.definitions.path)}
        await admin.delete_partition(ADMIN, PARTITIONS[0])
        assert not await admin.has_partition(PARTITIONS[0])
        assert not await world.store.list(world.places.leases.quotas(PARTITIONS[0]).path)
        assert len(before) - len(await world.store.list(world.places.definitions.path)) == QUOTAS_MAX
        assert await world.findings() == []


async def test_a_partition_keeps_its_uuid_when_it_is_renamed() -> None:
    async with a_world() as world:
        admin = world.inventory.admin
        with pytest.raises(AlreadyExists):
            await admin.rename_partition(ADMIN, PARTITIONS[0], "part1")
        renamed, generation = await admin.rename_partition(ADMIN, PARTITIONS[0], "site")
        assert renamed == Partition(PARTITIONS[0], "site") and await world.inventory.partition("site") == PARTITIONS[0]
        with pytest.raises(Stale):
            await admin.rename_partition(ADMIN, PARTITIONS[0], "x", generation - 1)
        with pytest.raises(PermissionDenied):
            await admin.rename_partition(ALICE, PARTITIONS[0], "x")
        assert await world.findings() == []


async def test_the_history_shows_who_did_what() -> None:
    async with a_world() as world:
        await world.inventory.apply(ALICE, [Create(an_object())])
        await world.inventory.apply(ADMIN, [Update("1" * 32, add_tags=("new",))])
        events = await world.inventory.history(ALICE, "1" * 32)
        assert [(e.kind, e.user, e.object.tags) for e in events] == [
            (JournalKind.CREATED, "alice", ("fast",)),
            (JournalKind.UPDATED, "root", ("fast", "new")),
        ]


async def test_the_journal_is_trimmed_and_says_so() -> None:
    world = World(MemoryBackend())
    world.inventory.journal._entries_max = 10  # a small one
    await world.inventory.begin()
    async with running(world.inventory):
        await world.inventory.admin.create_partition(ADMIN, Partition(PARTITIONS[0], "part0"))
        begin = await world.inventory.journal.now()
        for n in range(30):
            await world.inventory.apply(ALICE, [Create(an_object(uuid=f"{n:032x}", name=f"n{n}"))])
            await world.inventory.journal.wait_for(await world.inventory.journal.now())
        assert len(await world.store.list(world.places.journal.changes.path)) <= 11
        with pytest.raises(MomentExpired, match="no longer stored"):
            async for _ in world.inventory.changes(ALICE, [], begin, quiet_s=1):
                pass
        assert len(await pages(world.inventory, [], 7)) == 30


async def test_a_new_journal_reads_the_changes_from_the_store() -> None:
    async with a_world() as world:
        begin = await world.inventory.journal.now()
        await world.inventory.apply(ALICE, [Create(an_object())])
        fresh = Journal(world.store, world.places)
        task = asyncio.ensure_future(fresh.run())
        await fresh.wait_for(await fresh.now())
        assert [c.object for one in fresh.since(begin) for c in one.recorded.changes] == [an_object()]
        task.cancel()


async def test_fsck_finds_and_puts_right() -> None:
    async with a_world() as world:
        await world.inventory.apply(ALICE, [Create(an_object())])
        p, u, root = PARTITIONS[0], "1" * 32, world.places.path
        tree = f"{root}/partitions/{p}"
        broken = [
            Delete(f"{tree}/properties/by-type/runm.image/arch/x/{u}"),
            Put(f"{tree}/tags/stray/{u}", b""),
            Put(f"{tree}/objects/by-type/runm.image/by-project/blue/by-name/n", b"9" * 32),
            Put(f"{tree}/definitions/by-type/runm.image/default", b"7" * 32),
            Put(f"{root}/definitions/by-uuid/{'8' * 32}", Definition("8" * 32).to_wire()),
            Delete(f"{root}/partitions/by-name/part1"),
            Put(f"{root}/history/{'9' * 32}", b""),
        ]
        await world.store.commit([], broken)
        hopeless = [Put(f"{root}/nowhere", b""), Put(f"{root}/objects/by-uuid/{'6' * 32}", b"\xff\xff")]
        await world.store.commit([], hopeless)
        findings = await world.findings()
        assert len(findings) == len(broken) + len(hopeless)
        assert await repair(world.store, findings) == (len(broken), 0)
        assert {one.path for one in await world.findings()} == {op.path for op in hopeless}
