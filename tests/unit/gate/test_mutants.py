"""Test that a play notices when a rule of the gate is removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headgate.gate import absorb, decide
from headgate.gate.builds import start
from headgate.gate.items import enqueue, renewal
from headgate.gate.state.model import Phase, Queue

from . import test_closing as closing
from . import test_plays as plays


def what_landed_is_not_followed(patch: pytest.MonkeyPatch) -> None:
    for module in (decide, renewal):
        patch.setattr(module, "unfollowed", lambda queue, world: {})


def a_newer_patchset_is_forgotten_while_landing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "_succeed", lambda state, queue, item, successor: state)


def configuration_beneath_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = start._merge

    def only_own(*args: object) -> object:
        work = real(*args)  # type: ignore[arg-type]  # whatever start gives
        own = work.chain[-1].project
        return replace(work, config_paths={own: work.config_paths[own]})

    patch.setattr(start, "_merge", only_own)


def a_conflict_of_what_is_needed_blocks(patch: pytest.MonkeyPatch) -> None:
    real = absorb._merged

    def blocked(queue: Queue, *rest: object) -> object:
        buildset = real(queue, *rest)  # type: ignore[arg-type]  # as above
        return replace(buildset, merge=Phase.BLOCKED) if buildset.merge is Phase.CONFLICT else buildset

    patch.setattr(absorb, "_merged", blocked)


def the_window_is_endless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "active", lambda queue, position: True)


def a_closed_gate_lands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "closing_of", lambda closings, pipeline, queue: None)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    what_landed_is_not_followed: plays.test_landed_configuration_counts_for_all_projects_before_the_layout_includes_it,
    a_newer_patchset_is_forgotten_while_landing: (
        plays.test_a_patchset_approved_while_the_one_before_it_is_being_landed_waits_for_the_answer
    ),
    configuration_beneath_is_not_looked_at: plays.test_configuration_of_another_project_ahead_counts_behind_it,
    a_conflict_of_what_is_needed_blocks: plays.test_in_check_a_conflict_of_a_needed_change_is_reported_immediately,
    a_closed_gate_lands: closing.test_a_change_that_passes_in_a_closed_gate_waits_and_lands_when_it_is_opened,
    the_window_is_endless: plays.test_the_window_bounds_the_work_and_moves_with_success_and_failure,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_play_detects_each_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant]()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, StopIteration)):
        MUTANTS[mutant]()
