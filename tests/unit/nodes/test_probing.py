"""Test probes of machines in virtual time: a machine that does not answer serves no build until it does."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.inventory.health import ObjectHealth, interval_s
from headgate.inventory.leases import HELD, WAITING, ObjectLease
from headgate.services.inventory.draft import Remove, Update
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.inventory.pool import HealthMonitor
from headgate.services.nodes.probes import LISTED_INTERVAL_S, PROBES_MAX
from headgate.services.nodes.requester import NoNodes
from tests.unit.nodes.test_launcher import ROOT, Site, _uuid, on_site

INTERVAL_S = 60.0
UNHEALTHY_S = INTERVAL_S + 25
"""Time within which a dead machine is detected: an interval, and two more probes after 10 s each."""


def looks(site: Site, name: str) -> list[float]:
    """Times of probes, in seconds since the first one."""
    times = [at_s for one, at_s in site.provider.probed if one == name]
    return [round(at_s - times[0], 1) for at_s in times]


async def once(site: Site, *labels: str) -> list[str]:
    async with site.build(*labels) as hosts:
        found = [str(host["headgate_machine"]) for host in hosts.values()]
    await site.quiet()
    return found


async def known(site: Site, name: str) -> tuple[bool, str, bool]:
    """Return whether the machine is excluded, the reason, and whether probes count it as healthy."""
    health, probed = await HealthMonitor(site.inventory).of(ROOT, _uuid(name))
    return health.aside, health.reason, probed is not None


@on_site
async def test_a_build_waits_until_a_machine_answers_again(site: Site) -> None:
    await site.machine("a", image="debian")
    await asyncio.sleep(1)
    assert await known(site, "a") == (False, "", True)
    site.provider.silent.add("a")
    await asyncio.sleep(UNHEALTHY_S)
    assert await known(site, "a") == (True, "a does not answer", True)
    build = asyncio.ensure_future(once(site, "debian"))
    await asyncio.sleep(10 * INTERVAL_S)
    assert not build.done() and not site.provider.calls, "it is not even tried, and the build does not fail"
    site.provider.silent.clear()
    assert await build == ["a"]
    assert await known(site, "a") == (False, "", True)


@on_site
async def test_requests_get_other_machines_while_one_does_not_answer(site: Site) -> None:
    for name in ("a", "b"):
        await site.machine(name, image="debian")
    site.provider.silent.add("a")
    await asyncio.sleep(UNHEALTHY_S)
    for _ in range(3):
        assert await once(site, "debian") == ["b"]


@on_site
async def test_people_also_wait_for_an_unhealthy_machine(site: Site) -> None:
    await site.inventory.apply(ROOT, [Update(_uuid("east"), set_properties={"leases": "1"})])
    await site.machine("a", image="debian")
    site.provider.silent.add("a")
    await asyncio.sleep(UNHEALTHY_S)
    leasing = ObjectLeasing(site.inventory)
    lease = await leasing.ask(replace(ROOT, user="ann"), ObjectLease("", "", "", "", "name=a", 600, 0))
    await asyncio.sleep(INTERVAL_S)
    assert (await leasing.get(ROOT, lease.id))[0].state == WAITING
    site.provider.silent.clear()
    await asyncio.sleep(INTERVAL_S + 1)
    assert (await leasing.get(ROOT, lease.id))[0].state == HELD


@on_site
async def test_missed_probes_below_the_limit_do_not_make_a_machine_unwell(site: Site) -> None:
    await site.machine("a", image="debian")
    await asyncio.sleep(1)
    since = (await HealthMonitor(site.inventory).of(ROOT, _uuid("a")))[1]
    site.provider.silent.add("a")
    await asyncio.sleep(INTERVAL_S + 15)
    assert [one.missed for _, one in await HealthMonitor(site.inventory).unwell(ROOT)] == [2]
    site.provider.silent.clear()
    await asyncio.sleep(INTERVAL_S)
    assert await HealthMonitor(site.inventory).unwell(ROOT) == []
    assert (await HealthMonitor(site.inventory).of(ROOT, _uuid("a")))[1] == since, "it was well all the time"


@on_site
async def test_a_machine_that_could_not_be_prepared_stays_unhealthy_although_it_answers(site: Site) -> None:
    await site.machine("a", image="debian")
    healths = HealthMonitor(site.inventory)
    for _ in range(3):
        await healths.report(ROOT, _uuid("a"), "its disk is full")
    await asyncio.sleep(3 * INTERVAL_S)
    assert await known(site, "a") == (True, "its disk is full", True)
    with pytest.raises(NoNodes, match="its disk is full"):
        await once(site, "debian")
    await healths.report(ROOT, _uuid("a"), "")
    assert await once(site, "debian") == ["a"]


@on_site
async def test_a_machine_in_use_is_not_probed(site: Site) -> None:
    await site.machine("a", image="debian")
    await asyncio.sleep(1)
    async with site.build("debian"):
        before = len(site.provider.probed)
        site.provider.silent.add("a")
        await asyncio.sleep(5 * INTERVAL_S)
        assert len(site.provider.probed) == before
        assert not (await known(site, "a"))[0]


@on_site
async def test_the_machine_or_its_provider_sets_whether_and_how_often(site: Site) -> None:
    await site.inventory.apply(ROOT, [Update(_uuid("east"), set_properties={"probe-interval": "20"})])
    await site.machine("a")
    await site.machine("b", **{"probe-interval": "300"})
    await site.machine("c", probe="none")
    await site.machine("d", **{"probe-interval": "often"})
    await site.machine("e", site="west")
    await asyncio.sleep(LISTED_INTERVAL_S + 299)
    assert looks(site, "a")[:15] == [20.0 * n for n in range(15)]
    assert looks(site, "b")[:2] in ([0.0], [0.0, 300.0]) and "c" not in dict(site.provider.probed)
    assert looks(site, "d")[:5] == looks(site, "e")[:5] == [60.0 * n for n in range(5)], "a wrong one is as none"


@on_site
async def test_probes_without_a_new_result_cause_no_writes_and_few_reads(site: Site) -> None:
    await site.machine("a")
    await site.machine("b")
    site.provider.silent.add("b")
    await asyncio.sleep(3 * INTERVAL_S)
    counts = site.store.counts
    commits, reads, revision = counts.commits, counts.reads, site.inventory.journal.revision
    await asyncio.sleep(10 * INTERVAL_S)
    assert (counts.commits, site.inventory.journal.revision) == (commits, revision)
    assert counts.reads - reads <= 3 * 11, "of the one that does not answer it is seen whether somebody said it is well"


@on_site
async def test_machines_come_and_go(site: Site) -> None:
    await site.machine("a")
    await asyncio.sleep(LISTED_INTERVAL_S)
    await site.machine("b")
    await asyncio.sleep(LISTED_INTERVAL_S + 1)
    assert looks(site, "b") == [0.0]
    site.provider.silent.add("b")
    await site.inventory.apply(ROOT, [Remove(_uuid("b"))])
    await asyncio.sleep(5 * INTERVAL_S)
    assert len(looks(site, "b")) <= 2 and await HealthMonitor(site.inventory).unwell(ROOT) == []


@pytest.mark.heavy
@on_site
async def test_many_dead_machines_do_not_delay_the_probes_of_a_living_one(site: Site) -> None:
    """Each takes long to be found dead, and only so many are probed together."""
    dead = [f"z{number:02}" for number in range(3 * PROBES_MAX)]
    for name in [*dead, "a"]:
        await site.machine(name)
    site.provider.slow = {*dead}
    site.provider.silent |= site.provider.slow
    await asyncio.sleep(12 * INTERVAL_S)
    times = looks(site, "a")
    assert max(later - earlier for earlier, later in pairwise(times)) <= 2 * INTERVAL_S
    assert site.provider.most <= PROBES_MAX
    assert all([(await known(site, name))[0] for name in dead]) and not (await known(site, "a"))[0]


@pytest.mark.parametrize(("text", "found"), [("", 60.0), ("5", 5.0), ("86400", 86_400.0), ("7.5", 7.5)])
def test_intervals_of_probes_are_parsed(text: str, found: float) -> None:
    assert interval_s(text, 60.0) == found


@pytest.mark.parametrize("text", ["0", "4.9", "86401", "5m", "-60", "nan", "1e9"])
def test_intervals_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="from 5 to 86400"):
        interval_s(text, 60.0)


def test_the_time_of_a_health_state_is_that_of_the_last_change() -> None:
    def after(health: ObjectHealth, *steps: tuple[str, Any, int]) -> ObjectHealth:
        for how, why, now_ms in steps:
            health = getattr(health, how)(why, now_ms)
        return health

    silent = after(ObjectHealth(), *(("probed", "no answer", now_ms) for now_ms in (1, 2, 3, 4)))
    assert (silent.aside, silent.broken, silent.since_ms) == (True, False, 3)
    both = after(silent, *(("and_then", "no disk", now_ms) for now_ms in (5, 6, 7)))
    assert (both.broken, both.since_ms, both.reason) == (True, 3, "no disk")
    assert after(both, ("probed", "", 8)).since_ms == 3, "it has been given to nobody since then"
    assert after(silent, ("probed", "", 9)) == ObjectHealth(seen_ms=9)
    assert after(both, ("and_then", "", 9)) == ObjectHealth(seen_ms=9)
