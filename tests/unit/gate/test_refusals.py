"""Test that the person who tries to enqueue a change learns why it does not enter: once, and again only when the
reason changes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, ProgramStatus, Rule, Vote
from headgate.config.model import TriggerFilter
from headgate.gate.items.admission import AT_ONCE_MAX, LOOKED_MAX, PAUSE_MS, REFUSALS_MAX, SLICE_MS, weigh
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.testing.plays import Play

ME = "headgate[bot]"
ANN, STRANGER = ForgeAccount("ann", permission="write"), ForgeAccount("eve", permission="read")
APPROVED = Vote(ANN, "review", "approved")
LABELED = ForgeEvent("pull_request", "labeled", added=("gate",))
COMMENTED = ForgeEvent("pull_request", "comment", ANN, ("gate it",))


def hub(**reports: Any) -> Play:  # as the pipeline says it
    """Play a gate that requires an approval and a label, rejects the label `wip`, and is triggered by labels and
    requests."""
    options = reports or {"success": {"hub": ({"merge": True},)}, "failure": {"hub": ({"status": "failure"},)}}
    play = Play()
    actions = ["labeled", "comment", "opened", "changed", "status"]
    play.pipeline = replace(
        play.pipeline,
        triggers=(TriggerFilter("hub", ("pull_request",), more={"action": actions}),),
        require={"hub": {"review": [{"type": "approved"}], "label": ["gate"]}},
        reject={"hub": {"label": ["wip"]}},
        require_approved=(),
        drivers={"hub": "github"},
        lands=("hub",),
        reporters={kind: tuple(names) for kind, names in options.items()},
        reports=options,
    )
    return play


def pull(name: str = "A", number: int = 7) -> Change:
    commit = (name * 40)[:40]
    return Change("hub", "hub/lib", "master", name, commit, number=str(number), files=("f",), owner="bob")


def known(play: Play, change: Change, **details: Any) -> None:  # members of Details
    was = play.change_states.get(change.key)
    now = was.details if was is not None and was.details is not None else Details(us=(ME,), labels=(), votes=())
    play.change_states[change.key] = ChangeState(change, details=replace(now, **details))


def deliver(
    play: Play,
    change: Change,
    happening: ForgeEvent = LABELED,
    kind: EventKind = EventKind.STIRRED,
    **details: Any,  # members of Details
) -> None:
    """Deliver an event, after which the forge reports this state of the change."""
    known(play, change, **details)
    play.act(TriggerEvent(kind, change, f"e{change.key}{play._clock}", at_ms=play._clock, happening=happening))


def later(play: Play, ms: int = PAUSE_MS) -> None:
    play._clock += ms
    play.act()


def notes(play: Play, kind: str = "refused") -> list[str]:
    return [report.work.note for report in play.reports if report.kind == kind]


def test_all_missing_requirements_are_described_once() -> None:
    play, change = hub(), pull()
    deliver(play, change, labels=("wip",))
    (note,) = notes(play)
    assert "A,AAAAAAAA" in note or "7," in note
    assert "was not enqueued in gate" in note
    assert "review: {type: approved}" in note and "label: gate" in note and "label: wip" in note
    deliver(play, change, COMMENTED)
    deliver(play, change, ForgeEvent("pull_request_review", "submitted", ANN, state="commented"))
    later(play)
    assert len(notes(play)) == 1 and play.queue == [] and play.ended == {}


def test_a_refusal_names_only_the_missing_part_of_a_requirement() -> None:
    play, change = hub(), pull()
    play.pipeline = replace(play.pipeline, require={"hub": {"label": ["gate", "docs"]}})
    deliver(play, change, labels=("docs",))
    (note,) = notes(play)
    assert note.partition("\n\nhttp")[0].endswith("does not meet the requirement label: gate")


def test_a_different_missing_requirement_is_reported_again_later() -> None:
    play, change = hub(), pull()
    deliver(play, change)
    known(play, change, votes=(APPROVED,))
    play.act()
    assert len(notes(play)) == 1, "at most one in a while"
    known(play, change, votes=())
    play.act()
    later(play)
    assert len(notes(play)) == 1, "it is as it was when it was said"
    known(play, change, votes=(APPROVED,))
    play.act()
    later(play)
    first, second = notes(play)
    assert "review" in first and "review" not in second and "label: gate" in second


def test_an_author_who_moves_a_label_to_and_fro_makes_one_word_in_a_while() -> None:
    play, change = hub(), pull()
    for number in range(40):
        deliver(play, change, COMMENTED, labels=("wip",) if number % 2 else ())
    assert len(notes(play)) == 1
    later(play)
    assert len(notes(play)) == 2 and "wip" in notes(play)[-1]


def test_an_enqueued_change_is_no_longer_reported_as_refused() -> None:
    play, change = hub(), pull()
    deliver(play, change)
    deliver(play, change, votes=(APPROVED,), labels=("gate",))
    assert play.queue == ["A"] and len(notes(play)) == 1
    (note,) = notes(play, "settled")
    assert note == f"{change.id} is in gate now."
    later(play)
    assert len(notes(play, "settled")) == 1 and play.state.refusals == ()


@pytest.mark.parametrize("kind", ["enqueue", "start"])
def test_a_refusal_that_another_comment_mentions_is_not_repeated(kind: str) -> None:
    play, change = hub(failure={"hub": ({},)}, **{kind: {"hub": ({},)}}), pull()
    deliver(play, change)
    deliver(play, change, votes=(APPROVED,), labels=("gate",))
    assert play.queue == ["A"] and notes(play, "settled") == [] and play.state.refusals == ()


def test_a_change_that_could_be_enqueued_but_is_not_gets_a_report() -> None:
    play, change = hub(), pull()
    deliver(play, change)
    known(play, change, votes=(APPROVED,), labels=("gate",))
    play.act()
    assert notes(play, "settled") == [], "the event that brings it in may be on its way"
    later(play)
    (note,) = notes(play, "settled")
    assert "nothing keeps" in note.lower() and play.queue == []
    deliver(play, change, COMMENTED)
    assert play.queue == ["A"] and notes(play, "settled")[-1] == f"{change.id} is in gate now."


PUSHED = ForgeEvent("pull_request", "changed", ANN)
CHECKED = ForgeEvent("pull_request", "status", ForgeAccount("ci"), statuses=(ProgramStatus("ci", "build", "success"),))
OURS = ForgeEvent("pull_request", "comment", ForgeAccount(ME), ("gate it",))
SET_BY_US = ForgeEvent("pull_request", "labeled", added=("tested",))


@pytest.mark.parametrize(
    ("happening", "kind"),
    [
        (PUSHED, EventKind.PROPOSED),
        (CHECKED, EventKind.STIRRED),
        (OURS, EventKind.STIRRED),
        (SET_BY_US, EventKind.STIRRED),
        (ForgeEvent("pull_request", "comment", STRANGER, ("gate it",)), EventKind.STIRRED),
        (ForgeEvent("pull_request", "comment", ForgeAccount("eve", permission="none"), ("x",)), EventKind.STIRRED),
    ],
)
def test_no_refusal_is_reported_unless_somebody_tried_to_enqueue(happening: ForgeEvent, kind: EventKind) -> None:
    """A push, statuses of programs, Headgate's own actions, and people without write access."""
    play = hub()
    tested = {"success": {"hub": ({"label": "tested"},)}}
    play.pipelines = {"check": replace(play.pipeline, name="check", reports=tested)}
    deliver(play, pull(), happening, kind)
    assert play.reports == [] and play.state.refusals == ()


