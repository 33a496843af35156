"""Test many random schedules and crashes, and that the simulator finds defects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.forges import git
from headgate.gate import absorb, decide
from headgate.gate.builds import words
from headgate.gate.items import landings, trial
from headgate.gate.items.leave import leave
from headgate.gate.rules import readiness
from headgate.gate.state.actions import Resume
from headgate.gate.state.model import BuildSet, State
from headgate.recipes.backlog import Backlog
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Requests
from headgate.services import merger
from headgate.services.configuration import Configuration
from headgate.services.scheduler import pipeline, refs, semaphores, turn
from headgate.services.scheduler.semaphores import Semaphores
from headgate.store.store import Store
from headgate.store.types import Snapshot, Unavailable
from headgate.testing.sim.kinds import ANNOUNCED_EVERY, CHECKED_EVERY, SERVED_EVERY, SEVERAL_EVERY, TAGGED_EVERY
from headgate.testing.sim.simulation import CLOSED_EVERY, CUT_EVERY, DOUBTED_EVERY, Simulation, prepare, simulate
from tests.tiers import SOAK

SEEDS = int(os.environ.get("SIM_SEEDS", "200"))
"""The first 200 seeds cover every kind of world, including the rarest, one in 149."""
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_gate_survives_whatever_happens_at_any_request(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS))) > 0, "a chunk without a single death tests nothing"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, CHUNK))
def test_changes_that_need_each_other_land_all_or_not_at_all(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS // 10)), circular=True) > 0, "nobody died"


def test_when_one_fault_follows_another_changes_wait_for_the_end_of_faults() -> None:
    """In this world, the merger or the scheduler is cut off or dead most of the time, for three minutes."""
    assert simulate([3934])


@pytest.mark.long
def test_an_idle_system_asks_the_store_nothing() -> None:
    Simulation(seed=1, calm=True, idle_s=3600.0).run()


@pytest.mark.long
def test_a_seed_is_the_same_run_whatever_hashes_are_and_whatever_ran_before() -> None:
    seeds = [0, 1, 2, 13] if SOAK else [0, 13]
    runs = [("1", seeds), ("2", seeds[::-1])]
    lines = [
        subprocess.run(
            [sys.executable, "-m", "tests.sim.traced", *map(str, order)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for hashes, order in runs
    ]
    assert sorted(lines[0]) == sorted(lines[1]) and len(lines[0]) == len(seeds)


Mutant = Callable[[pytest.MonkeyPatch], None]


def base_check_removed(patch: pytest.MonkeyPatch) -> None:
    def always(buildset: BuildSet, ahead: str | None, landed: tuple[str, ...]) -> bool:
        return True

    patch.setattr(trial, "rests_on", always)


def paths_that_only_a_merge_changes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(absorb, "_with_displaced", lambda item, *rest: item)


def failures_land(patch: pytest.MonkeyPatch) -> None:
    for module in (decide, landings):
        patch.setattr(module, "result_of", lambda item: "SUCCESS")


def an_approval_is_checked_once(patch: pytest.MonkeyPatch) -> None:
    """Check an approval only when an item is enqueued, not when a change lands."""
    the_server_does_not_check_the_approval(patch)
    patch.setattr(readiness, "guarded", lambda pipeline: False)


def the_server_does_not_check_the_approval(patch: pytest.MonkeyPatch) -> None:
    """Land without the approval: it may be withdrawn between the gate's last check and the push."""
    patch.setattr(landings, "needs_approval", lambda item, change, pipeline: False)


def a_requested_landing_is_pushed_though_the_gate_was_closed_meanwhile(patch: pytest.MonkeyPatch) -> None:
    async def open_ever(*_arguments: Any) -> bool:
        return False

    patch.setattr(merger, "shut", open_ever)


def a_closed_gate_lands(patch: pytest.MonkeyPatch) -> None:
    a_requested_landing_is_pushed_though_the_gate_was_closed_meanwhile(patch)
    patch.setattr(decide, "closing_of", lambda *arguments: None)


