"""Test the decisions of the gate with plays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob, JobDependency, JobSemaphore
from headgate.config.operator.model import content_of
from headgate.gate.builds.advance import holders
from headgate.gate.items.trial import LEAVES_MAX
from headgate.gate.state.change import EventKind
from headgate.gate.state.management import Dequeue, Enqueue, Promote
from headgate.gate.state.works import BuildEnded, BuildOutcome
from headgate.gate.state.world import Waiter
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

AFTER_UNIT = FrozenJob(name="deploy", dependencies=(JobDependency("unit"),))
SOFTLY = FrozenJob(name="docs", dependencies=(JobDependency("unit", soft=True),))


def test_an_approved_change_that_passes_lands() -> None:
    play = Play()
    play.approve("A")
    play.merges("A")
    assert play.builds == [("A", "unit")]
    play.passes("A")
    assert play.landing_names == ["A"]
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"} and play.queue == []


def test_a_and_b_are_approved__a_fails__b_restarts_without_a() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    assert play.beneath("B") == ["A"]
    play.fails("A")
    assert play.merging_names == ["B"] and ("B", "unit") not in play.builds
    play.merges("B")
    assert play.beneath("B") == []
    play.passes("B")
    play.lands("B")
    assert play.ended == {"A": "FAILURE", "B": "SUCCESS"}


def test_a_failing_change_waits_for_the_head_and_those_behind_are_tested_as_if_it_were_absent() -> None:
    play = Play()
    play.approve("A", "B", "C")
    play.merges()
    play.fails("B")
    play.merges("C")
    assert play.queue == ["A", "B", "C"] and play.beneath("C") == ["A"]
    play.passes("A")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS", "B": "FAILURE"}
    assert ("C", "unit") in play.builds, "C goes on: what it rests on has landed"
    play.passes("C")
    play.lands("C")
    assert play.ended["C"] == "SUCCESS"


def test_regular_jobs_wait_for_initializers_that_they_do_not_name() -> None:
    first = FrozenJob(name="first", type="initializer")
    play = Play("unit", first, AFTER_UNIT)
    play.approve("A")
    play.merges("A")
    assert play.builds == [("A", "first")]
    play.passes("A", "first")
    assert play.builds == [("A", "unit")]
    play.fails("A")
    assert play.ended == {"A": "FAILURE"} and play.builds == []


def test_regular_jobs_are_skipped_when_an_initializer_fails() -> None:
    play = Play("unit", FrozenJob(name="first", type="initializer"))
    play.approve("A")
    play.merges("A")
    play.fails("A", "first")
    assert play.ended == {"A": "FAILURE"} and play.builds == []


def test_success_behind_waits_for_the_head() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    play.passes("B")
    assert play.landing_names == []
    play.passes("A")
    assert play.landing_names == ["A"]
    play.lands("A")
    assert play.landing_names == ["B"]


def test_the_window_bounds_the_work_and_moves_with_success_and_failure() -> None:
    play = Play(window=2)
    play.approve("A", "B", "C", "D")
    assert play.merging_names == ["A", "B"]
    play.merges()
    play.passes("A")
    play.lands("A")
    assert play.state.queues[0].window == 3 and play.merging_names == ["C", "D"]
    play.merges()
    play.fails("B")
    assert play.state.queues[0].window == 1, "halved, not below the floor"


def test_a_branch_that_moved_has_the_head_and_all_behind_tested_again() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    play.passes("A")
    play.lands("A", moved=True)
    assert play.merging_names == ["A", "B"] and play.builds == []


def test_a_landing_that_is_refused_is_a_merge_failure() -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.passes("A")
    play.lands("A", error="hook declined")
    assert play.ended == {"A": "MERGE_FAILURE"} and "hook declined" in play.messages["A"]


def test_a_patchset_approved_while_the_one_before_it_is_being_landed_waits_for_the_answer() -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.passes("A")
    play.propose(play.change("A", commit="a" * 40))
    play.approve("A")
    play.lands("A", error="the change is no longer proposed")
    assert play.ended == {"A": "DEQUEUED"} and play.item("A").change.commit == "a" * 40
    play.merges()
    play.passes("A")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"} and play.queue == []


def test_a_conflict_of_ones_own_is_reported_at_the_head() -> None:
    play = Play()
    play.approve("A")
    play.conflicts("A")
    assert play.ended == {"A": "MERGE_CONFLICT"} and "conflicts in f" in play.messages["A"]


def test_a_conflict_of_a_change_ahead_blocks_only_while_it_is_ahead() -> None:
    play = Play()
    play.approve("A", "B")
    play.conflicts("B", blame="A")
    assert play.ended == {} and play.merging_names == ["A"]
    play.conflicts("A")
    assert play.ended == {"A": "MERGE_CONFLICT"} and play.merging_names == ["B"]


def test_a_change_that_another_needs_is_ahead_of_it_in_the_gate() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A", project="q"))
    play.approve("A", "B")
    assert play.queue == ["A", "B"]
    play.merges()
    assert play.beneath("B") == ["A"]


def test_b_waits_for_a_to_be_approved_and_says_so() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("B")
    assert play.queue == [] and "is not approved; this change will be enqueued once it is" in play.messages["B"]
    play.approve("A")
    assert play.queue == ["A", "B"]


def test_a_change_cannot_land_when_the_change_that_it_needs_fails() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("A", "B")
    play.merges()
    play.fails("A")
    assert play.ended == {"A": "FAILURE", "B": "FAILURE"} and "p/master/A" in play.messages["B"]


def test_a_change_lands_after_the_change_that_it_needs() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.approve("A", "B")
    play.merges()
    play.passes("A")
    play.passes("B")
    play.lands("A")
    play.lands("B")
    assert play.ended == {"A": "SUCCESS", "B": "SUCCESS"}


def test_depends_on_in_a_circle_is_reported_not_hung() -> None:
    play = Play()
    play.propose(play.change("B", "C"))
    play.propose(play.change("C", "B"))
    play.approve("C")
    assert "forms a circle: p/master/C -> p/master/B -> p/master/C; that is not allowed in shared" in play.messages["C"]


def test_a_needed_change_of_another_queue_must_land_first() -> None:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"),), queues={"q": "other"}))
    play.propose(play.change("A", project="q"))
    play.approve("A")
    play.propose(play.change("B", "A"))
    play.approve("B")
    assert "it is in another queue (other)" in play.messages["B"]


def test_in_check_a_conflict_of_a_needed_change_is_reported_immediately() -> None:
    play = Play(manager="independent")
    play.propose(play.change("A"))
    play.conflicts("A")
    play.propose(play.change("B", "A"))
    play.conflicts("B", blame="A")
    assert play.ended.get("B") == "MERGE_CONFLICT" and play.queue == []


def test_in_check_a_change_is_tested_on_the_change_that_it_needs_which_is_not_reported() -> None:
    play = Play(manager="independent")
    play.change_states["p/master/A"] = play.change_states.get("p/master/A") or _change_state(play, "A")
    play.propose(play.change("B", "A"))
    play.merges("B")
    assert play.beneath("B") == ["A"]
    play.passes("B")
    assert play.ended == {"B": "SUCCESS"} and play.queue == []


def _change_state(play: Play, name: str):  # type: ignore[no-untyped-def]
    from headgate.gate.state.change import ChangeState

    return ChangeState(play.change(name))


def test_checks_do_not_wait_for_one_another() -> None:
    play = Play(manager="independent")
    play.propose(play.change("A"))
    play.propose(play.change("B"))
    play.merges()
    play.passes("B")
    assert play.ended == {"B": "SUCCESS"} and play.beneath("A") == []


def test_a_new_patchset_takes_the_place_of_the_old() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    play.propose(play.change("A", commit="2" * 40))
    assert play.ended == {"A": "DEQUEUED"} and play.queue == ["B"]
    assert play.merging_names == ["B"], "B was tested on the old patchset"
    play.approve("A")
    assert play.queue == ["B", "A"]


def test_an_abandoned_change_leaves_with_its_builds() -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.abandon("A")
    assert play.ended == {"A": "DEQUEUED"} and play.builds == []


def test_enqueue_and_dequeue_by_hand() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.act(Enqueue(play.change("A"), "by-hand"))
    assert play.queue == [], "the requirements are what they are"
    play.act(Enqueue(play.change("A"), "by-hand", unapproved=True))
    assert play.queue == ["A"], "not approved, but asked for as that"
    play.act(Dequeue("p/master/A"))
    assert play.queue == [] and play.merging == {}


def test_dequeuing_the_item_of_one_event_does_not_affect_a_later_item() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.act(Enqueue(play.change("A"), "first", unapproved=True))
    play.act(Dequeue("p/master/A", "by bob", event="another"))
    assert play.queue == ["A"]
    play.act(Dequeue("p/master/A", "by bob", event="first"))
    assert play.queue == []
    play.act(Enqueue(play.change("A"), "second", unapproved=True))
    play.act(Dequeue("p/master/A", "by bob", event="first"))
    assert play.queue == ["A"]


def test_permission_to_enqueue_unapproved_is_for_one_patchset() -> None:
    play = Play()
    play.propose(play.change("A"))
    old = play.change("A")
    play.act(Enqueue(old, "by-hand", unapproved=True))
    play.propose(play.change("A", commit="2" * 40))
    assert play.queue == [], "a newer patchset has to be asked for anew"
    play.act(Enqueue(old, "again"))
    assert play.queue == [], "what is asked for is what was seen"
    play.approve("B")
    play.act(Enqueue(play.change("A", commit="2" * 40), "again", unapproved=True))
    play.act(Promote(("p/master/A",), "now"))
    assert play.queue == ["A", "B"], "once let in it may also be first"


def test_a_needed_change_meets_the_requirements_itself() -> None:
    play = Play()
    play.propose(play.change("A"))
    play.propose(play.change("B", "A"))
    play.act(Enqueue(play.change("B", "A"), "by-hand", unapproved=True))
    assert play.queue == [] and "p/master/A is not approved" in play.messages["B"]


def test_a_change_that_lost_its_approval_is_not_promoted() -> None:
    play = Play()
    play.approve("A", "B", "C")
    for name in ("B", "C"):
        play.change_states[f"p/master/{name}"] = replace(play.change_states[f"p/master/{name}"], approved="")
    play.act(Promote(("p/master/B",), "now"), Promote(("p/master/C",), "now", unapproved=True))
    assert play.queue == ["C", "A"], "who may says so for C, which so stays although it is not approved"
    assert play.ended == {"B": "FAILURE"} and "is not approved" in play.messages["B"]


def test_promote_moves_a_change_to_the_head_and_restarts_the_changes_behind() -> None:
    play = Play()
    play.approve("A", "B", "C")
    play.merges()
    play.act(Promote(("p/master/C",), "now"))
    assert play.queue == ["C", "A", "B"] and play.builds == []
    play.merges()
    assert play.beneath("B") == ["C", "A"]


def test_a_job_waits_for_the_job_it_depends_on_and_is_skipped_when_that_fails() -> None:
    play = Play("unit", AFTER_UNIT, SOFTLY)
    play.approve("A")
    play.merges()
    assert play.builds == [("A", "unit")]
    play.fails("A")
    assert play.ended == {"A": "FAILURE"}
    assert "- deploy : SKIPPED Skipped due to failed job unit" in play.messages["A"]


def test_child_jobs_leave_the_others_out() -> None:
    play = Play("unit", AFTER_UNIT, FrozenJob(name="extra", dependencies=(JobDependency("unit"),)))
    play.approve("A")
    play.merges()
    play.ends("A", "unit", "SUCCESS", zuul={"child_jobs": ["extra"]})
    assert play.builds == [("A", "extra")]
    play.passes("A")
    assert play.landing_names == ["A"], "skipped jobs do not stand in the way"


def test_a_job_may_request_that_no_child_jobs_run() -> None:
    play = Play("unit", AFTER_UNIT, SOFTLY)
    play.approve("A")
    play.merges()
    play.ends("A", "unit", "SUCCESS", zuul={"child_jobs": []})
    assert play.builds == [("A", "docs")], "who depends only softly runs all the same"
    play.passes("A")
    assert play.landing_names == ["A"]


def test_warnings_of_jobs_are_in_the_report() -> None:
    play = Play("unit")
    play.approve("A")
    play.merges()
    play.ends("A", "unit", "SUCCESS", zuul={"warnings": ["the API is old"]})
    play.lands("A")
    assert play.messages["A"].splitlines()[-1] == "unit warns: the API is old"


def test_a_build_that_did_not_get_to_run_is_tried_again_and_then_given_up() -> None:
    play = Play(FrozenJob(name="unit", attempts_max=2))
    play.approve("A")
    play.merges()
    play.ends("A", "unit", None)
    assert play.builds == [("A", "unit")]
    play.ends("A", "unit", None)
    assert play.ended == {"A": "FAILURE"} and "RETRY_LIMIT" in play.messages["A"]


def test_a_job_without_a_vote_decides_nothing() -> None:
    play = Play("unit", FrozenJob(name="style", voting=False))
    play.approve("A")
    play.merges()
    play.fails("A", "style")
    play.passes("A", "unit")
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"} and "- style http" in play.messages["A"]
    assert "FAILURE in 1m 02s (non-voting)" in play.messages["A"]


def test_fail_fast_stops_the_rest() -> None:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"), FrozenJob(name="slow")), fail_fast=True))
    play.approve("A")
    play.merges()
    play.fails("A")
    assert play.builds == [] and play.ended == {"A": "FAILURE"} and "slow : CANCELED" in play.messages["A"]


def test_a_semaphore_lets_as_many_run_as_it_has_places() -> None:
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"),))
    play = Play(layout=PlayLayout((job,), limits={"one": 2}))
    play.held = {"one": 1}
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("A", "unit")], "another pipeline holds the other place"
    play.passes("A")
    assert play.builds == [("B", "unit")]


def test_the_turn_that_cancels_a_build_gives_its_place_to_nobody() -> None:
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"),))
    play = Play(layout=PlayLayout((job,), limits={"one": 1}))
    play.approve("A", "B")
    play.merges("B")
    play.merges("A")
    assert play.builds == [("B", "unit")]
    play.abandon("B")
    assert play.builds == [], "its executor still stops it"
    play.held = {"one": 1}
    play.act()
    assert play.builds == []
    play.held = {}
    play.act()
    assert play.builds == [("A", "unit")]


@pytest.mark.parametrize(("tickets", "begun"), [([], []), ([1], ["A"]), ([2], []), ([3], [])])
def test_a_place_is_left_for_who_began_to_wait_earlier(tickets: list[int], begun: list[str]) -> None:
    """Set `tickets` of this pipeline's project, while another pipeline waits with the second."""
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"), JobSemaphore("two")))
    play = Play(layout=PlayLayout((job,), limits={"one": 1, "two": 2}))
    own = [Waiter(ticket, "t", "gate", "p") for ticket in tickets]
    play.waiters = {"one": (Waiter(2, "t", "check", "p"), *own), "two": tuple(own)}
    play.approve("A")
    play.merges()
    assert [topic for topic, _ in play.builds] == begun


