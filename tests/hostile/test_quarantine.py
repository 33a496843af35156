"""Test that a failure of one unit stops no other: records turned into garbage anywhere, and any error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from headgate.gate.items import leave, trial
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.records import Empty, Raw
from headgate.map.tree import locate
from headgate.services.quarantine import Quarantine
from headgate.services.scheduler import pipeline, tenant
from headgate.store.memory import MemoryBackend
from headgate.store.types import Entry
from headgate.testing.clock import run_virtual
from headgate.testing.gate import Remembered
from headgate.testing.sim.doubles import SimGit, SimRunner
from tests.hostile.garbage import GARBAGE, SpoiledBackend, Town

SPOILED_WITHIN_S = 120.0
ALL, EVERY = os.environ.get("HOSTILE_ALL") == "1", 6


async def _life_of(template: str, garbage: str, *, restart: bool) -> dict[str, Entry]:
    """One tenant works, and a record of it turns into garbage; then the other lands a change. Return what was
    written."""
    inner = MemoryBackend()
    backend = SpoiledBackend(inner, template, lambda entry: _instead(entry, garbage, backend))
    town = Town(backend)
    town.start()
    town.propose("a", "one")
    spoiled = asyncio.ensure_future(backend.done.wait())
    await asyncio.wait([spoiled], timeout=SPOILED_WITHIN_S if template else 30.0)
    spoiled.cancel()
    if restart:
        await town.kill()
        town.start()
    try:
        assert await town.lands(town.propose("b", "two")), f"the neighbour does not land: {await _left(inner)}"
        assert not template or await _is_named(inner, backend.spoiled), "nobody says that it is garbage"
    finally:
        await town.kill()
    return backend.templates


def _instead(entry: Entry, garbage: str, backend: SpoiledBackend) -> bytes:
    if garbage == "another record":
        others = (other for template, other in sorted(backend.templates.items()) if other.path != entry.path)
        return next((other.value for other in others if other.value.startswith(b"{")), b"{}")
    return GARBAGE[garbage](entry.value)


async def _is_named(store: MemoryBackend, spoiled: Entry | None) -> bool:
    """Return whether it is gone, restored, or reported."""
    assert spoiled is not None, "it was never written"
    now = await store.get(spoiled.path)
    found = locate(Map, Map().path, spoiled.path)
    assert found is not None and found.place is not None
    if now is None or now.value != spoiled.value or found.place.type in (Raw, Empty) or found.place.node == "lock":
        return True
    entries = await store.list(Map().path)
    if any(entry.path.startswith(Map().quarantine.path) for entry in entries):
        return True
    named = check(entries).undecodable
    alone = check([Entry(spoiled.path, spoiled.value, 1, 1)]).undecodable
    return not alone or any(finding.path == spoiled.path for finding in named)


async def _left(store: MemoryBackend) -> list[str]:
    return [entry.path for entry in await store.list(Map().path) if "/cache/" not in entry.path][:40]


@cache
def templates() -> tuple[str, ...]:
    """Return all places that a running system writes."""
    return tuple(sorted(run_virtual(_life_of("", "", restart=False))))


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("garbage", [*GARBAGE, "another record"])
def test_garbage_in_any_record_is_its_own_tenants_problem(garbage: str) -> None:
    """Use every garbage at every sixth place, and another sixth each; all of them with HOSTILE_ALL=1 (soak)."""
    broken, places = [], templates()
    assert len(places) >= 40, "a system at work writes nearly everywhere"
    first = [*GARBAGE, "another record"].index(garbage)
    for number, template in enumerate(places):
        for restart in (False, True):
            if not ALL and ((number + first) % EVERY or restart is bool(number // EVERY % 2)):
                continue
            try:
                run_virtual(_life_of(template, garbage, restart=restart))
            except Exception as error:
                broken.append(f"{template}, {restart=}: {type(error).__name__}: {error}")
    assert not broken, "\n".join(broken)


Defect = Callable[[pytest.MonkeyPatch], None]
BAD = "bad"


def _raises(patch: pytest.MonkeyPatch, owner: Any, name: str, about: Callable[..., object]) -> None:
    """Let `name` of `owner` raise an error whenever it handles the bad change."""
    real = getattr(owner, name)

    def faulty(*given: Any, **named: Any) -> Any:
        if BAD in str(about(*given, **named)):
            raise RuntimeError(f"this cannot be handled: \x1b[31m{BAD}\ud800")
        return real(*given, **named)

    patch.setattr(owner, name, faulty)


def deciding(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, trial, "freeze", lambda item, *rest: item.change.topic)


def reporting_what_was_decided(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, trial, "freeze", lambda item, *rest: item.change.topic)
    _raises(patch, leave, "text", lambda item, *rest: item.change.topic)


def absorbing(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, pipeline, "absorb", lambda state, event, *rest: event)


def moving_on(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, tenant, "triggers", lambda pipeline, event: event.change.topic)


def reporting(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, pipeline, "reports", lambda before, after, actions, world: actions)


def recording(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, Remembered, "record", lambda self, finished: finished.change.topic)


def merging(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, SimGit, "do", lambda self, work: work)


def running(patch: pytest.MonkeyPatch) -> None:
    _raises(patch, SimRunner, "run", lambda self, spec, *rest: spec.change.topic)


RETRIED: tuple[Defect, ...] = (deciding, reporting_what_was_decided, absorbing, moving_on)
"""Return what a retry restores."""
DEFECTS: tuple[Defect, ...] = (*RETRIED, reporting, recording, merging, running)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_an_error_with_one_change_affects_only_that_change(defect: Defect) -> None:
    """Others land meanwhile and after a restart; the quarantined change is listed, and lands after a retry."""

    async def play() -> None:
        town = Town(SpoiledBackend(MemoryBackend(), "", lambda entry: entry.value))
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            town.start()
            bad = town.propose("a", BAD)
            assert await town.lands(town.propose("b", "tenant-beside")), "another tenant"
            assert await town.lands(town.propose("d", "project-beside")), "another project of the tenant"
            await town.kill()
            town.start()
            assert await town.lands(town.propose("b", "tenant-after-restart"))
            assert await town.lands(town.propose("d", "project-after-restart"))
            assert await town.lands(bad, 60.0) == (defect in (reporting, recording)), "what only tells stops nothing"
        quarantine = Quarantine(town.context)
        found = quarantine.all()
        assert all("cannot be handled" in one.error and one.error.isprintable() for one in found.values())
        assert {one.kind for one in found.values()} <= {"event", "change"}
        if defect in RETRIED:
            assert found, "it is named"
            for id in found:
                await quarantine.retry(id)
            assert await town.lands(bad), f"retried, it lands: {found}"
            assert not await town.aside()
        await town.kill()

    run_virtual(play())


def test_a_quarantined_change_can_be_dropped() -> None:
    async def play() -> None:
        town = Town(SpoiledBackend(MemoryBackend(), "", lambda entry: entry.value))
        with pytest.MonkeyPatch.context() as patch:
            moving_on(patch)
            town.start()
            bad = town.propose("a", BAD)
            assert not await town.lands(bad, 30.0)
        quarantine = Quarantine(town.context)
        for id in quarantine.all():
            await quarantine.drop(id)
        assert not await town.lands(bad, 30.0) and not await town.aside()
        with pytest.raises(LookupError):
            await quarantine.retry("nothing")
        await town.kill()

    run_virtual(play())


def test_only_the_part_that_cannot_run_stops_and_it_starts_again_when_it_is_retried() -> None:
    async def play() -> None:
        town = Town(SpoiledBackend(MemoryBackend(), "", lambda entry: entry.value))
        with pytest.MonkeyPatch.context() as patch:
            _raises(patch, pipeline.PipelineRunner, "_facts", lambda self: BAD if self.tenant == "t" else "")
            town.start()
            own = town.propose("a", "own")
            assert await town.lands(town.propose("b", "beside")) and not await town.lands(own, 300.0)
        quarantine = Quarantine(town.context)
        found = quarantine.all()
        assert {(one.kind, one.tenant) for one in found.values()} == {("work", "t")}
        for id in found:
            await quarantine.retry(id)
        assert await town.lands(own, 30.0), "at once, and not after the longest pause"
        await town.kill()

    run_virtual(play())
