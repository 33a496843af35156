"""Queues with priorities under random schedules; and proof that the simulators would notice."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence

import pytest

from headgate.queueing.lanes import Lane
from headgate.queueing.priorities import Next
from headgate.services.queueing import sharing, turns
from headgate.services.queueing.sharing import View
from headgate.services.queueing.turns import Rank, Turns
from headgate.testing.queues import simulator as queuesim
from headgate.testing.queues.simulator import simulate_priorities
from headgate.testing.sim.world import Broken

SEEDS = int(os.environ.get("PRIORITY_SIM_SEEDS", "80"))
CHUNK = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterable[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_workers_with_a_store_serve_the_highest_priority_and_starve_none(first: int) -> None:
    deaths, overtaken = simulate_priorities(first, CHUNK)
    assert deaths > 0 and overtaken > 0, "nobody died, or no late message came before others: that tests nothing"


def the_oldest_comes_first(patch: pytest.MonkeyPatch) -> None:
    def oldest(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float) -> Next | None:
        waiting = [(since, which) for which, since in enumerate(since_ms) if since is not None]
        return Next(min(waiting)[1], 0) if waiting else None

    patch.setattr(turns, "comes_next", oldest)


def what_is_late_waits_on(patch: pytest.MonkeyPatch) -> None:
    def strict(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float) -> Next | None:
        return next((Next(which, 0) for which, since in enumerate(since_ms) if since is not None), None)

    patch.setattr(turns, "comes_next", strict)


def what_is_late_has_every_turn(patch: pytest.MonkeyPatch) -> None:
    real = turns.comes_next
    patch.setattr(turns, "comes_next", lambda since, now, passed, patience: real(since, now, 9, patience))


def strands_are_taken_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "head", lambda self, lane: lane)
    patch.setattr(View, "strand", lambda self, lane: [lane])


def each_lane_has_turns_of_its_own(patch: pytest.MonkeyPatch) -> None:
    real = Turns.of
    new = lambda self: Turns(self.count, self.patience_s, self.now_ms, self.changed)  # noqa: E731
    patch.setattr(Turns, "of", lambda self, which: real(new(self), which))


def nobody_waits_for_one_that_is_about_to_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rank, "stirs", lambda self: None)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    the_oldest_comes_first,
    what_is_late_waits_on,
    what_is_late_has_every_turn,
    strands_are_taken_apart,
    each_lane_has_turns_of_its_own,
    nobody_waits_for_one_that_is_about_to_say,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuesim, "TIME_MAX_S", 100.0)
    mutant(monkeypatch)
    with pytest.raises(Broken):
        simulate_priorities(0, SEEDS)