def test_the_executor_acquires_a_semaphore_with_resources_first() -> None:
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"), JobSemaphore("two", resources_first=True)))
    play = Play(layout=PlayLayout((job,), limits={"one": 2, "two": 1}))
    play.held = {"two": 1}
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("A", "unit"), ("B", "unit")], "its nodes come first"
    assert play.running_spec("A", "unit").semaphores == {"two": 1}
    assert [name for name, _, _ in holders(play.state)] == ["one", "one"]


def test_projects_of_one_pipeline_take_places_in_turn() -> None:
    job = FrozenJob(name="unit", semaphores=(JobSemaphore("one"),))
    play = Play(layout=PlayLayout((job,), limits={"one": 1}))
    play.waiters = {"one": (Waiter(1, "t", "gate", "q"), Waiter(2, "t", "gate", "p"))}
    play.approve("A", "B")
    play.propose(play.change("C", project="q"))
    play.approve("C")
    play.merges()
    assert play.builds == [("C", "unit")], "the others of its project wait longer, but their project came later"
    waits = {item.change.topic: item.buildset.waits for _, item in play.state.items() if item.buildset}
    assert waits == {"A": ("one",), "B": ("one",), "C": ()}


def test_a_built_in_job_needs_nobody() -> None:
    play = Play(FrozenJob(name="noop", noop=True))
    play.approve("A")
    play.merges()
    assert play.landing_names == ["A"]


