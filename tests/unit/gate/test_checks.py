"""Test a gate that requires results of other pipelines for a patchset."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.forges.facts import PipelineCheck
from headgate.config.model import FrozenJob
from headgate.gate.rules.requirements import vouching
from headgate.gate.state.change import EventKind
from headgate.gate.state.management import Enqueue
from headgate.testing.plays import Play


def gate_of(check: Any = "success", *, key: str = "require", tests: str = "unit") -> Play:  # of the requirement, JSON
    """Play a gate that requires approval and a result of `check`."""
    play = Play(tests)
    play.pipeline = replace(play.pipeline, **{key: {"git": {"check": check}}})
    return play


def word(play: Play, name: str, result: str = "success", pipeline: str = "check", **other: str) -> None:
    """Record the result of the pipeline, without an event."""
    change_state = play.change_states[play._key(name)]
    check = PipelineCheck(other.get("tenant", "t"), pipeline, other.get("commit", change_state.change.commit), result)
    play.change_states[change_state.change.key] = replace(change_state, checks=(*change_state.checks, check))


def says(play: Play, name: str, result: str) -> None:
    """Record the result in place of the earlier one."""
    change_state = play.change_states[play._key(name)]
    now = vouching(change_state, PipelineCheck("t", "check", change_state.change.commit, result))
    play.change_states[change_state.change.key] = now


def again(play: Play, name: str) -> None:
    """Let the gate examine what `vouched` recorded."""
    play.event(EventKind.APPROVED, play.change_states[play._key(name)].change)


def test_a_change_enters_only_after_check_has_passed_in_whichever_order_it_is_approved() -> None:
    play = gate_of()
    play.approve("A")
    assert play.queue == [] and play.ended == {}
    (report,) = play.reports
    assert "the pipeline check has not reported success on this patchset" in report.work.note
    word(play, "A", "failure")
    again(play, "A")
    assert play.queue == []
    says(play, "A", "success")
    again(play, "A")
    assert play.queue == ["A"]
    play.merges()
    play.passes("A")
    assert play.landing_names == ["A"]


@pytest.mark.parametrize("other", [{"tenant": "another"}, {"commit": "2" * 40}, {"pipeline": "quick"}])
def test_results_elsewhere_or_of_another_patchset_do_not_count(other: dict[str, str]) -> None:
    play = gate_of()
    play.propose(play.change("A"))
    word(play, "A", **other)
    play.approve("A")
    assert play.queue == []


def test_a_new_patchset_must_be_checked_again() -> None:
    play = gate_of()
    play.propose(play.change("A"))
    word(play, "A")
    before = play.change_states[play._key("A")].checks
    play.propose(play.change("A", commit="3" * 40))
    play.change_states[play._key("A")] = replace(play.change_states[play._key("A")], checks=before)
    play.approve("A")
    assert play.queue == []


def test_each_named_pipeline_must_have_reported_success() -> None:
    play = gate_of({"quick": "success", "slow": "failure"})
    play.propose(play.change("A"))
    word(play, "A", pipeline="quick")
    play.approve("A")
    assert play.queue == []
    word(play, "A", "failure", pipeline="slow")
    again(play, "A")
    assert play.queue == ["A"]


def test_a_rejected_change_is_excluded_only_after_the_report() -> None:
    play = gate_of("failure", key="reject")
    play.approve("A")
    assert play.queue == ["A"]
    play.propose(play.change("B"))
    word(play, "B", "failure")
    play.approve("B")
    assert play.queue == ["A"]


def test_a_change_in_the_queue_stays_whatever_is_reported_later() -> None:
    """As in Zuul, Headgate's own votes are checked once; otherwise a gate would empty itself."""
    play = gate_of()
    play.propose(play.change("A"))
    word(play, "A")
    play.approve("A")
    says(play, "A", "failure")
    play.act()
    assert play.queue == ["A"]


