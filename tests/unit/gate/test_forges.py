"""Test changes of a forge at the gate: requirements of the pipeline and of the forge, and Headgate's own statuses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, ProgramStatus, Rule, Vote
from headgate.config.model import TriggerFilter
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.testing.plays import Play

ME = "headgate[bot]"
APPROVED = Vote(ForgeAccount("ann", "ann@example.org", "write"), "review", "approved")
GATE = {"review": [{"type": "approved"}]}


def hub(require: Any = None, **success: Any) -> Play:  # as the pipeline says it
    """Play a gate for pull requests with the label `gate`."""
    play = Play()
    label = TriggerFilter("hub", ("pull_request",), more={"action": ["labeled"], "label": ["gate"]})
    play.pipeline = replace(
        play.pipeline,
        triggers=(label, TriggerFilter("hub", ("pull_request_review",), more={"require": {"label": ["gate"]}})),
        require={"hub": GATE if require is None else require},
        require_approved=(),
        drivers={"hub": "github"},
        lands=("hub",),
        reporters={"failure": ("hub",), "success": ("hub",)},
        reports={"success": {"hub": ({"merge": True, **success},)}},
    )
    return play


def pull(name: str, number: int = 7) -> Change:
    commit = (name * 40)[:40]
    return Change(
        "hub", "hub/lib", "master", name, commit, f"refs/pull/{number}/head", number=str(number), files=("f",)
    )


def deliver(play: Play, change: Change, happening: ForgeEvent, **details: Any) -> None:  # members of Details
    """Deliver an event, after which the forge reports this state of the change."""
    known = play.change_states.get(change.key)
    now = replace(known.details if known and known.details else Details(us=(ME,)), **details)
    play.change_states[change.key] = ChangeState(change, details=now)
    play.act(TriggerEvent(EventKind.STIRRED, change, f"e{play._clock}", at_ms=play._clock, happening=happening))


def known(play: Play, change: Change, **details: Any) -> None:  # members of Details
    """Let the forge report this state, without an event."""
    change_state = play.change_states[change.key]
    play.change_states[change.key] = replace(
        change_state, details=replace(change_state.details or Details(), **details)
    )
    play.act()


LABELED = ForgeEvent("pull_request", "labeled", added=("gate",))


def test_a_change_that_meets_the_requirements_is_enqueued_and_landed() -> None:
    play, change = hub(), pull("A")
    deliver(play, change, ForgeEvent("pull_request", "labeled", added=("docs",)), votes=(APPROVED,), labels=("docs",))
    assert play.queue == []
    deliver(play, change, LABELED, labels=("docs", "gate"))
    assert play.queue == ["A"]
    play.merges()
    play.passes("A")
    assert play.landing_names == ["A"]


def test_an_approval_that_is_dismissed_takes_the_change_out() -> None:
    play, change = hub(), pull("A")
    deliver(play, change, LABELED, votes=(APPROVED,))
    play.merges()
    known(play, change, votes=(replace(APPROVED, value="dismissed"),))
    assert play.ended == {"A": "FAILURE"} and "does not meet the requirement review" in play.messages["A"]


def test_a_trigger_may_ask_something_of_the_change() -> None:
    play, change = hub(), pull("A")
    review = ForgeEvent("pull_request_review", "submitted", state="approved")
    deliver(play, change, review, votes=(APPROVED,), labels=())
    assert play.queue == []
    deliver(play, change, review, labels=("gate",))
    assert play.queue == ["A"]


def test_a_gate_that_requires_its_own_check_and_resets_it_does_not_empty_itself() -> None:
    own = ProgramStatus(ME, "t/gate", "success")
    play, change = hub({"status": [r"headgate\[bot\]:t/gate:success"]}), pull("A")
    deliver(play, change, LABELED, statuses=(own,))
    assert play.queue == ["A"]
    known(play, change, statuses=(replace(own, state="pending"),))
    play.merges()
    assert play.queue == ["A"]


def test_a_label_that_the_gate_removes_is_not_required_again() -> None:
    play, change = hub({"label": ["gate"]}, unlabel=["gate"]), pull("A")
    deliver(play, change, LABELED, labels=("gate",))
    known(play, change, labels=())
    assert play.queue == ["A"]


def ruled(met: bool | None, *missing: str, bypassed: bool = False) -> tuple[Rule, ...]:
    return (Rule("needs an approval of a code owner", met, bypassed, missing),)


def test_an_unmet_rule_of_the_forge_is_reported_once_and_waited_for() -> None:
    play, change = hub({}), pull("A")
    deliver(play, change, LABELED, rules=ruled(False))
    deliver(play, change, LABELED)
    assert play.queue == [] and play.ended == {}
    assert [report.work.change.key for report in play.reports] == ["hub/lib#7"], "one report, not one for each event"
    assert "hub/lib#7 needs an approval of a code owner" in play.reports[0].work.note
    known(play, change, rules=ruled(True))
    assert play.queue == ["A"], "no event is needed once it is met"


@pytest.mark.parametrize(
    "rules",
    [ruled(True), ruled(None), ruled(False, bypassed=True), ruled(False, "t/gate"), ruled(False, "verified", "t/gate")],
)
def test_rules_that_do_not_stand_in_its_way(rules: tuple[Rule, ...]) -> None:
    """Requirements that are met, undecided, bypassed by our account, or set only by the pipeline itself."""
    play, change = hub({}, label=["verified"]), pull("A")
    deliver(play, change, LABELED, rules=rules)
    assert play.queue == ["A"] and play.reports == []


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"rules": ruled(False, "t/gate", "lint")}, "needs an approval of a code owner"),
        ({"draft": True}, "is a draft"),
        ({"mergeable": False}, "conflicts with master"),
    ],
)
def test_a_change_that_the_forge_would_not_merge_is_not_tested(details: dict[str, Any], why: str) -> None:
    play, change = hub({}), pull("A")
    deliver(play, change, LABELED, **details)
    assert play.queue == [] and why in play.reports[0].work.note


def test_unknown_facts_about_a_change_do_not_keep_it_out() -> None:
    play, change = hub({}), pull("A")
    deliver(play, change, LABELED, mergeable=None, draft=None, rules=None)
    assert play.queue == ["A"]


def test_a_pipeline_that_does_not_land_ignores_the_rules_of_the_forge() -> None:
    play, change = hub({}), pull("A")
    play.pipeline = replace(play.pipeline, manager="independent", lands=())
    deliver(play, change, LABELED, rules=ruled(False), draft=True)
    assert play.queue == ["A"]


def test_a_retargeted_change_is_the_same_one() -> None:
    play, change = hub({}), pull("A")
    deliver(play, change, LABELED)
    play.merges()
    moved = replace(change, branch="stable", commit="d" * 40)
    play.change_states[change.key] = ChangeState(moved, details=Details())
    play.event(EventKind.PROPOSED, moved)
    assert play.queue == [] and play.ended == {"A": "DEQUEUED"}, "what was tested is no patchset of it any more"


def test_a_change_that_is_withdrawn_and_proposed_again_unchanged_stays() -> None:
    """A withdrawal in between is read only then."""
    play, change = hub(), pull("a")
    deliver(play, change, LABELED, votes=(APPROVED,), labels=("gate",))
    assert [item.change.key for _, item in play.state.items()] == [change.key]
    play.act(TriggerEvent(EventKind.ABANDONED, change, "gone", happening=ForgeEvent("pull_request", "closed")))
    assert [item.change.key for _, item in play.state.items()] == [change.key]
    play.change_states[change.key] = replace(play.change_states[change.key], open=False)
    play.act(TriggerEvent(EventKind.ABANDONED, change, "gone for good", happening=ForgeEvent("pull_request", "closed")))
    assert not [*play.state.items()]


@pytest.mark.parametrize("kind", [EventKind.STIRRED, EventKind.PROPOSED, EventKind.ABANDONED])
def test_late_results_of_an_older_patchset_leave_the_newer_one(kind: EventKind) -> None:
    """Events of several changes are read in turn: those of this change may wait until its next head is in the queue."""
    play, old = hub(), pull("a")
    new = replace(old, commit="d" * 40)
    deliver(play, new, LABELED, votes=(APPROVED,), labels=("gate",))
    play.act(TriggerEvent(kind, old, "late", happening=LABELED))
    assert [item.change.commit for _, item in play.state.items()] == [new.commit] and play.ended == {}


@pytest.mark.parametrize("needed", ["hub", "review"])
def test_a_change_is_tested_again_when_the_change_that_it_needs_at_another_forge_is_proposed(needed: str) -> None:
    play, words = Play(), {"hub": ForgeEvent("pull_request", "opened"), "review": ForgeEvent("patchset-created")}
    play.pipeline = replace(
        play.pipeline,
        manager="independent",
        triggers=(
            TriggerFilter("hub", ("pull_request",), more={"action": ["opened"]}),
            TriggerFilter("review", ("patchset-created",)),
        ),
        require_approved=(),
        drivers={"hub": "github", "review": "gerrit"},
    )

    def proposed(change: Change) -> None:
        play.change_states[change.key] = ChangeState(change)
        happening = words[change.connection]
        play.act(TriggerEvent(EventKind.PROPOSED, change, f"e{play._clock}", fresh=True, happening=happening))

    first = replace(pull("A", 1), connection=needed, project=f"{needed}/api")
    other = replace(pull("B", 2), connection=({*words} - {needed}).pop(), needs=(first.key,))
    proposed(other)
    assert play.queue == ["B"]
    play.merges()
    play.passes("B")
    assert play.queue == []
    proposed(first)
    assert sorted(item.change.topic for _, item in play.state.items() if item.live) == ["A", "B"]
