"""Test a removed pipeline: all its items leave, and their authors are informed."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenJob
from headgate.gate.items.renewal import as_it_was, remains
from headgate.gate.state.actions import Cancel
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

WHY = "the pipeline gate was removed from the configuration of tenant t"


def gone(play: Play) -> None:
    """Remove the pipeline from the next layout."""
    play.removed = WHY
    play.layout = replaced(play.layout, absent=frozenset("pq"))
    play.act()


def reported_topics(play: Play) -> list[str]:
    return [report.work.change.topic for report in play.reports if WHY[1:] in report.work.note]


def test_running_builds_are_cancelled_and_all_changes_get_the_reason() -> None:
    play = Play(window=1)
    play.approve("A", "B", "C")
    play.merges()
    gone(play)
    assert play.builds == [] and play.merging == {} and play.queue == []
    assert play.ended == {"A": "DEQUEUED", "B": "DEQUEUED", "C": "DEQUEUED"}
    assert reported_topics(play) == ["A", "B", "C"]
    assert "Build canceled." in play.reports[-1].work.note
    assert [action.build for action in play.actions if isinstance(action, Cancel)] == [True]


def test_also_in_check__where_nothing_lands() -> None:
    play = Play(manager="independent")
    for name in "AB":
        play.propose(play.change(name))
    play.merges("A")
    gone(play)
    assert (play.builds, play.merging, play.state.queues) == ([], {}, ())
    assert reported_topics(play) == ["A", "B"]


@pytest.mark.parametrize("kinds", [(), ("start",)])
def test_connections_without_dequeue_reports_get_none(kinds: tuple[str, ...]) -> None:
    play = Play()
    play.pipeline = replace(play.pipeline, reporters=dict.fromkeys(kinds, ("git",)))
    play.approve("A")
    gone(play)
    assert play.reports == [] and WHY[1:] in play.messages["A"]


def test_a_removed_pipeline_waits_for_the_change_that_is_being_landed() -> None:
    play = Play()
    play.approve("A", "B")
    play.merges()
    play.passes("A")
    gone(play)
    assert play.queue == ["A"] and play.landing_names == ["A"] and play.ended == {"B": "DEQUEUED"}
    play.lands("A")
    assert play.queue == [] and play.ended["A"] == "SUCCESS"


@pytest.mark.parametrize("answer", [{"moved": True}, {"shut": True}, {"error": "the server refuses it"}])
def test_a_change_that_then_fails_to_land_leaves_a_removed_pipeline_like_the_others(answer: dict[str, object]) -> None:
    play = Play()
    play.approve("A")
    play.merges()
    play.passes("A")
    gone(play)
    play.lands("A", **answer)  # type: ignore[arg-type]  # as of the three cases
    assert (
        play.queue == [] and play.ended == {"A": "DEQUEUED"} and play.landing == {} and reported_topics(play) == ["A"]
    )


def circle() -> Play:
    play = Play(layout=PlayLayout((FrozenJob(name="unit"),), circles=True))
    a, b = play.change("A"), play.change("B", project="q")
    play.propose(replace(a, needs=(b.key,)))
    play.propose(replace(b, needs=(a.key,)))
    play.approve("A", "B")
    play.merges()
    play.passes("A")
    play.passes("B")
    return play


def test_where_a_part_has_landed_the_rest_still_lands() -> None:
    play = circle()
    gone(play)
    play.lands("B")
    assert play.landing_names == ["A"]
    play.lands("A")
    assert play.queue == [] and play.ended == {"A": "SUCCESS", "B": "SUCCESS"}


def test_if_the_rest_cannot_land_an_alarm_is_reported() -> None:
    play = circle()
    gone(play)
    play.lands("B")
    play.lands("A", error="the server refuses it")
    assert play.queue == [] and set(play.ended.values()) == {"FAILURE"}
    assert "ALARM" in play.messages["A"] and "p/master/A has not landed" in play.messages["A"]


def test_a_removed_pipeline_with_many_items_is_emptied_over_several_turns() -> None:
    play = Play()
    play.approve(*(f"{n:02d}" for n in range(25)))
    gone(play)
    assert 0 < len(play.queue) < 25
    for _ in range(3):
        play.act()
    assert play.queue == [] and len(reported_topics(play)) == 25


def test_without_a_stored_configuration_nobody_gets_a_report() -> None:
    """A record that an older version left."""
    play = Play()
    play.approve("A")
    play.state = replace(play.state, remains=None)
    gone(play)
    assert play.queue == [] and play.ended == {"A": "DEQUEUED"} and play.reports == []


def test_a_removed_pipeline_takes_no_changes_and_has_the_same_requirements() -> None:
    play = Play()
    again = as_it_was("gate", remains(play.pipeline))
    assert again.triggers == () and again.require_approved == ("git",) and again.lands == ("git",)
    assert again.reporters == {"dequeue": ("git",), "failure": ("git",)}