def test_broken_configuration_is_reported_with_its_line_and_harms_nobody_behind() -> None:
    play = Play()
    play.texts = {"p": "broken"}
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A", "B")
    play.merges("A")
    assert play.ended == {"A": "CONFIG_ERROR"} and "zuul.yaml:3: error: it is broken" in play.messages["A"]
    assert play.merging_names == ["B"]


def test_proposed_configuration_counts_for_its_change_and_those_behind() -> None:
    play = Play()
    play.texts = {"p": "brandnew"}
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("A", "brandnew"), ("B", "brandnew")]


def test_configuration_of_another_project_ahead_counts_behind_it() -> None:
    play = Play()
    play.texts = {"p": "brandnew"}
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.propose(play.change("B", project="q"))
    play.approve("A", "B")
    play.merges()
    assert play.builds == [("A", "brandnew"), ("B", "brandnew")]


def test_landed_configuration_counts_for_all_projects_before_the_layout_includes_it() -> None:
    play = Play()
    play.texts = {"p": "brandnew"}
    play.propose(play.change("A", files=("zuul.yaml",)))
    play.approve("A")
    play.merges()
    play.passes("A")
    play.lands("A")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    assert play.builds == [("B", "brandnew")]
    play.contents = {"p": {"master": content_of({"zuul.yaml": "brandnew"})}}
    play.passes("B")
    play.lands("B")
    assert all(not queue.unfollowed for queue in play.state.queues), "the layout has followed"


