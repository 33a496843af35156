"""Test pipelines with triggers of the driver `zuul`, which enqueue changes after events of other changes."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import Pipeline, TriggerFilter
from headgate.gate.state.change import EventKind, TriggerEvent
from headgate.testing.plays import Play


def listening(name: str, event: str, **more: object) -> dict[str, Pipeline]:
    filters = (TriggerFilter("zuul", (event,), more=dict(more)),)
    return {name: Pipeline(name=name, manager="independent", triggers=filters)}


def events_received(play: Play) -> list[tuple[str, str, str]]:
    """(pipeline, event, change)"""
    return [(pipeline, event.kind.value, event.change.topic) for pipeline, event in play.sent]


def test_a_pipeline_receives_one_event_when_a_change_enters_another_pipeline() -> None:
    play = Play()
    play.pipelines = {
        **listening("check", "parent-change-enqueued"),
        **listening("of-gate", "parent-change-enqueued", pipeline="gate"),
        **listening("of-others", "parent-change-enqueued", pipeline=["review", "post"]),
        **listening("merged", "project-change-merged"),
    }
    play.approve("A")
    play.merges()
    assert events_received(play) == [
        ("check", "parent-change-enqueued", "A"),
        ("of-gate", "parent-change-enqueued", "A"),
    ]


def test_a_pipeline_receives_an_event_of_each_landed_change_and_of_no_other_ended_change() -> None:
    play = Play()
    play.pipelines = listening("check", "project-change-merged")
    play.approve("A", "B")
    play.merges()
    play.fails("B")
    play.passes("A")
    assert play.sent == []
    play.lands("A")
    assert events_received(play) == [("check", "project-change-merged", "A")]


def checking(event: str) -> Play:
    play = Play(manager="independent")
    (named,) = listening("gate", event).values()
    play.pipeline = replace(play.pipeline, triggers=named.triggers)
    return play


def happens(play: Play, kind: EventKind, name: str, pipeline: str = "") -> None:
    play.act(TriggerEvent(kind, play._change_state(name).change, f"{kind} {name}", pipeline=pipeline))


def test_changes_that_need_an_enqueued_one_are_enqueued() -> None:
    play = checking("parent-change-enqueued")
    for change in (play.change("A"), play.change("B", "A"), play.change("C")):
        play.propose(change)
    happens(play, EventKind.PARENT_ENQUEUED, "A")
    live = [item.change.topic for _, item in play.state.items() if item.live]
    assert live == ["B"]


def test_changes_that_need_each_other_do_not_have_each_other_enqueued() -> None:
    play = checking("parent-change-enqueued")
    for change in (play.change("A", "B"), play.change("B", "A")):
        play.propose(change)
    happens(play, EventKind.PARENT_ENQUEUED, "A")
    assert play.queue == []


def test_open_changes_of_the_project_are_enqueued_when_one_lands() -> None:
    play = checking("project-change-merged")
    for change in (play.change("A"), play.change("B"), play.change("C", project="other"), play.change("D")):
        play.propose(change)
    play.abandon("D")
    play.pushes("A")
    happens(play, EventKind.PROJECT_MERGED, "A")
    assert play.queue == ["B"]


def test_pipelines_without_the_trigger_ignore_the_event() -> None:
    play = checking("project-change-merged")
    for change in (play.change("A"), play.change("B", "A")):
        play.propose(change)
    happens(play, EventKind.PARENT_ENQUEUED, "A")
    assert play.queue == []
