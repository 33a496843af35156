"""A proposer who means harm, many times over: honest changes land, hostile ones never, and no process ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headgate.gate import enqueue, work
from headgate.recipes import backlog
from headgate.testing.sim.corpus import CONFIGS, RETURNS
from headgate.testing.sim.simulation import Simulation, prepare, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "1000")) // 20
CHUNK = 40
FLOODED, FLOOD = (3, 5), 400
"""Seeds of worlds where hostile jobs take no semaphore that others need; hostile changes that they begin with."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_proposer_stops_nobody_and_lands_nothing(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS)), hostile=True) > 0, "no death at all tests too little"


def test_floods_delay_others_by_seconds() -> None:
    for seed in FLOODED:
        Simulation(seed, hostile=True, calm=True, flood=FLOOD).run()


def test_hostile_worlds_are_hostile() -> None:
    """Every configuration and every returned value of the corpus is met within a few seeds."""
    configs, returned, landed = set[str](), set[str](), 0
    for seed in range(60):
        world = Simulation(seed, hostile=True).run()
        configs |= {harm.config for harm in world.harms.values()}
        returned |= {repr(harm.returned) for harm in world.harms.values()}
        landed += len(world.landed)
    assert set(CONFIGS) <= configs and {repr(one) for one in RETURNS} <= returned
    assert landed > 20


def requirements_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "unfit", lambda change, world: "")
    patch.setattr(enqueue, "refused", lambda pipeline, standing: False)


def first_come_first_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backlog, "_share", lambda found: backlog.Share(found.request.precedence, "", ""))


def returned_data_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(work.BuildOutcome, "fit", lambda outcome: outcome)


MUTANTS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Sequence[int], int], ...] = (
    (requirements_are_not_asked_for, range(60), 0),
    (first_come_first_served, FLOODED, FLOOD),
    (returned_data_is_believed, range(10), 0),
)
"""With the seeds that find them, and how many changes their worlds begin with."""


@pytest.mark.parametrize(("mutant", "seeds", "flood"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_hostile_worlds_find(mutant: Any, seeds: Sequence[int], flood: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        for seed in seeds:
            Simulation(seed, hostile=True, calm=True, flood=flood).run()
