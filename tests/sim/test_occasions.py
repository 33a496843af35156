"""Test messages that start a pipeline: each has one item and one answer, in order; anything else is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from headgate.gate.state.change import Occasion
from headgate.services.scheduler import turn
from headgate.services.scheduler.occasions import messages, runner
from headgate.services.scheduler.occasions.runner import OccasionRunner
from headgate.testing.sim.simulation import Simulation, prepare, simulate
from headgate.testing.sim.worlds import InvariantBroken

SEEDS = int(os.environ.get("SIM_SEEDS", "200")) // 10
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_each_message_starts_one_item_and_has_one_answer(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS)), posted=True) > 0, "nobody died"


def the_progress_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OccasionRunner, "_recall", _forgets)


async def _forgets(self: OccasionRunner) -> None:
    self._taken, self._problem = {}, None


def the_end_frees_no_place(patch: pytest.MonkeyPatch) -> None:
    real = turn.Delete

    def delete_nothing(path: str) -> Any:
        return real(path if "/occasions/" not in path else "/zuul/nothing")

    patch.setattr(turn, "Delete", delete_nothing)


def messages_of_a_partition_run_beside_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Occasion, "line", property(lambda one: f"{one.connection} {one.id}"))


def what_is_too_large_is_dropped_in_silence(patch: pytest.MonkeyPatch) -> None:
    real = messages.occasion

    def silent(connection: str, partition: Any, message: Any) -> Any:
        found = real(connection, partition, message)
        return None if found.problem else found

    patch.setattr(messages, "occasion", silent)


def what_is_new_is_never_looked_for_once_a_stream_breaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OccasionRunner, "_heard", lambda self, partitions: None)
    patch.setattr(runner, "LOOK_S", 1e9)


def answers_are_sent_once_the_item_is_gone(patch: pytest.MonkeyPatch) -> None:
    real = turn.PipelineTurn.pieces

    def late(self: turn.PipelineTurn, before: Any, after: Any, actions: Any, ends: Any, answers: Any = ()) -> Any:
        return real(self, before, after, actions, [*ends, *answers])

    patch.setattr(turn.PipelineTurn, "pieces", late)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "seeds"),
    [
        (the_progress_is_not_stored, range(22, 110)),
        (the_end_frees_no_place, range(5)),
        (messages_of_a_partition_run_beside_each_other, range(40)),
        (what_is_too_large_is_dropped_in_silence, range(40)),
        (what_is_new_is_never_looked_for_once_a_stream_breaks, range(40)),
        (answers_are_sent_once_the_item_is_gone, range(380, 460)),
    ],
)
def test_the_simulation_detects_broken_code(
    mutant: Callable[[pytest.MonkeyPatch], None], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    Simulation(0, posted=True).run()
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        for seed in seeds:
            Simulation(seed, posted=True).run()
