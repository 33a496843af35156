"""Test reused builds in the simulator: a landed change has for each of its jobs a build that passed on exactly its
inputs, and the simulator would notice any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from headgate.gate.builds import advance, carry, reuse, words
from headgate.gate.state.actions import Cancel
from headgate.gate.state.model import Build, BuildSet, Carried
from headgate.gate.state.works import RepoState
from headgate.gate.state.world import World
from headgate.map import state
from headgate.services.scheduler import bygone, turn
from headgate.testing.clock import tidily
from headgate.testing.sim.kinds import SimKind
from headgate.testing.sim.simulation import Simulation, prepare

SHOWN = range(12)
"""Seeds; in some of their worlds builds are reused."""
SEEDS = int(os.environ.get("SIM_SEEDS", "200"))


def played(*seeds: int) -> tuple[int, int]:
    """Return how many builds were reused, and how many were carried over a reset."""
    worlds = list(tidily(partial(lambda seed: Simulation(seed, reusing=True).run(), seed) for seed in seeds))
    return sum(world.reused for world in worlds), sum(world.carried for world in worlds)


@pytest.mark.parametrize("first", range(0, SEEDS // 25, 10))
def test_nothing_lands_whose_inputs_were_not_tested(first: int) -> None:
    played(*range(first, first + 10))


@pytest.mark.long
def test_builds_are_reused_and_continue_after_resets() -> None:
    stood_in, went_on = played(*SHOWN)
    assert stood_in > 0 and went_on > 0, "else the rest of this shows nothing"


Mutant = Callable[[pytest.MonkeyPatch], None]


def a_repository_is_left_out_of_the_digest(patch: pytest.MonkeyPatch) -> None:
    real = reuse._merged

    def blind(state: RepoState, project: str) -> dict[str, str]:
        return real(state, project) if state.chain[-1].project == project else {"master": "as ever"}

    patch.setattr(reuse, "_merged", blind)


def what_was_proposed_beneath_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Treat a patchset as equal to itself, whatever it is merged onto."""

    def blind(state: RepoState, project: str) -> dict[str, str]:
        return {"master": "as ever"}

    patch.setattr(reuse, "_merged", blind)
    patch.setattr(reuse, "_heads", blind)
    real = reuse.BuildInputs.digest
    patch.setattr(reuse.BuildInputs, "digest", lambda self: real(replace(self, bases={})))


def a_check_stands_for_a_gate(patch: pytest.MonkeyPatch) -> None:
    real = reuse.BuildInputs.digest

    def trusting(self: reuse.BuildInputs) -> str:
        zuul = {name: value for name, value in self.zuul.items() if name != "pipeline"}
        return real(replace(self, pipeline="", zuul=zuul, job=replace(self.job, inheritance=())))

    patch.setattr(reuse.BuildInputs, "digest", trusting)


def a_failed_build_stands_for_others(patch: pytest.MonkeyPatch) -> None:
    def always(build: Build) -> bool:
        return bool(build.inputs) and build.result in ("SUCCESS", "FAILURE")

    patch.setattr(bygone, "lasting", always)


def a_build_goes_on_whatever_it_is_given(patch: pytest.MonkeyPatch) -> None:
    def blind(self: carry.Match, fresh: Build) -> Build | None:
        return next((one.build for one in self.item.carried if one.build.job == fresh.job), None)

    patch.setattr(carry.Match, "of", blind)


def a_continued_build_needs_no_semaphore(patch: pytest.MonkeyPatch) -> None:
    real = carry._going_on

    def free(buildset: BuildSet, world: World) -> Iterator[Carried]:
        return (replace(one, semaphores=()) for one in real(buildset, world))

    patch.setattr(carry, "_going_on", free)


def what_does_not_go_on_is_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    real = carry.settled
    patch.setattr(advance, "settled", lambda item, match, world, actions: real(item, match, world, []))


def the_state_of_a_base_goes_with_it(patch: pytest.MonkeyPatch) -> None:
    real = state._drop_buildset
    patch.setattr(
        state, "_drop_buildset", lambda place, item, buildset, out, carried=(): real(place, item, buildset, out)
    )


def a_build_without_a_request_continues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(carry, "Run", Cancel)


def the_end_of_what_goes_on_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(words, "carried", lambda item, build: None)


def what_does_not_go_on_is_cancelled_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn, "_giving_up", lambda before, after: {})


MUTANTS: dict[Mutant, range] = {
    a_repository_is_left_out_of_the_digest: range(48, 51),
    what_was_proposed_beneath_is_left_out: range(9, 12),
    a_check_stands_for_a_gate: range(29, 35, 2),
    a_failed_build_stands_for_others: range(64, 65),
    a_build_goes_on_whatever_it_is_given: range(52, 55),
    a_continued_build_needs_no_semaphore: range(4, 5),
    what_does_not_go_on_is_not_cancelled: range(3, 4),
    the_state_of_a_base_goes_with_it: range(4, 6),
    a_build_without_a_request_continues: range(1695, 1696),
    what_does_not_go_on_is_cancelled_later: range(1553, 1554),
    the_end_of_what_goes_on_is_not_heard: range(284, 285),
}
"""Each mutant with worlds of which one finds it. With `SIM_SEEDS` of more than 1,000, as in `make soak`, each is
searched for in all worlds, which shows where these are once the simulator has changed."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_detects_broken_code(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(SimKind.reusing_of)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        played(*(range(SEEDS) if SEEDS > 1000 else MUTANTS[mutant]))