def test_dependencies_of_a_change_must_meet_the_requirements_too() -> None:
    play = gate_of()
    play.propose(play.change("A"))
    play.change_states[play._key("A")] = replace(play.change_states[play._key("A")], approved="A" * 40)
    play.propose(play.change("B", "A"))
    word(play, "B")
    play.approve("B")
    assert play.queue == [], "approved is not checked: B brings no A with it that nobody tested"
    assert "has not reported success" in play.messages["B"]
    word(play, "A")
    again(play, "B")
    assert play.queue == ["A", "B"]


def test_an_unchecked_change_can_be_enqueued_by_hand_with_permission() -> None:
    play = gate_of()
    play.propose(play.change("A"))
    play.act(Enqueue(play.change_states[play._key("A")].change, "by hand"))
    assert play.queue == []
    play.act(Enqueue(play.change_states[play._key("A")].change, "by hand", unapproved=True))
    assert play.queue == ["A"]


# --- the pipeline that is asked


def check_of(asking: Any = "success", *, approved: bool = True) -> Play:
    """Add a pipeline `check` beside a gate that requires its result."""
    play = Play(manager="independent")
    gate = replace(Play().pipeline, require={"git": {"check": asking}})
    play.pipeline = replace(play.pipeline, name="check")
    play.pipelines = {"gate": gate, "check": play.pipeline}
    play.propose(play.change("A"))
    if approved:
        play.change_states[play._key("A")] = replace(play.change_states[play._key("A")], approved="A" * 40)
    play.merges()
    return play


def sent_events(play: Play) -> list[tuple[str, EventKind]]:
    return [(name, event.kind) for name, event in play.sent if event.kind is not EventKind.PARENT_ENQUEUED]


@pytest.mark.parametrize(("ends", "result"), [("SUCCESS", "success"), ("FAILURE", "failure")])
def test_its_result_is_stored_and_dependent_pipelines_check_again(ends: str, result: str) -> None:
    play = check_of()
    play.ends("A", "unit", ends)
    assert play.change_states[play._key("A")].checks == (PipelineCheck("t", "check", "A" * 40, result),)
    assert sent_events(play) == [("gate", EventKind.APPROVED)]


def test_no_report_claims_an_approval_that_was_not_given() -> None:
    play = check_of(approved=False)
    play.passes("A")
    assert play.change_states[play._key("A")].checks and sent_events(play) == []


def test_results_that_nobody_requires_are_not_stored() -> None:
    play = check_of({"other": "success"})
    play.passes("A")
    assert play.change_states[play._key("A")].checks == () and sent_events(play) == []


def test_unrelated_reports_leave_the_stored_result() -> None:
    play = Play(FrozenJob(name="unit"), manager="independent")
    play.pipeline = replace(play.pipeline, name="check")
    play.pipelines = {"gate": replace(Play().pipeline, require={"git": {"check": "success"}})}
    play.propose(play.change("A"))
    word(play, "A")
    play.abandon("A")
    assert play.ended == {"A": "DEQUEUED"}
    assert [one.result for one in play.change_states[play._key("A")].checks] == ["success"]


def test_a_disabled_pipeline_says_nothing() -> None:
    play = check_of()
    play.pipeline = replace(play.pipeline, disable_after=1)
    play.fails("A")
    play.propose(play.change("B"))
    play.merges("B")
    play.passes("B")
    assert play.change_states[play._key("B")].checks == ()


def test_landed_changes_get_no_further_report() -> None:
    """Its landing is recorded in the same place, in the same commit."""
    play = Play()
    play.pipelines = {
        "release": replace(play.pipeline, name="release", require={"git": {"check": {"gate": "success"}}})
    }
    play.approve("A", "B")
    play.merges()
    play.passes("A")
    play.lands("A")
    play.fails("B")
    assert play.ended == {"A": "SUCCESS", "B": "FAILURE"}
    assert [play.change_states[play._key(name)].checks for name in ("A", "B")] == [
        (),
        (PipelineCheck("t", "gate", "B" * 40, "failure"),),
    ]