def test_adding_the_label_that_a_failure_removes_is_answered() -> None:
    play = hub(failure={"hub": ({"unlabel": "gate"},)}, success={"hub": ({"merge": True},)})
    deliver(play, pull())
    deliver(play, pull("B", 8), ForgeEvent("pull_request_review", "submitted", ANN, state="approved"))
    assert len(notes(play)) == 1, "of what the pipeline waits for"
    deliver(play, pull("C", 9), ForgeEvent("pull_request", "labeled", removed=("gate",)))
    assert len(notes(play)) == 1, "that was Headgate"


@pytest.mark.parametrize("who", [ANN, ForgeAccount("bob", permission="read"), ForgeAccount("dan"), None])
def test_writers_proposers_and_people_of_unknown_permission_are_answered(who: ForgeAccount | None) -> None:
    play = hub()
    deliver(play, pull(), ForgeEvent("pull_request", "comment", who, ("gate it",)))
    assert len(notes(play)) == 1


@pytest.mark.parametrize(
    "reports",
    [
        {"success": {"hub": ({"merge": True},)}, "failure": {"hub": ({"status": "failure", "comment": False},)}},
        {"success": {"board": ({},)}, "failure": {"board": ({},)}},
    ],
)
def test_with_comments_disabled_nothing_is_reported(reports: Any) -> None:
    play = hub(**reports)
    deliver(play, pull())
    assert play.reports == []


