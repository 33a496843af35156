"""Test that a flood of one user does not delay others, and no number that a user chooses makes a commit too large."""

from __future__ import annotations

import asyncio

import pytest

from headgate.gate.items import trial
from headgate.gate.state.change import ZEROS, Change, EventKind, TriggerEvent
from headgate.services.scheduler.tenant import TenantRunner
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session
from headgate.testing.clock import run_virtual
from headgate.testing.sim import kinds
from headgate.testing.sim.worlds import HOST
from tests.hostile.garbage import SpoiledBackend, Town

PLAIN = (kinds.CONFIG + kinds.CHECK).replace(kinds.SEMAPHORE, "").replace(", semaphore: one", "")
"""One job without a semaphore, in check and gate."""
FLOOD = 250
BRANCHES = 400
MANY = 60
"""Pipelines that each proposal enters."""


def _town(config: str = "", builds_max: int = 4) -> Town:
    return Town(SpoiledBackend(MemoryBackend(), "", lambda entry: entry.value), PLAIN, config, builds_max)


async def _latency_s(town: Town, project: str, topic: str) -> float:
    began = asyncio.get_running_loop().time()
    assert await town.lands(town.propose(project, topic))
    return asyncio.get_running_loop().time() - began


@pytest.mark.sampled
@pytest.mark.parametrize("builds_max", [1, 4])
def test_a_flood_of_one_project_delays_others_by_seconds(builds_max: int) -> None:
    """Neither another tenant nor another project of the same tenant waits; as many changes of the flood are processed
    as there is room for."""

    async def play() -> None:
        town = _town(builds_max=builds_max)
        town.start()
        quiet_s = [await _latency_s(town, project, f"quiet{n}") for n, project in enumerate(("b", "d"))]
        for number in range(FLOOD):
            town.propose("a", f"flood{number}", approved=False)
        await asyncio.sleep(3.0)
        begun = await town.begun("check")
        flooded_s = await asyncio.gather(*(_latency_s(town, project, "other") for project in ("b", "d")))
        left = await town.waiting()
        await town.kill()
        assert 0 < begun <= trial.WORKED_ON_MAX
        assert left > FLOOD / 4, "the flood is still there"
        assert max(flooded_s) <= 2 * max(quiet_s) + 5.0, (quiet_s, flooded_s)

    run_virtual(play())


@pytest.mark.long
def test_a_push_of_many_tags_delays_others_by_seconds() -> None:
    """Each tag starts a pipeline of its own project."""

    async def play() -> None:
        town = _town(kinds.TAGGED)
        town.start()
        quiet_s = [await _latency_s(town, project, f"quiet{n}") for n, project in enumerate(("a", "b", "d"))]
        for number in range(FLOOD):
            town.world.tag(f"{HOST}/a", f"refs/tags/v{number}", f"tag{number}")
        await asyncio.sleep(3.0)
        begun = await town.begun("release")
        flooded_s = await asyncio.gather(*(_latency_s(town, project, "other") for project in ("b", "d")))
        left = await town.waiting()
        await town.kill()
        assert begun > 0, "tags start their pipeline"
        assert left > FLOOD / 4, "the flood is still there"
        assert max(flooded_s) <= 2 * max(quiet_s) + 5.0, (quiet_s, flooded_s)

    run_virtual(play())


@pytest.mark.long
def test_many_pipelines_and_proposals_make_no_commit_too_large() -> None:
    """Each event goes to every pipeline; there are more than a commit can append to."""
    pipelines = "".join(
        f"- pipeline: {{name: more{n}, manager: independent, trigger: {{sim: [{{event: change-proposed}}]}}}}\n"
        for n in range(MANY)
    )

    async def play() -> None:
        town = _town(pipelines)
        town.start()
        for number in range(15):
            town.propose("a", f"flood{number}", approved=False)
        assert await town.lands(town.propose("a", "own")) and await town.lands(town.propose("b", "other"))
        assert not await town.aside(), "nothing was set aside for it"
        await town.kill()

    run_virtual(play())


@pytest.mark.long
def test_a_push_of_many_branches_is_read_in_a_few_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each branch may contain configuration, and later events wait until it is read."""
    readings, real = list[list[str]](), TenantRunner._reconfigure

    async def counted(self: TenantRunner, projects: list[str], session: Session) -> None:
        readings.append(projects)
        await real(self, projects, session)

    monkeypatch.setattr(TenantRunner, "_reconfigure", counted)

    async def play() -> None:
        town = _town()
        town.start()
        quiet_s = await _latency_s(town, "d", "quiet")
        before, stream = len(readings), town.context.map.events.tenant("t").trigger.stream
        for old, new in ((ZEROS, "c" * 40), ("c" * 40, ZEROS)):
            for number in range(BRANCHES):
                ref = f"refs/heads/b{number}"
                change = Change("sim", f"{HOST}/a", f"b{number}", commit=new, old_commit=old, ref=ref)
                event = TriggerEvent(EventKind.REF_UPDATED, change, f"{new[:1]}{number}")
                await town.context.store.commit([], stream.append(event))
        flooded_s = await _latency_s(town, "d", "other")
        await town.kill()
        assert [project for read in readings[before:] for project in read].count(f"{HOST}/a") <= BRANCHES / 20
        assert flooded_s <= 2 * quiet_s + 5.0, (quiet_s, flooded_s)

    run_virtual(play())
