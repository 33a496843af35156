"""Test actions of people that once had no effect."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, Window
from headgate.gate.items.gestures import unmoved
from headgate.gate.state.management import CancelBuild, Dequeue, Enqueue, LayoutChanged, Promote, RerunBuild
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

KEY = "p/master/{}".format


# --- Depends-On


def test_a_needed_change_is_ignored_until_it_is_proposed() -> None:
    play = Play(manager="independent")
    play.propose(play.change("B", "A"))
    play.merges()
    play.passes("B")
    assert play.ended == {"B": "SUCCESS"}
    assert "Depends-On: p/master/A: there is no such change; it is ignored until it is proposed." in play.messages["B"]
    play.propose(play.change("A"))
    assert "B" in play.queue, "it is tested anew"
    play.merges()
    assert play.beneath("B") == ["A"]
    play.passes("B")
    assert "no such change" not in play.messages["B"]
    play.propose(play.change("A", commit="2" * 40))
    assert "B" not in play.queue, "once is enough"


def test_a_needed_change_may_be_proposed_while_the_other_is_tested() -> None:
    play = Play(manager="independent")
    play.propose(play.change("B", "A"))
    play.merges()
    play.propose(play.change("A"))
    play.merges()
    assert play.beneath("B") == ["A"] and play.queue.count("B") == 1


def test_in_the_gate_a_needed_change_counts_once_it_is_proposed() -> None:
    play = Play()
    play.propose(play.change("B", "A"))
    play.approve("B")
    assert play.queue == ["B"]
    play.propose(play.change("A"))
    assert play.queue == [] and "p/master/A is not approved" in play.messages["B"]
    play.approve("A")
    assert play.queue == ["A", "B"]


def apart() -> Play:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"),), queues={"q": "other"}))
    play.propose(play.change("A", project="q"))
    play.approve("A")
    play.propose(play.change("B", "A"))
    play.approve("B")
    assert play.queue == ["A"] and "it must land first, and then this change will be enqueued" in play.messages["B"]
    return play


def test_a_change_that_needs_one_of_another_queue_is_enqueued_once_that_has_landed() -> None:
    play = apart()
    play.merges()
    play.passes("A")
    play.lands("A")
    assert play.queue == ["B"] and play.state.deferred == ()
    play.merges()
    play.fails("B")
    play.act()
    assert play.queue == [], "it does not come in twice"


def test_a_waiting_change_is_enqueued_when_somebody_else_lands_the_change_that_it_needs() -> None:
    play = apart()
    play.pushes("A")
    assert play.queue == ["B"]


def test_a_waiting_change_that_was_withdrawn_or_replaced_is_not_enqueued() -> None:
    for act in ("unapprove", "abandon", "replace"):
        play = apart()
        if act == "replace":
            play.propose(play.change("B", "A", commit="2" * 40))
        else:
            getattr(play, act)("B")
        play.merges()
        play.passes("A")
        play.lands("A")
        assert play.queue == [], act


# --- taking out, and stopping


def test_a_change_dequeued_with_a_reason_gets_it_reported() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    play.act(Dequeue(KEY("A"), why="it was taken out by ada: it breaks the release"))
    assert play.ended == {"A": "DEQUEUED"} and play.queue == ["B"]
    assert "It was taken out by ada: it breaks the release." in play.messages["A"]
    note = next(r.work.note for r in play.reports if r.work.change.topic == "A" and "taken out by" in r.work.note)
    assert "it breaks the release" in note


def test_a_build_that_somebody_stops_fails_its_change_and_says_why() -> None:
    play = Play("unit", "docs")
    play.approve("A", "B")
    play.merges()
    build = play.running_spec("A", "unit").build
    play.act(CancelBuild(build, "it was stopped by ada: it hangs"))
    assert [one for one in play.builds if one[0] == "A"] == [("A", "docs")], "the other goes on"
    play.act(CancelBuild(build, "twice"))
    play.passes("A", "docs")
    assert play.ended == {"A": "FAILURE"} and "CANCELED it was stopped by ada: it hangs" in play.messages["A"]
    assert "twice" not in play.messages["A"] and play.queue == ["B"]


def test_builds_that_use_a_paused_build_end_when_that_is_cancelled() -> None:
    serves = FrozenJob(name="serves", attempts_max=3)
    play = Play(serves, FrozenJob(name="uses", dependencies=(JobDependency("serves"),)))
    play.approve("A")
    play.merges()
    play.pauses("A", "serves")
    assert ("A", "uses") in play.builds
    play.act(CancelBuild(play.running_spec("A", "serves").build, "by hand"))
    assert play.builds == [] and play.ended == {"A": "FAILURE"}


# --- running one build once more


def failed(play: Play, topic: str, job: str) -> str:
    """Return the build, which fails."""
    build = play.running_spec(topic, job).build
    play.fails(topic, job)
    return build


def test_a_failed_build_is_rerun_and_lands_the_change_that_it_blocked() -> None:
    play = Play("unit", "docs")
    play.approve("A", "B")
    play.merges()
    build = failed(play, "A", "unit")
    play.merges()
    assert play.beneath("B") == [], "nobody believes in A"
    play.act(RerunBuild(build))
    play.merges()
    again = play.running_spec("A", "unit")
    assert (again.attempt, again.build != build) == (2, True)
    assert play.beneath("B") == ["A"], "what is behind rests on it again"
    play.act(RerunBuild(build))
    assert play.running_spec("A", "unit").build == again.build, "once is enough"
    play.passes("A", "unit", "docs")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}


def test_jobs_that_depend_on_a_rerun_build_run_again_with_it() -> None:
    play = Play(
        FrozenJob(name="docs"), FrozenJob(name="unit"), FrozenJob(name="after", dependencies=(JobDependency("unit"),))
    )
    play.approve("A")
    play.merges()
    build = failed(play, "A", "unit")
    play.act(RerunBuild(build))
    play.passes("A", "unit")
    assert sorted(play.builds) == [("A", "after"), ("A", "docs")], "it had been skipped"
    build = failed(play, "A", "after")
    play.act(RerunBuild(build))
    play.passes("A", "after", "docs")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}


def test_with_fail_fast_those_that_were_stopped_run_once_more_too() -> None:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"), FrozenJob(name="docs")), fail_fast=True))
    play.approve("X", "A")
    play.merges()
    build = failed(play, "A", "unit")
    assert [one for one in play.builds if one[0] == "A"] == []
    play.act(RerunBuild(build))
    assert sorted(one for one in play.builds if one[0] == "A") == [("A", "docs"), ("A", "unit")]


def test_only_failed_builds_of_unreported_items_can_be_rerun() -> None:
    play = Play("unit", "docs")
    play.approve("A")
    play.merges()
    running, passed = play.running_spec("A", "docs").build, play.running_spec("A", "unit").build
    play.passes("A", "unit")
    for build, why in ((running, "no build"), (passed, "did not fail"), ("0" * 32, "no build")):
        before, builds = play.state, play.builds
        work = RerunBuild(build)
        assert why in unmoved(work, before, before, play.world)
        play.act(work)
        assert play.builds == builds
    build = failed(play, "A", "docs")
    assert play.ended == {"A": "FAILURE"}
    play.act(RerunBuild(build))
    assert play.queue == []


# --- promote


def test_a_promoted_change_takes_the_changes_that_it_needs_with_it() -> None:
    play = Play()
    play.approve("X")
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("A", "B")
    play.merges()
    play.act(Promote((KEY("B"),), "now"))
    assert play.queue == ["A", "B", "X"] and play.ended == {}


def test_a_missing_member_fails_all() -> None:
    play = Play()
    play.approve("A", "B")
    play.act(Promote((KEY("B"), KEY("ghost")), "now"))
    assert play.queue == ["A", "B"]


def test_a_promoted_change_does_not_overtake_one_that_is_landing() -> None:
    play = Play()
    play.approve("A", "B", "C")
    play.merges()
    play.passes("A")
    play.act(Promote((KEY("C"),), "now"))
    assert play.queue == ["A", "C", "B"]
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}


def test_a_check_has_no_order() -> None:
    play = Play(manager="independent")
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.merges()
    play.act(Promote((KEY("B"),), "now"))
    assert play.beneath("B") == ["A"] and play.merging == {}


# --- newer patchsets


def test_where_the_old_patchset_stays_the_new_one_is_tested_too() -> None:
    play = Play(manager="independent")
    play.pipeline = replace(play.pipeline, dequeue_on_new_patchset=False)
    old, new = play.change("A"), play.change("A", commit="2" * 40)
    play.propose(old)
    play.propose(new)
    assert [item.change.commit for _, item in play.state.items()] == [old.commit, new.commit]
    play.propose(new)
    assert len(play.queue) == 2, "each once"
    play.abandon("A")
    assert play.queue == []


def test_in_the_gate_an_old_patchset_cannot_land() -> None:
    play = Play()
    play.pipeline = replace(play.pipeline, dequeue_on_new_patchset=False)
    play.approve("A")
    play.propose(play.change("A", commit="2" * 40))
    assert play.queue == []
    play.approve("A")
    assert [item.change.commit for _, item in play.state.items()] == ["2" * 40]


# --- disabled pipelines


def disabled() -> Play:
    play = Play()
    play.pipeline = replace(play.pipeline, disable_after=1, reporters={**play.pipeline.reporters, "disabled": ("git",)})
    play.approve("A", "B")
    play.merges()
    play.fails("A")
    assert play.state.disabled
    return play


def test_a_disabled_pipeline_lands_nothing_until_its_configuration_changes() -> None:
    play = disabled()
    play.merges()
    play.passes("B")
    assert play.landing_names == [] and play.ended["B"] == "MERGE_FAILURE" and "is disabled after" in play.messages["B"]
    assert "or is reloaded (headgate reconfigure --tenant t)" in play.messages["B"]
    play.act(LayoutChanged("", taken_over=True))
    assert play.state.disabled, "a scheduler that begins changes nothing"
    play.act(LayoutChanged("new"))
    assert (play.state.disabled, play.state.failures) == (False, 0)
    play.approve("C")
    play.merges()
    play.passes("C")
    assert play.landing_names == ["C"]


def test_a_refusal_does_not_count_as_a_failure_of_the_pipeline() -> None:
    play = Play()
    play.pipeline = replace(play.pipeline, disable_after=1)
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("B")
    assert play.ended == {"B": "FAILURE"} and not play.state.disabled


# --- small words


def test_a_change_in_the_gate_without_jobs_is_reported() -> None:
    play = Play(layout=PlayLayout(()))
    play.pipeline = replace(play.pipeline, reporters={"failure": ("git",)})
    play.approve("A")
    play.merges()
    assert play.ended == {"A": "NO_JOBS"}
    assert "No jobs of pipeline gate apply here, so nothing shows that it may land." in play.reports[-1].work.note


def test_windows_follow_the_configuration() -> None:
    play = Play(window=4)
    play.approve("A")
    play.merges()
    play.passes("A")
    play.approve("B")
    play.lands("A")
    sizes = []
    for window in (
        Window(size=9, floor=1),
        Window(size=9, floor=7),
        Window(size=9, floor=1, ceiling=3),
        Window(size=9, floor=1, increase_type="exponential", increase_factor=1, decrease_factor=1),
        Window(size=0),
        Window(size=6, floor=1),
    ):
        play.pipeline = replace(play.pipeline, window=window)
        play.act(LayoutChanged("new"))
        sizes.append(play.state.queues[0].window)
    assert sizes == [5, 7, 3, 9, 0, 6]


def test_by_hand_nothing_that_landed_comes_in() -> None:
    play = Play()
    play.approve("A")
    play.pushes("A")
    play.act(Enqueue(play.change("A"), "hand"))
    assert play.queue == []