def the_server_does_not_check_votes(patch: pytest.MonkeyPatch) -> None:
    """Land without the votes: they may be withdrawn between the gate's last check and the push."""
    patch.setattr(landings, "leases", lambda *arguments: ())
    patch.setattr(landings, "heeds_vetoes", lambda *arguments: False)


def one_person_is_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(git, "person", lambda name: name)


def who_proposed_it_approves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(git, "authors", lambda change_state: set())


def dependencies_are_not_checked_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(readiness, "lacks", lambda *rest: None)


def what_ran_beside_a_lost_build_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(words, "_without_dependents", lambda buildset, build, arguments, *, ended: buildset)


def a_lost_pause_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = Requests.claim

    async def claim(self: Requests, found: Any, *rest: Any) -> Any:
        fresh = replace(found, request=replace(found.request, state="requested"))
        return await real(self, fresh, *rest)

    patch.setattr(Requests, "claim", claim)


def events_not_consumed_in_the_turns_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline.Unread, "consume", lambda event: [])


def requests_not_part_of_the_turns_commit(patch: pytest.MonkeyPatch) -> None:
    real = turn.PipelineTurn._build

    def forgetful(self: turn.PipelineTurn, record: Any, action: Any, cancelled: bool) -> Any:
        return real(self, record, None, cancelled)

    patch.setattr(turn.PipelineTurn, "_build", forgetful)


def claims_outlive_their_worker(patch: pytest.MonkeyPatch) -> None:
    real = Backlog._add

    def only_fresh(self: Backlog, found: Any) -> None:
        if found.locked or found.request.state == "requested":
            real(self, found)

    patch.setattr(Backlog, "_add", only_fresh)


def locks_not_tied_to_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = Store.commit

    async def leaseless(self: Store, checks: Any, ops: Any, *, guards: Any = ()) -> Any:
        from headgate.store.types import Append

        ops = [Append(op.parent, op.value, None, op.prefix) if isinstance(op, Append) else op for op in ops]
        return await real(self, checks, ops, guards=guards)

    patch.setattr(Store, "commit", leaseless)


def guards_left_out(patch: pytest.MonkeyPatch) -> None:
    real = Store.commit

    async def unguarded(self: Store, checks: Any, ops: Any, *, guards: Any = ()) -> Any:
        return await real(self, checks, ops)

    patch.setattr(Store, "commit", unguarded)


def a_watch_goes_on_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    real = Mirror._apply

    def blind(self: Mirror, change: Any) -> None:
        if not (isinstance(change, Snapshot) and self.moves):
            real(self, change)

    patch.setattr(Mirror, "_apply", blind)


def cancelled_builds_go_on(patch: pytest.MonkeyPatch) -> None:
    real = Requests.cancel

    def deaf(found: Any) -> Any:
        return ([], []) if "executor" in found.queue else real(found)

    patch.setattr(Requests, "cancel", staticmethod(deaf))


def nobody_sweeps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headgate.services.scheduler.leftovers.INTERVAL_S", 1e6)


