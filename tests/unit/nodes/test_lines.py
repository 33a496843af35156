"""Test waiting for machines of the inventory: reserved machines, use by others meanwhile, and the shown reasons."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headgate.map.inventory.nodes import NodeWait
from headgate.services.nodes.requester import NoNodes
from headgate.web.itemshapes import awaited
from tests.unit.nodes.test_holding import At
from tests.unit.nodes.test_launcher import TENANT, Site, _once, on_site
from tests.unit.nodes.test_waiting import ask


async def debians(site: Site, many: int) -> None:
    for number in range(many):
        await site.machine(f"m{number}", image="debian")


@on_site
async def test_a_request_that_waits_for_one_machine_reserves_one_of_the_others_and_not_all(site: Site) -> None:
    await debians(site, 3)
    await site.machine("f", "fast")
    async with site.build("fast"):
        both = asyncio.ensure_future(_once(site, "debian", "fast"))
        await asyncio.sleep(1)
        async with site.build("debian", project="q"), site.build("debian", project="r"):
            third = asyncio.ensure_future(_once(site, "debian", project="s"))
            await asyncio.sleep(30)
            assert not third.done() and not both.done(), "the last one is kept"
    assert "f" in await both and len(await both) == 2
    await third


@on_site
async def test_nothing_is_reserved_for_a_request_that_a_held_machine_makes_impossible(site: Site) -> None:
    await debians(site, 1)
    await site.machine("f", "fast")
    async with At(site) as at:
        await at.wants(expiration_s=300)
        await ask(site.context, "b1", "fast")
        await asyncio.sleep(10)
        assert [held.machines for held in at.builds] == [("f",)]
        both = asyncio.ensure_future(_once(site, "debian", "fast"))
        await asyncio.sleep(1)
        assert await asyncio.wait_for(_once(site, "debian", project="q"), 60) == ["m0"]
        assert not both.done()
        await asyncio.sleep(300)
        assert sorted(await both) == ["f", "m0"]


@on_site
async def test_the_quota_of_a_project_is_reserved_for_its_large_request(site: Site) -> None:
    await debians(site, 5)
    async with site.build("debian"):
        large = asyncio.ensure_future(_once(site, "debian", "debian", "debian"))
        await asyncio.sleep(1)
        small = asyncio.ensure_future(_once(site, "debian"))
        other = asyncio.ensure_future(_once(site, "debian", project="other"))
        await asyncio.sleep(30)
        assert (large.done(), small.done(), other.done()) == (False, False, True)
    assert len(await large) == 3
    await small


@on_site
async def test_the_reason_place_and_start_of_a_wait_are_reported(site: Site) -> None:
    await debians(site, 1)
    async with site.build("debian", build="first"):
        await asyncio.sleep(100)
        waits = [asyncio.ensure_future(_once(site, "debian", build=f"w{n}", project=f"q{n}")) for n in range(2)]
        await asyncio.sleep(10)
        texts = awaited(site.context)
        counts = "1 of label debian, taken or reserved for requests that wait longer"
        why = f"limited by the machines of the inventory: {counts}"
        assert texts["w0"] == f"nodes: debian (1 of 2 in line): {why} (since 1970-01-01T00:01:40 UTC)"
        assert texts["w1"].startswith("nodes: debian (2 of 2 in line): ")
        moves = site.context.mirror.moves
        await asyncio.sleep(600)
        assert site.context.mirror.moves == moves, "waiting costs nothing"
    await asyncio.gather(*waits)
    await site.quiet()


@on_site
async def test_a_project_at_its_quota_is_reported_with_the_attempts(site: Site) -> None:
    await debians(site, 4)
    async with site.build("debian", "debian", "debian", build="first"):
        more = asyncio.ensure_future(_once(site, "debian", build="more"))
        site.provider.down.add("m3")
        tried = asyncio.ensure_future(_once(site, "debian", build="tried", project="q"))
        await asyncio.sleep(30)
        waits = awaited(site.context)
        assert "limited by max-nodes-per-project: p may have 3 machines at a time" in waits["more"]
        assert waits["tried"].endswith("; tried: m3 is down")
    site.provider.down.clear()
    await asyncio.gather(more, tried)


@on_site
async def test_the_wait_record_of_a_deleted_request_is_removed(site: Site) -> None:
    place = site.context.map.nodes.waits
    await site.store.commit([], [place("gone").record.put(NodeWait("gone", "it waits"))])
    await asyncio.sleep(5)
    assert not site.context.mirror.names(place.path)


@on_site
async def test_a_nodeset_that_is_too_large_to_be_claimed_is_refused_and_others_are_served(site: Site) -> None:
    site.tenants["t"] = replace(TENANT, max_nodes_per_project=-1)
    await debians(site, 60)
    with pytest.raises(NoNodes, match="its 60 machines cannot be claimed in one commit: a commit has at most 100"):
        await _once(site, *["debian"] * 60)
    assert len(await _once(site, *["debian"] * 40)) == 40
