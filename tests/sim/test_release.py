"""Test that work that the last release left unfinished is continued and completed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.base.tasks import end
from headgate.gate.state.model import State
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.state import load
from headgate.testing.clock import run_virtual
from tests.sim.recorded import Office, read

RELEASE = Path(__file__).parent / "release-1139183.json.gz"
QUIET_WITHIN_S = 300.0
BEGUN_S = 2e6
"""Clock when the work continues, later than when it stopped."""


def state(office: Office, tenant: str, pipeline: str) -> State:
    place = Map().tenant(tenant).pipeline(pipeline)
    loaded = load(place, office.backend.tree.under(place.path))
    assert loaded.damaged == ()
    return loaded.state


def test_state_of_the_last_release_keeps_its_meaning() -> None:
    office = read(RELEASE)
    gate = state(office, "t", "gate")
    shared, apart = gate.queues
    assert [item.change.topic for item in shared.items] == ["second", "behind", "bad", "third", "outside"]
    assert (shared.name, shared.window, apart.dynamic) == ("shared", 4, True)
    builds = {(i.change.topic, b.job): b for i in shared.items if i.buildset for b in i.buildset.builds.values()}
    results = {of: build.result for of, build in builds.items()}
    assert {job: results["second", job] for job in ("quick", "unit")} == {"quick": "SUCCESS", "unit": "SUCCESS"}
    assert builds["second", "serves"].paused and results["second", "uses"] is None
    assert {job: results["bad", job] for job in ("quick", "unit")} == {"quick": "FAILURE", "unit": "FAILURE"}
    assert results["third", "unit"] is None and results["third", "extra-c-third"] == "SUCCESS"
    third, outside = shared.items[3:]
    assert third.buildset is not None and "extra-c-third" in third.buildset.proposed["sim/d"]["master"]["zuul.yaml"]
    assert outside.buildset is None
    assert shared.items[1].change.needs == ("sim/a/master/second",)
    (check_item,) = (item for _, item in state(office, "t", "check").items())
    assert check_item.change.topic == "in-check"
    assert [item.change.commit for _, item in state(office, "t", "post").items()] == ["h+c-landed", "h+foreign1"]
    assert [item.change.topic for _, item in state(office, "v", "gate").items()] == ["elsewhere"]


def test_an_item_whose_change_has_landed_in_the_last_release_still_counts_as_landed() -> None:
    _, apart = state(read(RELEASE), "t", "gate").queues
    (epilogue,) = apart.items
    assert epilogue.change.topic == "landed" and epilogue.epilogue


async def _finished(office: Office) -> None:
    life = asyncio.ensure_future(office.work(lambda spec: False, BEGUN_S))
    busy = [Map().events.path, Map().executor.path, Map().merger.path]
    busy += [Map().tenant(t).pipeline(p).path + "/item" for t in "tv" for p in ("check", "gate", "post")]
    try:
        async with asyncio.timeout(QUIET_WITHIN_S):
            while any("election" not in e.path for path in busy for e in office.backend.tree.under(path)):
                assert not life.done(), life
                await asyncio.sleep(1.0)
    finally:
        await end(life)


@pytest.mark.long
def test_the_gate_continues_from_the_state_of_the_last_release() -> None:
    office = read(RELEASE)
    run_virtual(_finished(office))
    assert office.world.broken is None
    assert sorted(change.topic for change in office.world.landed) == [
        "behind",
        "elsewhere",
        "outside",
        "second",
        "third",
    ]
    results = {(f.tenant, f.pipeline, f.change.id): f.result for f in office.history.finished.values()}
    assert results["t", "gate", "bad,c-bad"] == "FAILURE"
    assert results["t", "check", "in-check,c-in-che"] == "SUCCESS"
    assert results["t", "post", "h+c-landed"] == results["t", "post", "h+foreign1"] == "SUCCESS"
    assert not office.backend.tree.under(Map().quarantine.path)
    found = check(office.backend.tree.under(Map().path))
    assert not found.unknown and not found.undecodable


@pytest.mark.long
@pytest.mark.parametrize("topic", ["landed"])
def test_a_landed_change_gets_no_contrary_report(topic: str) -> None:
    office = read(RELEASE)
    run_virtual(_finished(office))
    results = [f.result for f in office.history.finished.values() if f.change.topic == topic]
    assert results and set(results) == {"SUCCESS"}
