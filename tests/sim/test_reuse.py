"""Builds that stand for others, under the simulator: what lands has for each of its jobs one that passed on exactly the
inputs that it would be given; and proof that the simulator would notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from headgate.gate import inputs
from headgate.gate.model import Build
from headgate.gate.work import RepoState
from headgate.services.scheduler import bygone
from headgate.testing.loop import tidily
from headgate.testing.sim.simulation import Simulation, prepare

SHOWN = range(40)
"""Worlds in some of which they do."""
SEEDS = int(os.environ.get("SIM_SEEDS", "1000"))


def reused(*seeds: int) -> int:
    return sum(tidily(partial(lambda seed: Simulation(seed, reusing=True).run().reused, seed) for seed in seeds))


@pytest.mark.parametrize("first", range(0, SEEDS // 25, 10))
def test_nothing_lands_whose_inputs_were_not_tested(first: int) -> None:
    reused(*range(first, first + 10))


def test_builds_do_stand_for_others() -> None:
    assert reused(*SHOWN) > 0, "else the rest of this shows nothing"


Mutant = Callable[[pytest.MonkeyPatch], None]


def a_repository_is_left_out_of_the_digest(patch: pytest.MonkeyPatch) -> None:
    real = inputs._merged

    def blind(state: RepoState, project: str) -> dict[str, str]:
        return real(state, project) if state.chain[-1].project == project else {"master": "as ever"}

    patch.setattr(inputs, "_merged", blind)


def what_was_proposed_beneath_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """The same patchset is the same, whatever it is merged onto."""

    def blind(state: RepoState, project: str) -> dict[str, str]:
        return {"master": "as ever"}

    patch.setattr(inputs, "_merged", blind)
    patch.setattr(inputs, "_heads", blind)
    real = inputs.Inputs.digest
    patch.setattr(inputs.Inputs, "digest", lambda self: real(replace(self, bases={})))


def a_check_stands_for_a_gate(patch: pytest.MonkeyPatch) -> None:
    real = inputs.Inputs.digest

    def trusting(self: inputs.Inputs) -> str:
        zuul = {name: value for name, value in self.zuul.items() if name != "pipeline"}
        return real(replace(self, pipeline="", zuul=zuul, job=replace(self.job, inheritance=())))

    patch.setattr(inputs.Inputs, "digest", trusting)


def a_failed_build_stands_for_others(patch: pytest.MonkeyPatch) -> None:
    def always(build: Build) -> bool:
        return bool(build.inputs) and build.result in ("SUCCESS", "FAILURE")

    patch.setattr(bygone, "lasting", always)


MUTANTS: dict[Mutant, range] = {
    a_repository_is_left_out_of_the_digest: range(400),
    what_was_proposed_beneath_is_left_out: range(400),
    a_check_stands_for_a_gate: range(1, 400, 2),
    a_failed_build_stands_for_others: range(190, 900),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        reused(*MUTANTS[mutant])
