"""Test worlds with a hostile proposer: honest changes land, hostile ones never, and no process ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from headgate.gate.builds import advance
from headgate.gate.items import landings
from headgate.gate.rules import readiness
from headgate.gate.state import works
from headgate.recipes import backlog
from headgate.testing.sim.intruder import CONFIGS, RETURNS
from headgate.testing.sim.simulation import Simulation, prepare, simulate

WORLDS = int(os.environ.get("SIM_SEEDS", "200"))
SEEDS = WORLDS // 20
CHUNK = 40
FLOODED, FLOOD = (9, 11) if WORLDS > 1000 else (9,), 60
"""Seeds of worlds where hostile jobs take no semaphore that others need; hostile changes that they begin with.  Each
finds the mutant; `make soak` plays all of them."""
SHARED, SHARED_FLOOD = (40, 0, 34, 12, 18) if WORLDS > 1000 else (40,), 100
"""The same where hostile jobs take the semaphore that honest jobs need, in another pipeline.  The first one
finds the mutant."""
COVERING = (1, 5, 14, 29, 18)
SLOWER_MAX, SLOWER_MAX_S, HELD_MAX_S = 2.0, 5.0, 8.0
"""Virtual time that a flood may add to the waiting of others: as long again, and the merges and builds that hostile
changes already have, each of which takes up to a second. A job that is tried ten times occupies its place through all
of them."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_proposer_stops_nobody_and_lands_nothing(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS)), hostile=True) > 0, "no death at all tests too little"


@pytest.mark.long
def test_floods_delay_others_by_seconds() -> None:
    floods_are_not_noticed(FLOODED)


@pytest.mark.long
def test_floods_that_need_the_same_semaphore_delay_nobody() -> None:
    floods_that_share_are_not_noticed(SHARED)


def floods_are_not_noticed(seeds: Iterable[int], flood: int = FLOOD, more_s: float = SLOWER_MAX_S) -> None:
    """Raise AssertionError when honest changes wait longer in a flooded world than in the same world without one."""
    for seed in seeds:
        alone = Simulation(seed, hostile=True, calm=True, harmless=True)
        flooded = Simulation(seed, hostile=True, calm=True, flood=flood)
        alone.run()
        flooded.run()
        assert flooded.served_s <= alone.served_s * SLOWER_MAX + more_s, seed


def floods_that_share_are_not_noticed(seeds: Iterable[int]) -> None:
    floods_are_not_noticed(seeds, SHARED_FLOOD, SLOWER_MAX_S + HELD_MAX_S)


def nobody_is_harmed(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Simulation(seed, hostile=True, calm=True).run()


@pytest.mark.soak
def test_hostile_worlds_are_hostile() -> None:
    """A few seeds meet every configuration and every returned value of the corpus; those that meet many come first."""
    configs, returned, landed = set[str](), set[str](), 0
    wanted = {repr(one) for one in RETURNS}
    for seed in (*COVERING, *range(60)):
        if set(CONFIGS) <= configs and wanted <= returned and landed > 20:
            return
        world = Simulation(seed, hostile=True).run()
        configs |= {harm.config for harm in world.harms.values()}
        returned |= {repr(harm.returned) for harm in world.harms.values()}
        landed += len(world.landed)
    raise AssertionError(f"{set(CONFIGS) - configs}, {wanted - returned}; {landed} landed")


def requirements_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Ignore requirements, both in the gate and on the server when a change lands."""
    patch.setattr(readiness, "unmet", lambda world, change_state, **how: "")
    patch.setattr(landings, "needs_approval", lambda item, change, pipeline: False)


def first_come_first_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backlog, "_share", lambda found: backlog.Share(found.request.precedence, "", ""))


def places_are_taken_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(advance.Permits, "_goes_before", lambda *arguments: False)


def returned_data_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(works.BuildOutcome, "fit", lambda outcome: outcome)


MUTANTS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Iterable[int]], None], Sequence[int]], ...] = (
    (requirements_are_not_checked, nobody_is_harmed, range(10, 60)),
    (first_come_first_served, floods_are_not_noticed, FLOODED),
    (places_are_taken_in_order_of_arrival, floods_that_share_are_not_noticed, SHARED),
    (returned_data_is_believed, nobody_is_harmed, range(10)),
)
"""Mutants, each with the test that finds it, and the seeds."""


@pytest.mark.mutant
@pytest.mark.parametrize(("mutant", "finds", "seeds"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_hostile_worlds_detect_broken_code(
    mutant: Any, finds: Any, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        finds(seeds)