def test_an_answer_about_an_abandoned_base_changes_nothing() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    stale = next(run.spec for run in play.running.values() if run.spec.change.topic == "B")
    play.fails("A")
    before = play.state
    play.act(BuildEnded(stale.buildset, "unit", BuildOutcome(stale.build, "FAILURE")))
    assert play.state == before


def test_settling_twice_is_as_settling_once() -> None:
    play = Play(window=3)
    play.approve(*"ABCDE")
    play.merges()
    play.fails("B")
    before = (play.state, dict(play.running), dict(play.merging))
    play.act()
    assert (play.state, play.running, play.merging) == before


@pytest.mark.long
@pytest.mark.heavy
def test_a_turn_processes_the_window_and_not_the_entire_queue() -> None:
    play = Play(window=3)
    play.approve(*(f"c{n}" for n in range(100)))
    assert len(play.merging) == 3
    play.merges()
    assert play.layout.freezes == 3


def test_a_ref_that_moved_is_an_item_too() -> None:
    play = Play(manager="independent")
    play.pipeline = _post(play)
    change = play.change("x")
    from msgspec.structs import replace

    play.event(EventKind.REF_UPDATED, replace(change, topic="", ref="refs/heads/master", old_commit="1" * 40))
    assert len(play.merging) == 1