def sent_events_of_refs_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Forget which events of refs were sent: the next leader of the connection sends them again."""
    real = refs.Refs.pieces

    def forgetful(self: refs.Refs, *rest: Any) -> Any:
        return (turn.TurnPart(piece.ops[1:]) for piece in real(self, *rest))

    patch.setattr(refs.Refs, "pieces", forgetful)


def semaphores_are_written_blindly(patch: pytest.MonkeyPatch) -> None:
    real = Semaphores.holding

    def blind(self: Semaphores, *states: Any, **how: Any) -> Any:
        pieces = real(self, *states, **how)
        for piece in pieces:
            piece.checks.clear()
        return pieces

    patch.setattr(Semaphores, "holding", blind)


def unknown_outcomes_are_repeated(patch: pytest.MonkeyPatch) -> None:
    real = Store.commit

    async def stubborn(self: Store, checks: Any, ops: Any, *, guards: Any = ()) -> Any:
        try:
            return await real(self, checks, ops, guards=guards)
        except Unavailable:
            return await real(self, (), ops, guards=guards)

    patch.setattr(Store, "commit", stubborn)


def what_a_cut_turn_left_is_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    async def careless(*_: Any) -> bool:
        return True

    patch.setattr(pipeline, "disowned", careless)


def builds_are_resumed_in_another_commit(patch: pytest.MonkeyPatch) -> None:
    real = turn.PipelineTurn.pieces

    def apart(self: turn.PipelineTurn, before: Any, after: Any, actions: Any, consumed: Any) -> Any:
        words = [action for action in actions if isinstance(action, Resume)]
        later = [op for word in words for op in self._word(word).ops]
        return real(self, before, after, [action for action in actions if action not in words], [*consumed, *later])

    patch.setattr(turn.PipelineTurn, "pieces", apart)


def semaphores_are_never_given_up(patch: pytest.MonkeyPatch) -> None:
    real = Semaphores.holding

    def hoarding(self: Semaphores, *states: Any, settled: bool, cut: bool = False) -> Any:
        return real(self, *states, settled=settled, cut=True)

    patch.setattr(Semaphores, "holding", hoarding)


def cancelled_builds_give_up_their_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(semaphores._Stops, "replaced", lambda *_: {})


def a_turn_gives_away_the_places_that_it_frees(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline, "taken_by", lambda state: {})


def what_runs_after_a_landing_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = pipeline.load

    def forgetful(*places: Any) -> Any:
        loaded = real(*places)
        queues = tuple(
            replace(queue, items=tuple(replace(item, epilogue=False) for item in queue.items))
            for queue in loaded.state.queues
        )
        return loaded._replace(state=replace(loaded.state, queues=queues))

    patch.setattr(pipeline, "load", forgetful)


def a_part_counts_as_all(patch: pytest.MonkeyPatch) -> None:
    """Regard a change as landed once the first repository has it, without a check of the others."""
    real = landings.landed

    def landed_at_once(queue: Any, item: Any, answer: Any, world: Any, actions: Any) -> Any:
        if answer.ok:
            return leave(queue, item, "SUCCESS", world, actions, report=False)
        return real(queue, item, answer, world, actions)

    patch.setattr(absorb, "landed", landed_at_once)


def who_goes_on_forgets_what_has_landed(patch: pytest.MonkeyPatch) -> None:
    real = pipeline.load

    def forgetful(*places: Any) -> Any:
        loaded = real(*places)
        queues = tuple(
            replace(queue, items=tuple(replace(item, landed=()) for item in queue.items))
            for queue in loaded.state.queues
        )
        return loaded._replace(state=replace(loaded.state, queues=queues))

    patch.setattr(pipeline, "load", forgetful)


MUTANTS: tuple[Mutant, ...] = (
    what_runs_after_a_landing_is_forgotten,
    what_a_cut_turn_left_is_not_cancelled,
    builds_are_resumed_in_another_commit,
    semaphores_are_never_given_up,
    base_check_removed,
    paths_that_only_a_merge_changes_are_ignored,
    what_ran_beside_a_lost_build_goes_on,
    a_lost_pause_is_forgotten,
    failures_land,
    an_approval_is_checked_once,
    the_server_does_not_check_the_approval,
    dependencies_are_not_checked_again,
    the_server_does_not_check_votes,
    one_person_is_two,
    who_proposed_it_approves,
    a_closed_gate_lands,
    a_requested_landing_is_pushed_though_the_gate_was_closed_meanwhile,
    events_not_consumed_in_the_turns_commit,
    requests_not_part_of_the_turns_commit,
    claims_outlive_their_worker,
    locks_not_tied_to_a_lease,
    guards_left_out,
    a_watch_goes_on_without_a_snapshot,
    cancelled_builds_go_on,
    nobody_sweeps,
    semaphores_are_written_blindly,
    sent_events_of_refs_are_not_stored,
    unknown_outcomes_are_repeated,
    cancelled_builds_give_up_their_places,
    a_turn_gives_away_the_places_that_it_frees,
)

AMONG = {
    the_server_does_not_check_votes: range(6, 800, SEVERAL_EVERY),
    one_person_is_two: range(6, 200, SEVERAL_EVERY),
    who_proposed_it_approves: range(6, 200, SEVERAL_EVERY),
    a_closed_gate_lands: range(5, 400, CLOSED_EVERY),
    a_requested_landing_is_pushed_though_the_gate_was_closed_meanwhile: range(6329, 12_000, CLOSED_EVERY),
    the_server_does_not_check_the_approval: range(602, 3000, SEVERAL_EVERY),
    an_approval_is_checked_once: range(2, 200, DOUBTED_EVERY),
    dependencies_are_not_checked_again: range(2, 800, DOUBTED_EVERY),
    what_a_cut_turn_left_is_not_cancelled: range(945, 1_700, CUT_EVERY),
    builds_are_resumed_in_another_commit: range(3105, 3400, CUT_EVERY * SERVED_EVERY),
    semaphores_are_written_blindly: range(780, 1200, CHECKED_EVERY),
    sent_events_of_refs_are_not_stored: range(4, 800, TAGGED_EVERY),
    what_ran_beside_a_lost_build_goes_on: range(45, 700, SERVED_EVERY),
    a_lost_pause_is_forgotten: range(0, 800, SERVED_EVERY),
    what_runs_after_a_landing_is_forgotten: range(1, 300, ANNOUNCED_EVERY),
}
"""Seeds of the worlds that can show a mutant, where most cannot."""


SOONEST = {
    what_runs_after_a_landing_is_forgotten: 73,
    semaphores_are_never_given_up: 10,
    base_check_removed: 62,
    paths_that_only_a_merge_changes_are_ignored: 124,
    what_ran_beside_a_lost_build_goes_on: 110,
    a_lost_pause_is_forgotten: 110,
    the_server_does_not_check_the_approval: 746,
    dependencies_are_not_checked_again: 266,
    the_server_does_not_check_votes: 22,
    a_closed_gate_lands: 41,
    a_requested_landing_is_pushed_though_the_gate_was_closed_meanwhile: 6359,
    claims_outlive_their_worker: 7,
    semaphores_are_written_blindly: 909,
    unknown_outcomes_are_repeated: 32,
    cancelled_builds_give_up_their_places: 3,
    a_turn_gives_away_the_places_that_it_frees: 90,
}
"""Mutant -> a seed that exposes it, tried first. If the worlds change, the search only takes longer."""


OF_CIRCLES: dict[Mutant, range] = {
    a_part_counts_as_all: range(100),
    who_goes_on_forgets_what_has_landed: range(87, 600),
}
"""Mutants of worlds where changes need each other, and their seeds."""


def what_nobody_has_is_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Configuration, "without", lambda self, pipeline: "")


def what_is_in_it_goes_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Remove a pipeline without stopping its workers."""
    patch.setattr(pipeline, "dissolved", lambda *rest: State())


OF_MOVES: dict[Mutant, range] = {
    what_nobody_has_is_left_alone: range(20),
    what_is_in_it_goes_without_a_word: range(40),
}
"""Mutants of worlds where pipelines come and go and queues change their names, and their seeds."""


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS // 10, CHUNK))
def test_nothing_runs_or_is_stored_for_a_removed_pipeline(first: int) -> None:
    assert simulate(range(first, min(first + CHUNK, SEEDS // 10)), moving=True) > 0, "nobody died"


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", OF_MOVES, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds_where_pipelines_come_and_go(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        simulate(OF_MOVES[mutant], moving=True)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", OF_CIRCLES, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds_in_circles(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        simulate(OF_CIRCLES[mutant], circular=True)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_detects_broken_code(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    mutant(monkeypatch)
    seeds = AMONG.get(mutant, range(100))
    with pytest.raises((AssertionError, TimeoutError)):
        simulate([SOONEST.get(mutant, seeds[0]), *seeds])
