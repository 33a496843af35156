"""Test builds of jobs with `reuse` that run when their item restarts: those with the same inputs continue."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, JobSemaphore, RequiredProject
from headgate.gate.builds.advance import holders
from headgate.gate.builds.carry import CARRIED_MAX_MS, DATA_MAX_BYTES, is_due, left_ms
from headgate.gate.builds.report import CARRIED
from headgate.gate.builds.start import awaited
from headgate.gate.state.actions import Cancel, Merge
from headgate.gate.state.management import CancelBuild, Promote
from headgate.gate.state.works import BuildEnded, BuildOutcome
from headgate.testing.plays import Play

UNIT = FrozenJob(name="unit", reuse=True)
BOTH = FrozenJob(name="both", reuse=True, required_projects=(RequiredProject("p", "git"), RequiredProject("q", "git")))
LOCKED = replace(UNIT, semaphores=(JobSemaphore("one"),))


def begun(*jobs: FrozenJob) -> Play:
    """Test B, of another repository, on A."""
    play = Play(*jobs)
    play.heads = {"p": "1" * 40, "q": "2" * 40}
    play.approve("A")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    return play


def ran(play: Play, name: str) -> dict[str, str]:
    return {run.spec.job.name: run.id for run in play.running.values() if run.spec.change.topic == name}


def reset(*jobs: FrozenJob) -> tuple[Play, dict[str, str]]:
    """Let A fail while B runs."""
    play = begun(*jobs)
    before = ran(play, "B")
    play.fails("A", jobs[0].name)
    return play, before


def test_a_build_with_the_same_inputs_continues_after_a_reset_and_its_change_lands() -> None:
    play, before = reset(UNIT)
    assert play.ended == {"A": "FAILURE"} and ran(play, "B") == before and play.merging_names == ["B"]
    play.merges()
    assert ran(play, "B") == before and play.beneath("B") == []
    play.passes("B")
    play.lands("B")
    assert (
        play.ended["B"] == "SUCCESS"
        and f"unit http://h/t/t/build/{before['unit']} : SUCCESS ({CARRIED})" in (play.messages["B"])
    )


def test_a_build_with_other_inputs_is_cancelled_once_they_are_known_and_its_job_runs_again() -> None:
    play, before = reset(UNIT, BOTH)
    assert ran(play, "B") == before, "nobody knows yet"
    play.merges()
    after = ran(play, "B")
    assert after["unit"] == before["unit"] and after["both"] != before["both"]
    assert [one.id for one in play.actions if isinstance(one, Cancel)] == [before["both"]]


def test_a_build_without_reuse_is_cancelled_immediately() -> None:
    play, _ = reset(replace(UNIT, reuse=False))
    assert ran(play, "B") == {} and play.item("B").carried == ()


def test_of_several_resets_in_a_row_only_the_last_base_counts() -> None:
    play = Play(UNIT)
    play.heads = {"p": "1" * 40, "q": "2" * 40}
    play.approve("A", "C")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    before = ran(play, "B")
    play.fails("A")
    play.abandon("C")
    assert ran(play, "B") == before and play.merging_names == ["B"]
    play.merges()
    assert ran(play, "B") == before and play.item("B").carried == ()
    assert set(play.item("B").earlier) == {play.running[before["unit"]].spec.buildset}, "whose state it runs on"
    play.passes("B")
    assert play.landing_names == ["B"] and play.item("B").earlier == {}


def test_a_carried_build_that_ends_before_its_inputs_are_known_counts_once_they_are() -> None:
    play, _ = reset(UNIT)
    play.passes("B")
    assert play.landing_names == [] and not play.item("B").under_way
    play.merges()
    assert ran(play, "B") == {} and play.landing_names == ["B"]


def test_a_carried_build_that_fails_before_its_inputs_are_known_fails_once_they_are() -> None:
    play, _ = reset(UNIT)
    play.fails("B")
    assert not play.item("B").failing
    play.merges()
    assert play.ended["B"] == "FAILURE"


@pytest.mark.parametrize(
    "outcome",
    [
        {"result": None},
        {"result": "SUCCESS"},
        {"result": "SUCCESS", "narrow": True, "data": {"much": "x" * DATA_MAX_BYTES}},
    ],
    ids=["lost", "it had too much", "it returned too much"],
)
def test_a_build_that_cannot_continue_is_restarted(outcome: dict[str, object]) -> None:
    play, before = reset(UNIT)
    spec = play.running.pop(before["unit"]).spec
    play.act(BuildEnded(spec.buildset, "unit", BuildOutcome(spec.build, **outcome)))  # type: ignore[arg-type]
    assert play.item("B").carried == () and play.item("B").earlier == {}
    play.merges()
    assert list(ran(play, "B")) == ["unit"] and ran(play, "B") != before


def test_the_result_of_a_carried_build_counts_only_if_its_executor_confirms_the_inputs() -> None:
    play, before = reset(UNIT)
    play.merges()
    spec = play.running.pop(before["unit"]).spec
    play.act(BuildEnded(spec.buildset, "unit", BuildOutcome(spec.build, "SUCCESS")))
    assert list(ran(play, "B")) == ["unit"] and ran(play, "B") != before
    play.passes("B")
    assert play.landing_names == ["B"]


def test_a_carried_build_whose_executor_is_lost_runs_again_on_the_new_base() -> None:
    play, before = reset(UNIT)
    play.merges()
    play.ends("B", "unit", None)
    spec = play.running_spec("B", "unit")
    assert spec.attempt == 2 and spec.build != before["unit"] and spec.buildset == play.item("B").buildset.id  # type: ignore[union-attr]


def locked(limit: int, *jobs: FrozenJob) -> tuple[Play, dict[str, str]]:
    """Like `begun`, with so many places; A has failed and has ended completely."""
    play = begun(*jobs)
    play.layout.limits = {"one": 2, "two": 2}
    play.act()
    before = ran(play, "B")
    play.layout.limits = {"one": limit, "two": limit}
    for job in jobs[1:]:
        play.passes("A", job.name)
    play.fails("A", jobs[0].name)
    return play, before


def test_a_carried_build_keeps_its_semaphore() -> None:
    play, before = locked(1, LOCKED, replace(BOTH, semaphores=(JobSemaphore("two"),)))
    origin = play.running[before["unit"]].spec.buildset
    assert set(holders(play.state)) == {("one", origin, "unit"), ("two", origin, "both")}
    play.approve("C")
    play.merges("C")
    assert ran(play, "C") == {}, "there is no place left"
    play.merges()
    of = {(name, buildset == origin) for name, buildset, _ in holders(play.state)}
    assert of == {("one", True)}, "the place of the one that does not go on is its own until it has ended"
    play.act()
    of = {(name, buildset == origin) for name, buildset, _ in holders(play.state)}
    assert of == {("one", True), ("two", False)}, "of the one that goes on, and of the one that runs anew"


def test_a_job_that_runs_again_waits_until_its_cancelled_build_has_ended() -> None:
    play, before = locked(1, replace(BOTH, semaphores=(JobSemaphore("one"),)), UNIT)
    assert before["both"] in play.running
    play.merges()
    assert before["both"] not in play.running and "both" not in ran(play, "B")
    play.held = {"one": 1}  # its executor stops it
    play.act()
    assert "both" not in ran(play, "B")
    play.held = {}
    play.act()
    assert ran(play, "B")["both"] != before["both"]


def test_a_carried_build_whose_inputs_stay_unknown_is_given_up() -> None:
    play, before = reset(UNIT)
    now_ms = play.world.now_ms
    assert left_ms(play.state, now_ms) == CARRIED_MAX_MS - (now_ms - play.item("B").carried[0].since_ms)
    play._clock += CARRIED_MAX_MS
    assert is_due(play.state, play.world.now_ms)
    play.act()
    assert ran(play, "B") == {} and before["unit"] not in awaited(play.state) and not is_due(play.state, 1 << 50)


def test_further_resets_do_not_give_a_carried_build_more_time() -> None:
    play = Play(UNIT)
    play.approve("A", "C")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    before = ran(play, "B")
    play.fails("A")
    (first,) = play.item("B").carried
    play._clock += CARRIED_MAX_MS // 2
    play.abandon("C")
    assert play.item("B").carried == (first,) and ran(play, "B") == before
    play._clock += CARRIED_MAX_MS // 2
    assert is_due(play.state, play.world.now_ms)
    play.act()
    assert ran(play, "B") == {} and play.item("B").carried == ()


@pytest.mark.parametrize("how", ["dequeued", "a new patchset", "a conflict", "promoted", "an error", "stopped"])
def test_a_carried_build_ends_with_its_item_or_its_base(how: str) -> None:
    play, before = reset(UNIT)
    if how == "dequeued":
        play.abandon("B")
    elif how == "a new patchset":
        play.propose(replace(play.change("B", project="q"), commit="e" * 40))
    elif how == "a conflict":
        play.conflicts("B")
    elif how == "promoted":
        play.approve("C")
        play.act(Promote((play.item("C").change.key,), "2"))
    elif how == "an error":
        play.texts = {"q": "broken"}
        item = play.item("B")
        change = replace(item.change, files=("zuul.yaml",))
        play.abandon("B")
        play.propose(change)
    else:
        play.act(CancelBuild(before["unit"], "enough"))
        play.merges()
        assert play.ended["B"] == "FAILURE"
    assert before["unit"] not in {*ran(play, "B").values(), *awaited(play.state)}


def test_a_carried_build_that_is_paused_or_pauses_is_started_again() -> None:
    play = begun(UNIT, FrozenJob(name="late"))
    before = ran(play, "B")
    play.pauses("B", "unit")
    play.fails("A")
    assert ran(play, "B") == {}, "others may have changed what it serves"
    play, before = reset(UNIT)
    play.pauses("B", "unit")
    assert before["unit"] not in ran(play, "B").values() and play.item("B").carried == ()


def test_a_carried_build_that_depends_on_a_repeated_one_is_given_up() -> None:
    after = replace(UNIT, name="after", dependencies=(JobDependency("first"),))
    play = begun(FrozenJob(name="first"), after, UNIT)
    play.passes("B", "first")
    before = ran(play, "B")
    assert "after" in before
    play.fails("A", "unit")
    play.merges()
    now = ran(play, "B")
    assert now["unit"] == before["unit"] and set(now) == {"first", "unit"}


def test_a_carried_build_that_depends_on_one_waiting_for_its_semaphore_is_given_up() -> None:
    """Otherwise each would wait for the other: the first for the place, and the second for the result of the first."""
    one = (JobSemaphore("one"),)
    after = replace(UNIT, name="after", dependencies=(JobDependency("first"),), semaphores=one)
    play = begun(FrozenJob(name="first", semaphores=one), after, UNIT)
    play.layout.limits = {"one": 2}
    play.act()
    for name in ("A", "B"):
        play.passes(name, "first")
    before = ran(play, "B")
    assert set(before) == {"after", "unit"}
    play.layout.limits = {"one": 1}
    play.passes("A", "after")
    play.fails("A", "unit")
    play.merges()
    assert ran(play, "B") == {"unit": before["unit"]} and Cancel(before["after"], build=True) in play.actions
    assert left_ms(play.state, play.world.now_ms) is None, "nothing waits for a time"
    play.act()
    assert set(ran(play, "B")) == {"first", "unit"}


def test_a_carried_build_that_requires_one_ahead_waiting_for_its_semaphore_is_given_up() -> None:
    one = (JobSemaphore("one"),)
    make = FrozenJob(name="make", provides=("image",), semaphores=one)
    use = replace(UNIT, name="use", requires=("image",), semaphores=one)
    play = Play(make, use, FrozenJob(name="other"))
    play.layout.limits = {"one": 9}
    play.heads = {"p": "1" * 40, "q": "2" * 40}
    play.approve("A")
    for name in ("B", "C"):
        play.propose(play.change(name, project="q"))
        play.approve(name)
    play.merges()
    for name, jobs in (("A", ("make", "use")), ("B", ("make", "use", "other")), ("C", ("make", "other"))):
        for job in jobs:
            play.passes(name, job)
    (before,) = ran(play, "C").values()
    play.layout.limits = {"one": 1}
    play.fails("A", "other")
    play.merges()
    assert set(ran(play, "B")) == {"other"} and before not in ran(play, "C").values()
    play.act()
    assert set(ran(play, "B")) == {"make", "other"}


def test_a_branch_that_somebody_else_moves_changes_nothing_for_others() -> None:
    play, before = reset(UNIT)
    play.merges()
    play.approve("D")
    play.merges()
    running = ran(play, "B")
    play.moves("1" * 40, "3" * 40, project="p")
    assert running == before and ran(play, "B") == before


def test_a_job_that_another_configuration_changed_runs_again() -> None:
    play, before = reset(UNIT)
    play.layout.jobs = (replace(UNIT, vars={"x": 1}),)
    play.merges()
    assert list(ran(play, "B")) == ["unit"] and ran(play, "B") != before


def test_a_carried_build_that_has_begun_to_fail_still_counts_as_failing() -> None:
    play, before = reset(UNIT)
    play.begins_to_fail("B")
    play.merges()
    assert ran(play, "B") == before and play.item("B").failing


def test_only_the_merge_of_the_new_base_is_requested() -> None:
    play, _ = reset(UNIT)
    (merge,) = (one for one in play.actions if isinstance(one, Merge))
    assert [one.commit for one in merge.work.chain] == [play.item("B").change.commit]


def test_an_item_that_was_not_reset_carries_no_builds() -> None:
    item = begun(UNIT).item("B")
    assert item.carried == () and item.earlier == {} and item.origins == set()