def _post(play: Play):  # type: ignore[no-untyped-def]
    from msgspec.structs import replace

    from headgate.config.model import TriggerFilter

    return replace(play.pipeline, triggers=(TriggerFilter("git", ("ref-updated",), refs=("^refs/heads/.*$",)),))


@pytest.mark.long
@pytest.mark.heavy
def test_many_that_fail_together_leave_a_few_in_a_turn() -> None:
    play = Play(window=40)
    head, *topics = [f"{n:02}" for n in range(LEAVES_MAX * 2 + 5)]
    play.approve(head, *topics)
    for topic in topics:
        play.merges()
        play.fails(topic)
    assert play.ended == {}, "they wait for what is ahead of them"
    play.merges()
    play.passes(head)
    play.lands(head)
    left = [len(play.ended)]
    while play.queue:
        play.act()
        left.append(len(play.ended))
    assert left == [LEAVES_MAX, LEAVES_MAX * 2, LEAVES_MAX * 2 + 5]
    assert play.ended == {head: "SUCCESS", **dict.fromkeys(topics, "FAILURE")}


def test_an_item_waits_while_its_configuration_is_judged_and_then_continues() -> None:
    play = Play("unit")
    play.texts, play.waits = {"p": "other"}, True
    play.approve("A")
    play.merges()
    assert play.builds == [] and play.queue == ["A"]
    play.approve("B")
    play.merges()
    assert play.builds == [] and play.queue == ["A", "B"]
    play.waits = False
    play.act()
    assert play.builds == [("A", "other"), ("B", "other")]


def test_an_item_that_waits_for_its_judgement_can_be_withdrawn() -> None:
    play = Play("unit")
    play.texts, play.waits = {"p": "other"}, True
    play.approve("A")
    play.merges()
    play.abandon("A")
    assert play.queue == []


def test_a_change_outside_the_window_is_still_ahead_of_the_change_that_needs_it() -> None:
    play = Play(window=1)
    play.approve("A", "B")
    play.propose(play.change("C", "B"))
    play.approve("C")
    assert play.queue == ["A", "B", "C"] and play.ended == {}
    play.merges()
    play.passes("A")
    play.lands("A")
    assert play.queue == ["B", "C"]
