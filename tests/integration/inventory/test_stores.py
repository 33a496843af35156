"""Test that every store gives the same results: operations match a rebuild and searches, also with several servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.base.ids import fresh
from headgate.inventory.filters import Filter
from headgate.inventory.leases import HELD, ObjectLease
from headgate.inventory.names import Invalid
from headgate.services.inventory.draft import Create, Remove, Step, Update
from headgate.services.inventory.errors import AlreadyExists, InventoryError
from headgate.services.inventory.leases import ObjectLeasing
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.inventory.lessees import judge
from headgate.testing.servers.databases import chroot
from tests.unit.inventory.objects import an_object, filters
from tests.unit.inventory.test_service import UUIDS, batches, naive, pages, play, uuids
from tests.unit.inventory.world import ADMIN, ALICE, a_world, running


async def opened(kind: str, request: pytest.FixtureRequest) -> Backend:
    """An empty one."""
    if kind == "sqlite":
        directory: Path = request.getfixturevalue("tmp_path")
        return await SqliteBackend.open(directory / f"{fresh()}.sqlite")
    if kind == "etcd":
        port = request.getfixturevalue("etcd_server").port
        return await EtcdBackend.open(f"etcd://127.0.0.1:{port}/{fresh()}")
    server = request.getfixturevalue("zookeeper_server")
    return await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}{await chroot(server)}")


KINDS = ("sqlite", "etcd", "zookeeper")
few = settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@given(script=st.lists(batches, min_size=3, max_size=12), any=st.lists(filters(uuids), min_size=1, max_size=2))
@few
def test_indexes_equal_a_rebuild_and_a_search_equals_a_full_scan(
    kind: str, request: pytest.FixtureRequest, script: list[list[Step]], any: list[Filter]
) -> None:
    async def main() -> None:
        backend = await opened(kind, request)
        try:
            async with a_world(backend) as world:
                model: dict[str, object] = {}
                await play(world, script, model)  # type: ignore[arg-type]  # of objects
                assert await world.findings() == []
                found = await pages(world.inventory, any, 2)
                assert sorted(one.uuid for one in found) == naive(model, any)  # type: ignore[arg-type]  # as above
        finally:
            await backend.close()

    asyncio.run(main())


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = await opened(request.param, request)
    yield backend
    await backend.close()


async def test_of_concurrent_creations_with_one_name_one_succeeds(backend: Backend) -> None:
    async with a_world(backend) as world:
        other = world.another()
        async with running(other):
            for round in range(5):
                tries = [
                    one.apply(ALICE, [Create(an_object(uuid=uuid, name=f"n{round}"))])
                    for one, uuid in zip((world.inventory, other) * 3, UUIDS, strict=True)
                ]
                ends = await asyncio.gather(*tries, return_exceptions=True)
                assert sum(isinstance(end, AlreadyExists) for end in ends) == 5, ends
                (winner,) = [uuid for uuid, end in zip(UUIDS, ends, strict=True) if not isinstance(end, AlreadyExists)]
                await other.apply(ALICE, [Remove(winner)])
        assert await world.findings() == []


async def test_concurrent_changes_of_everything_leave_no_orphaned_index_entry(backend: Backend) -> None:
    async with a_world(backend) as world:
        other = world.another()

        async def worker(number: int) -> None:
            service = (world.inventory, other)[number % 2]
            for turn in range(12):
                uuid = UUIDS[(number + turn) % len(UUIDS)]
                step: Step = (
                    Create(an_object(uuid=uuid, name=f"n{turn % 3}", properties={"arch": str(turn)})),
                    Update(uuid, name=f"n{number % 3}", set_properties={"arch": "y"}, add_tags=("new",)),
                    Remove(uuid),
                )[(turn + number) % 3]
                with suppress(InventoryError, Invalid):
                    await service.apply(ADMIN, [step])

        async with running(other):
            await asyncio.gather(*(worker(number) for number in range(6)))
        assert await world.findings() == []


@pytest.mark.long
async def test_concurrent_leases_never_exceed_the_amount_of_an_object(backend: Backend) -> None:
    """Two servers and ten callers: 64 of memory are eight times 8, whichever server is asked; then they are given
    back."""
    async with a_world(backend) as world:
        thing = an_object(type="runm.provider", project="", name="t", properties={"memory": "64"}, tags=())
        await world.inventory.apply(ADMIN, [Create(thing)])
        other = world.another()
        async with running(other):
            servers = [ObjectLeasing(one) for one in (world.inventory, other)]

            async def claim(number: int) -> ObjectLease:
                wanted = ObjectLease("", "", "", "", "type=runm.provider", 60, 0, amounts={"memory": "8"})
                return await servers[number % 2].ask(ALICE, wanted)

            claims = await asyncio.gather(*(claim(number) for number in range(10)))
            judge(await world.store.list(""), world.places)
            book = await servers[0].book()
            held = [one for one in book.leases.values() if one.state == HELD]
            assert len(held) == 8 and len(book.leases) == 10
            ends = [servers[number % 2].end(ALICE, one.id) for number, one in enumerate(held[:5])]
            await asyncio.gather(*ends)
            judge(await world.store.list(""), world.places)
            book = await servers[1].book()
            assert [one.state for one in book.leases.values()] == [HELD] * 5, "those who waited have theirs"
            assert {one.id for one in claims} >= book.leases.keys()
        assert await world.findings() == []
