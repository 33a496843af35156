"""Test changes that need each other: tested as one, landed as one, or not at all."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, RequiredProject
from headgate.gate.state.change import EventKind
from headgate.gate.state.management import Dequeue, Enqueue
from headgate.gate.state.works import LandAnswer
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

UNIT = FrozenJob(name="unit")


def circle(*jobs: FrozenJob, manager: str = "dependent", queues: dict[str, str] | None = None) -> Play:
    """A of project p and B of project q need each other; neither is approved."""
    play = Play(manager=manager, layout=PlayLayout(jobs or (UNIT,), queues=queues or {}, circles=True))
    play.change_states |= {}
    a, b = play.change("A"), play.change("B", project="q")
    play.propose(replace(a, needs=(b.key,)))
    play.propose(replace(b, needs=(a.key,)))
    return play


def passed(play: Play) -> None:
    """Answer every request except the landing."""
    play.merges()
    for name, job in play.builds:
        play.ends(name, job, "SUCCESS")


def notes_on(play: Play, name: str) -> list[str]:
    return [report.work.note for report in play.reports if report.work.change.topic == name]


def test_a_circle_is_enqueued_once_all_its_changes_are_approved_and_is_merged_together() -> None:
    play = circle()
    play.approve("A")
    assert (
        play.queue == [] and "q/master/B is not approved; this change will be enqueued once it is" in play.messages["A"]
    )
    play.approve("B")
    assert play.queue == ["B+A"]
    (merge,) = play.merging.values()
    assert [item.project for item in merge.work.chain] == ["q", "p"] and len({i.item for i in merge.work.chain}) == 1


def test_a_circle_is_refused_if_its_queue_does_not_allow_it() -> None:
    play = circle()
    play.layout.circles = False
    play.approve("A", "B")
    assert play.queue == [] and "that is not allowed in shared" in play.messages["B"]


def test_a_circle_of_projects_that_share_no_queue_is_refused() -> None:
    play = circle(queues={"q": "other"})
    play.approve("A", "B")
    assert play.queue == [] and "it is in another queue (q: " not in play.messages["B"]
    assert "it is in another queue (shared)" in play.messages["B"]


def test_each_has_its_jobs_and_they_land_one_repository_after_the_other() -> None:
    play = circle()
    play.approve("A", "B")
    play.merges()
    assert sorted(play.builds) == [("A", "unit"), ("B", "unit")], "equal jobs of two projects are not one"
    play.passes("B")
    assert play.landing_names == []
    play.passes("A")
    (first,) = play.landing.values()
    assert [part.change.topic for part in first.work.parts] == ["B"]
    assert [part.change.topic for part in first.work.later] == ["A"], "it is tried before B lands"
    assert "lands together with p/master/A, which lands after it" in first.work.note
    play.lands("B")
    assert play.queue == ["B+A"] and play.ended.get("B") != "SUCCESS"
    (second,) = play.landing.values()
    assert [part.change.topic for part in second.work.parts] == ["A"] and second.work.rest
    assert "lands together with q/master/B, which has landed as" in second.work.note
    play.lands("A")
    assert play.queue == [] and play.ended == {"A": "SUCCESS", "B": "SUCCESS"}
    assert "lands together with p/master/A, which has landed as" in notes_on(play, "B")[-1]


def test_in_one_repository_they_land_in_one_step() -> None:
    play = Play(layout=PlayLayout((UNIT,), circles=True))
    a, b = play.change("A"), play.change("B")
    play.propose(replace(a, needs=(b.key,)))
    play.propose(replace(b, needs=(a.key,)))
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("B", "unit")], "equal jobs of one project are one"
    play.passes("B")
    (land,) = play.landing.values()
    assert [part.change.topic for part in land.work.parts] == ["B", "A"] and not land.work.later
    play.lands("B")
    assert play.queue == [] and play.ended == {"A": "SUCCESS", "B": "SUCCESS"}


def test_when_a_job_of_one_fails_all_are_rejected_and_each_gets_a_report() -> None:
    play = circle()
    play.approve("A", "B")
    play.merges()
    play.passes("B")
    play.fails("A")
    assert play.queue == [] and play.ended == {"A": "FAILURE", "B": "FAILURE"}
    for name in "AB":
        assert "- unit of p/master/A" in notes_on(play, name)[-1] and "- unit of q/master/B" in notes_on(play, name)[-1]


def test_a_conflict_of_one_is_the_conflict_of_all() -> None:
    play = circle()
    play.approve("A", "B")
    play.conflicts("A", "B")
    assert play.ended == {"A": "MERGE_CONFLICT", "B": "MERGE_CONFLICT"}


def test_a_withdrawn_approval_removes_all_changes_of_the_circle() -> None:
    play = circle()
    play.approve("A", "B")
    play.merges()
    play.unapprove("A")
    assert play.queue == [] and play.builds == [] and play.ended == {"A": "FAILURE", "B": "FAILURE"}
    assert "p/master/A is not approved" in notes_on(play, "B")[-1]


def test_a_withdrawn_change_takes_all_out_and_the_others_get_a_report() -> None:
    play = circle()
    play.approve("A", "B")
    play.abandon("A")
    assert play.queue == [] and play.ended["B"] == "FAILURE"
    assert "p/master/A, which must land together with it, was withdrawn" in notes_on(play, "B")[-1]


def test_a_new_patchset_of_one_change_removes_the_circle_until_it_is_approved() -> None:
    play = circle()
    play.approve("A", "B")
    needs = play.change_states["p/master/A"].change.needs
    play.propose(replace(play.change("A", commit="a" * 40), needs=needs))
    assert play.queue == [] and "p/master/A is not approved" in play.messages["B"]
    play.approve("A")
    assert play.queue == ["A+B"] and {c.commit for c in play.item("A").changes} == {"a" * 40, "B" * 40}


def test_a_manual_dequeue_removes_the_entire_circle() -> None:
    play = circle()
    play.approve("A", "B")
    play.act(Dequeue("p/master/A"))
    assert play.queue == [] and play.ended == {"A": "DEQUEUED", "B": "DEQUEUED"}


def test_a_change_that_is_let_in_unapproved_does_not_let_in_its_circle() -> None:
    play = circle()
    a = play.change_states["p/master/A"].change
    play.act(Enqueue(a, "hand", unapproved=True))
    assert play.queue == []
    assert "q/master/B is not approved" in play.messages["A"]
    play.approve("B")
    play.act(Enqueue(a, "again", unapproved=True))
    assert play.queue == ["A+B"]
    play.unapprove("B")
    assert play.queue == [], "B was let in because it was approved"


def test_in_check_they_are_tested_as_one_and_both_get_a_report() -> None:
    play = circle(manager="independent")
    assert play.queue == ["B+A"], "what was begun for A alone has given way"
    play.merges()
    assert sorted(play.builds) == [("A", "unit"), ("B", "unit")]
    play.passes("A")
    play.passes("B")
    assert play.queue == [] and play.ended == {"A": "SUCCESS", "B": "SUCCESS"} and play.landing == {}
    assert "Build succeeded" in notes_on(play, "A")[-1] and "Build succeeded" in notes_on(play, "B")[-1]


def test_a_change_that_needs_a_circle_is_tested_on_it_in_check_and_behind_it_in_the_gate() -> None:
    check = circle(manager="independent")
    check.propose(check.change("C", "A"))
    assert check.queue == ["B+A", "A+B", "C"]
    check.merges("C")
    assert check.beneath("C") == ["A", "B"]
    gate = circle()
    gate.propose(gate.change("C", "A"))
    gate.approve("C", "A", "B")
    assert gate.queue == ["B+A", "C"]


def test_a_circle_needs_every_change_that_one_of_its_changes_needs() -> None:
    play = circle()
    play.propose(play.change("C"))
    b = play.change_states["q/master/B"].change
    play.propose(replace(b, needs=(*b.needs, "p/master/C"), commit="b" * 40))
    play.approve("A", "B")
    assert play.queue == [] and "p/master/C is not approved" in play.messages["B"]
    play.approve("C")
    assert play.queue == ["C", "A+B"] or play.queue == ["C", "B+A"]
    play.merges()
    assert play.beneath("A") == ["C"]
    play.fails("C")
    assert play.queue == [], "what it needs has failed"


def test_a_circle_counts_as_one_in_the_window() -> None:
    play = circle()
    play.state = replace(play.state)
    play.pipeline = replace(play.pipeline, window=replace(play.pipeline.window, size=2))
    play.approve("A", "B", "C", "D")
    assert play.queue == ["B+A", "C", "D"] and len(play.merging) == 2


def test_if_a_change_of_a_circle_is_pushed_past_the_gate_the_other_continues_alone() -> None:
    play = circle()
    play.approve("A", "B")
    play.merges()
    play.pushes("A")
    assert play.queue == ["B"] and play.item("B").others == ()
    passed(play)
    play.lands("B")
    assert play.ended["B"] == "SUCCESS"


def half(play: Play) -> Play:
    """B has landed, A is landing."""
    play.approve("A", "B")
    passed(play)
    play.lands("B")
    assert play.landing_names == ["A"]
    return play


def test_an_answer_that_comes_twice_counts_once() -> None:
    play = circle()
    play.approve("A", "B")
    passed(play)
    (first,) = play.landing.values()
    play.lands("B")
    play.act(LandAnswer(first.work.buildset, True, project="q"))
    assert play.queue == ["B+A"] and play.landing_names == ["A"], "A has not landed by it"


def test_a_branch_that_moved_before_the_first_step_has_all_tested_again() -> None:
    play = circle()
    play.approve("A", "B")
    passed(play)
    play.lands("B", moved=True)
    assert play.queue == ["B+A"] and len(play.merging) == 1


def test_a_branch_that_moved_between_two_steps_has_the_rest_tested_again_and_landed() -> None:
    play = half(circle())
    play.lands("A", moved=True)
    (merge,) = play.merging.values()
    assert [item.project for item in merge.work.chain] == ["p"] and play.queue == ["A"]
    passed(play)
    (land,) = play.landing.values()
    assert land.work.rest and "q/master/B, which has landed" in land.work.note
    play.lands("A")
    assert play.queue == [] and play.ended["A"] == "SUCCESS"
    assert "p/master/A, which has landed" in notes_on(play, "B")[-1]


def test_a_circle_that_cannot_continue_raises_an_alarm_that_lists_the_landed_part() -> None:
    play = half(circle())
    play.lands("A", error="hook declined")
    assert play.queue == [] and play.ended["A"] == "MERGE_FAILURE"
    for name in "AB":
        note = notes_on(play, name)[-1]
        assert "ALARM: changes that depend on each other have landed only in part" in note
        assert f"- q/master/B has landed as {'B' * 40}" in note and "- p/master/A has not landed" in note
    landed = [report.work for report in play.reports if report.work.change.topic == "B"][-1]
    assert landed.landed.startswith("B" * 40), "its note goes on to say that it has landed"


def test_a_withdrawal_between_two_steps_does_not_undo_the_first() -> None:
    play = half(circle())
    play.lands("A", moved=True)
    play.unapprove("A")
    assert (
        play.queue == []
        and "ALARM" in notes_on(play, "B")[-1]
        and "p/master/A is not approved" in notes_on(play, "A")[-1]
    )


def test_a_failure_of_the_rest_of_a_circle_raises_an_alarm() -> None:
    play = half(circle())
    play.lands("A", moved=True)
    play.merges()
    play.fails("A")
    assert play.queue == [] and "ALARM" in notes_on(play, "B")[-1]


def test_changes_behind_a_circle_are_tested_on_all_of_it_or_none_of_it() -> None:
    play = circle()
    play.approve("A", "B", "C")
    passed(play)
    assert play.beneath("C") == ["B", "A"]
    play.lands("B")
    play.lands("A", error="hook declined")
    assert play.merging_names == ["C"], "only a part of what it was tested on has landed"


def test_jobs_that_say_so_run_once_for_all_and_depend_on_the_jobs_of_each() -> None:
    build = FrozenJob(name="build")
    once = FrozenJob(name="deploy", deduplicate=True, dependencies=(JobDependency("build"),))
    play = circle(build, once)
    play.approve("A", "B")
    play.merges()
    assert sorted(play.builds) == [("A", "build"), ("B", "build")]
    play.passes("B")
    assert ("B", "deploy") not in play.builds, "it waits for the job of each"
    play.passes("A")
    assert play.builds == [("B", "deploy")]
    spec = play.running_spec("B", "deploy")
    assert [c.topic for c in spec.also] == ["A"] and [c.topic for c in spec.together] == ["B", "A"]


def test_jobs_with_required_projects_are_one_unless_they_say_otherwise() -> None:
    required = (RequiredProject("p", "git"), RequiredProject("q", "git"))
    auto = FrozenJob(name="both", required_projects=required)
    never = FrozenJob(name="each", required_projects=required, deduplicate=False)
    play = circle(auto, never)
    play.approve("A", "B")
    play.merges()
    assert sorted(play.builds) == [("A", "each"), ("B", "both"), ("B", "each")]


def test_reporter_jobs_run_for_each() -> None:
    play = circle(UNIT, FrozenJob(name="tells", type="reporter"))
    play.approve("A", "B")
    passed(play)
    play.lands("B")
    play.lands("A")
    assert sorted(play.builds) == [("A", "tells"), ("B", "tells")]


def test_a_circle_that_is_proposed_one_by_one_is_tested_again_as_one() -> None:
    play = Play(manager="independent", layout=PlayLayout((UNIT,), circles=True))
    play.propose(replace(play.change("A"), needs=("q/master/B",)))
    assert play.queue == ["A"]
    play.merges()
    play.propose(play.change("B", "A", project="q"))
    assert play.queue == ["B+A"] and play.builds == []


def test_an_event_of_one_finds_the_circle_here() -> None:
    play = circle()
    play.approve("A", "B")
    item = play.item("A")
    play.event(EventKind.APPROVED, play.change_states["p/master/A"].change)
    assert play.item("A") == item


# --- the alarm that stands


def broken() -> Play:
    """B has landed, and A cannot."""
    play = half(circle())
    play.lands("A", error="hook declined")
    return play


def test_the_alarm_stays_until_the_rest_has_landed() -> None:
    play = broken()
    (alarm,) = play.state.parted
    assert alarm.landed == {"q/master/B": f"{'B' * 40}+{'A' * 40}"} and alarm.missing == ("p/master/A",)
    play.approve("C", "A")
    passed(play)
    play.lands("C")
    assert play.state.parted == (alarm,), "another has landed, and this one has only passed"
    play.lands("A")
    assert play.state.parted == ()


def test_the_alarm_stays_after_the_missing_change_is_withdrawn_and_ends_when_somebody_dequeues_it() -> None:
    play = half(circle())
    play.lands("A", moved=True)
    play.abandon("A")
    (alarm,) = play.state.parted
    assert alarm.missing == ("p/master/A",)
    play.act(Dequeue("p/master/A"))
    assert play.state.parted == (alarm,), "that was another pipeline, which takes up what it superseded"
    play.act(Dequeue("p/master/C", "it was taken out by op"))
    assert play.state.parted == (alarm,), "it is another change"
    play.act(Dequeue("p/master/A", "it was taken out by op"))
    assert play.state.parted == ()


def test_taking_the_rest_out_while_it_is_tested_again_leaves_the_alarm() -> None:
    play = broken()
    play.approve("A")
    assert play.queue == ["A"]
    play.act(Dequeue("p/master/A", "it was taken out by op"))
    assert play.queue == [] and len(play.state.parted) == 1


def test_a_circle_that_lands_or_of_which_nothing_has_is_no_alarm() -> None:
    play = half(circle())
    play.lands("A")
    assert play.state.parted == ()
    play = circle()
    play.approve("A", "B")
    passed(play)
    play.lands("B", error="hook declined")
    assert play.queue == [] and play.state.parted == ()
