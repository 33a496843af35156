"""Test a closed gate: work continues, nothing lands, and people see why."""

from __future__ import annotations

from headgate.config.model import FrozenJob
from headgate.gate.state.world import Closing, closing_of
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play


def passed(play: Play, *names: str) -> None:
    play.approve(*names)
    play.merges()
    for name in names:
        play.passes(name)


def notes(play: Play, name: str) -> list[str]:
    """Return the reports that say that it waits."""
    return [r.work.note for r in play.reports if r.work.change.topic == name and "once the closing ends" in r.work.note]


def test_a_change_that_passes_in_a_closed_gate_waits_and_lands_when_it_is_opened() -> None:
    play = Play()
    play.close()
    passed(play, "A", "B")
    assert play.queue == ["A", "B"] and play.landing_names == [] and play.ended == {}
    play.open()
    assert play.landing_names == ["A"]
    play.lands("A")
    play.lands("B")
    assert play.ended == {"A": "SUCCESS", "B": "SUCCESS"}


def test_a_closed_gate_continues_to_test_and_failed_changes_leave() -> None:
    play = Play()
    play.close()
    play.approve("A", "B")
    play.merges()
    play.fails("A")
    play.merges()
    play.passes("B")
    assert play.ended == {"A": "FAILURE"} and play.queue == ["B"] and play.beneath("B") == []


def test_everybody_who_waits_gets_the_reason_once() -> None:
    play = Play()
    play.close(reason="the release is cut")
    passed(play, "A", "B")
    play.act()
    for name in ("A", "B"):
        (note,) = notes(play, name)
        assert note.startswith("All jobs passed. The change lands once the closing ends: ")
        assert (
            "the pipeline gate was closed by ada: the release is cut" in note and "- unit http://h/t/t/build/" in note
        )
    play.open()
    play.lands("A")
    play.close(reason="once more")
    assert ["once more" in note for note in notes(play, "B")] == [False], "it is being landed, and was asked for before"
    play.lands("B", shut=True)
    assert ["once more" in note for note in notes(play, "B")] == [False, True]


def test_a_failing_change_is_not_reported_as_waiting() -> None:
    play = Play()
    play.close()
    play.approve("A")
    play.merges()
    play.fails("A")
    assert notes(play, "A") == []


def test_a_push_refused_because_the_gate_is_closed_is_made_later() -> None:
    play = Play()
    passed(play, "A")
    assert play.landing_names == ["A"]
    play.close()
    play.lands("A", shut=True)
    assert play.queue == ["A"] and play.landing_names == [] and play.ended == {}
    play.open()
    assert play.landing_names == ["A"]
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}


def test_a_push_that_was_made_before_counts() -> None:
    play = Play()
    passed(play, "A")
    play.close()
    play.lands("A")
    assert play.ended == {"A": "SUCCESS"}


def test_one_queue_is_closed_and_the_others_land() -> None:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"),), queues={"q": "other"}))
    play.close("other")
    play.propose(play.change("B", project="q"))
    passed(play, "A")
    play.approve("B")
    play.merges()
    play.passes("B")
    assert play.landing_names == ["A"] and play.queue == ["A", "B"]
    play.open()
    assert sorted(play.landing_names) == ["A", "B"]


def test_a_change_whose_approval_is_withdrawn_meanwhile_does_not_land_when_the_gate_is_opened() -> None:
    play = Play()
    play.close()
    passed(play, "A")
    play.unapprove("A")
    assert play.queue == [] and "is not approved" in play.messages["A"]
    play.open()
    assert play.landing_names == []


def test_a_newer_patchset_takes_the_place_of_one_that_waits() -> None:
    play = Play()
    play.close()
    passed(play, "A")
    play.propose(play.change("A", commit="2" * 40))
    assert play.queue == []
    play.approve("A")
    play.merges()
    play.passes("A")
    play.open()
    assert [action.work.change.commit for action in play.landing.values()] == ["2" * 40]


def test_a_closed_pipeline_outranks_one_of_its_queues() -> None:
    one, entire = Closing("gate", "shared", "one"), Closing("gate", "", "all")
    assert closing_of((one, entire), "gate", "shared") is entire
    assert closing_of((one,), "gate", "other") is None and closing_of((one,), "check", "shared") is None
    assert closing_of((Closing(""),), "check", "any") == Closing(""), "what cannot be read closes everything"
