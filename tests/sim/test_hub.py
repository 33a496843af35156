"""Test a gate at a forge that loses, doubles and delays deliveries, and that the simulator finds defects."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from headgate.gate.rules import readiness
from headgate.gate.state.change import ChangeState
from headgate.gate.state.world import World
from headgate.services.scheduler import connection
from headgate.testing.sim.forgeworld import HubSimulation, simulate_hub
from headgate.testing.sim.hub import SimForgeHub, SimPull
from headgate.testing.sim.hubdriver import SimHub
from headgate.testing.sim.worlds import InvariantBroken

SEEDS = int(os.environ.get("SIM_SEEDS", "200")) // 8
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_gate_with_lost_or_late_deliveries_ends_in_the_same_state(first: int) -> None:
    assert simulate_hub(range(first, min(first + CHUNK, SEEDS))) > 0, "nobody died"


@pytest.mark.long
def test_the_simulation_passes_at_a_forge_that_delivers_everything_immediately() -> None:
    assert simulate_hub(range(10), calm=True) == 0


@pytest.mark.long
def test_the_forge_did_lose_and_double_and_the_gate_did_land() -> None:
    """The events for which the seeds are chosen do happen in them."""
    landed = died = by_people = 0
    for seed in range(10):
        simulation = HubSimulation(seed)
        simulation.run()
        hub = simulation.hub
        landed, died = landed + len(hub.ours), died + simulation.deaths
        by_people += sum(bool(pull.merged) for pull in hub.pulls.values()) - len(hub.ours)
    assert landed and died and by_people


def a_delivery_tells_of_one_thing_alone(patch: pytest.MonkeyPatch) -> None:
    real = SimForgeHub.change_state

    def last(self: SimForgeHub, pull: SimPull, count: int) -> Any:
        now, happened = real(self, pull, count)
        return now, happened[-1:]

    patch.setattr(SimForgeHub, "change_state", last)


def what_happened_while_nobody_looked_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    real = SimHub._look

    def hinted(self: SimHub, known: Any, heads: Any, hints: Any, *, complete: bool) -> Any:
        return real(self, known, heads, hints, complete=complete and not heads)

    patch.setattr(SimHub, "_look", hinted)


def whatever_head_is_there_is_merged(patch: pytest.MonkeyPatch) -> None:
    real = SimForgeHub.refuses
    patch.setattr(SimForgeHub, "refuses", lambda self, pull, wanted: real(self, pull, ""))


def what_is_not_known_yet_is_a_no(patch: pytest.MonkeyPatch) -> None:
    real = readiness.ruled_out

    def hasty(world: World, change_state: ChangeState) -> str:
        details = change_state.details
        return real(world, change_state) or ("" if details is None or details.mergeable else "it conflicts")

    patch.setattr(readiness, "ruled_out", hasty)


def known_events_are_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "_Known", lambda change_states: dict(change_states.now()))


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "seeds"),
    [
        (a_delivery_tells_of_one_thing_alone, range(20)),
        (what_happened_while_nobody_looked_is_not_looked_for, range(20)),
        (whatever_head_is_there_is_merged, range(30)),
        (what_is_not_known_yet_is_a_no, range(40)),
        (known_events_are_sent_again, range(34, 60)),
    ],
)
def test_the_simulation_detects_broken_code(
    mutant: Callable[[pytest.MonkeyPatch], None], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    HubSimulation(0).run()
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        for seed in seeds:
            HubSimulation(seed).run()