@pytest.mark.heavy
def test_of_very_many_refusals_some_are_reported_later_and_none_is_lost() -> None:
    play = hub()
    most = 2 * AT_ONCE_MAX + 5
    assert most <= REFUSALS_MAX
    for number in range(most):
        play._clock = 1_000_000
        deliver(play, pull("A", number))
    assert len(notes(play)) == AT_ONCE_MAX
    later(play)
    assert len(notes(play)) == 2 * AT_ONCE_MAX
    later(play)
    later(play)
    assert len(notes(play)) == most == len({report.work.change.key for report in play.reports})


def test_refusals_of_closed_and_landed_changes_are_forgotten_without_a_report() -> None:
    play, change = hub(), pull()
    deliver(play, change)
    play.change_states[change.key] = replace(play.change_states[change.key], open=False)
    later(play)
    assert len(play.reports) == 1 and play.state.refusals == ()


def test_a_new_patchset_gets_no_report_until_the_next_attempt() -> None:
    play, old, new = hub(), pull("A"), pull("B")
    deliver(play, old)
    deliver(play, new, PUSHED, EventKind.PROPOSED)
    later(play)
    assert len(notes(play)) == 1
    deliver(play, new, COMMENTED)
    assert [note.split(" was ")[0] for note in notes(play)] == [old.id, new.id]


def test_an_additional_rule_of_the_forge_is_reported_with_the_rest() -> None:
    play, change = hub(), pull()
    deliver(play, change, rules=(Rule("needs an approval of a code owner", met=False),))
    (note,) = notes(play)
    assert "needs an approval of a code owner" in note and "label: gate" in note


def test_an_unmet_dependency_is_reported_once_however_often_somebody_tries() -> None:
    play, first = hub(), pull("A", 1)
    second = replace(pull("B", 2), needs=(first.key,))
    known(play, first)
    for _ in range(3):
        deliver(play, second, COMMENTED, votes=(APPROVED,), labels=("gate",))
    (note,) = notes(play)
    assert first.key in note and "will be enqueued once it is" in note
    known(play, first, votes=(APPROVED,), labels=("gate",))
    deliver(play, first, COMMENTED)
    assert play.queue == ["A", "B"] and notes(play, "settled") == [f"{second.id} is in gate now."]


def test_a_turn_examines_only_some_of_many_refused_changes_that_need_others(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    names = [f"c{n:03}" for n in range(3 * LOOKED_MAX)]
    for n, name in enumerate(names):
        needs = tuple(f"git.example/p/master/{other}" for other in names[max(0, n - 100) : n]) or ("nobody",)
        change = Change("git", "p", "master", name, f"{n:040x}", needs=needs, unresolved=("lost",), files=("f",))
        play.change_states[change.key] = ChangeState(change, approved=change.commit)
        play.event(EventKind.APPROVED, change)
    later(play, 20 * PAUSE_MS)
    later(play, 20 * PAUSE_MS)
    assert len(play.state.refusals) == len(names) and not any(one.due_ms for one in play.state.refusals)

    weighed, real = list[str](), weigh

    def counted(state: Any, change: Change, world: Any) -> Any:
        weighed.append(change.topic)
        return real(state, change, world)

    monkeypatch.setattr("headgate.gate.items.admission.weigh", counted)
    for _ in range(3):
        before = len(weighed)
        later(play, SLICE_MS)
        assert 0 < len(set(weighed[before:])) <= LOOKED_MAX
    assert {*weighed} == {*names}, "none is forgotten"
