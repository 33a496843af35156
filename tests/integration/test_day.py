"""Test a small day of a large organisation: everything lands, and costs no more than before."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.base.tasks import end
from headgate.map.records import Finished, HandAction
from headgate.ports.observer import Nobody
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.day.people import DayHub, DayMachines, DayOutcome, DayPeople
from headgate.testing.day.plan import DayPlan, tenants
from headgate.testing.gate import gate

CHANGES = 8
REQUESTS_MAX = 90
"""Cost of a change, with check, gate, published events and repetitions."""


class Lived(NamedTuple):
    people: DayPeople
    hub: DayHub
    builds: int
    requests: int
    turns: Counter[str]
    """Pipeline -> its turns without any event."""


class _Turns(Nobody):
    """Count turns without an event."""

    def __init__(self) -> None:
        self.idle = Counter[str]()

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        self.idle[pipeline] += not events


@dataclass(slots=True)
class _History:
    """Inform people of ended changes."""

    outcomes: asyncio.Queue[DayOutcome] = field(default_factory=asyncio.Queue)

    async def keep(self, action: HandAction) -> None:
        """Record no manual actions."""

    async def record(self, finished: Finished) -> None:
        if finished.result and finished.final:
            self.outcomes.put_nowait(DayOutcome(finished.change.topic, finished.pipeline, finished.result))

    async def tell(self, people: DayPeople) -> None:
        while True:
            people.tell(await self.outcomes.get())


async def lived(root: Path, plan: DayPlan) -> Lived:
    hub, machines, history = DayHub(root / "hub", plan), DayMachines(plan, 0.0), _History()
    people = DayPeople(hub, plan, 0.0, 0.0)
    names = [project.canonical for project in plan.projects]
    turns = _Turns()
    running = gate(
        root,
        root / "hub",
        MemoryBackend(),
        tenants(plan),
        machines=machines,
        recording=history,
        builds_max=500,
        observer=turns,
    )
    async with running as one:
        await one.looked_at(*names)
        counts = one.context.store.counts
        before = counts.commits + counts.reads
        recording = asyncio.ensure_future(history.tell(people))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await people.day()
        finally:
            await end(recording)
        return Lived(people, hub, machines.ran, counts.commits + counts.reads - before, turns.idle)


@pytest.mark.long
async def test_a_small_day_lands_every_wanted_change_at_bounded_cost_with_few_and_many_projects(tmp_path: Path) -> None:
    few = await lived(tmp_path / "few", DayPlan(8, CHANGES))
    plan = DayPlan(32, CHANGES)
    many = await lived(tmp_path / "many", plan)
    wanted = [one for one in plan.proposals if not one.abandoned]
    assert sorted(many.people.landed) == sorted(one.topic for one in wanted)
    assert all(many.hub.has(one) for one in wanted)
    assert not any(many.hub.has(one) for one in plan.proposals if one.abandoned)
    assert many.builds >= 6 * len(wanted)
    for one in (few, many):
        assert one.requests / CHANGES <= REQUESTS_MAX, (one.requests, one.builds)
        assert one.turns["experimental"] + one.turns["tag"] <= 6, one.turns  # they hold nothing, and decide nothing


def test_a_plan_resembles_a_day_of_openstack() -> None:
    plan = DayPlan(1_281, 2_000)
    proposals = plan.proposals
    assert len(plan.projects) == 1_280  # and the one with the pipelines
    assert DayPlan(1_281, 2_000).proposals == proposals
    depending = sum(one.needs is not None for one in proposals) / len(proposals)
    failing = sum(one.fails or one.flaky for one in proposals) / len(proposals)
    assert 0.08 < depending < 0.12
    assert 0.06 < failing < 0.12
    assert all(plan.proposals[one.needs].number < one.number for one in proposals if one.needs is not None)
    evening, afternoon = (sum(low <= one.at < high for one in proposals) for low, high in ((0.9, 1), (0.55, 0.65)))
    assert afternoon > 2 * evening
