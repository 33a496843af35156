"""Test the events that a turn publishes of its items."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.gate.state.actions import Record
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet, Item, Queue, State
from headgate.services.scheduler.turnoutput import turn_events

CHANGE = Change("local", "git.example/app", "master", topic="one", commit="a" * 40)


def state(*items: Item) -> State:
    return State(queues=(Queue("q", "integrated", items),))


def event_kinds(before: State, after: State, *ended: Record) -> list[tuple[str, str]]:
    return [(one.kind, one.item) for one in turn_events("example", "gate", before, after, ended, 1)]


def test_an_item_is_published_from_its_beginning_to_its_end() -> None:
    item = Item("i", CHANGE, event="e")
    tested = replace(item, buildset=BuildSet("b1"))
    assert event_kinds(state(), state(item)) == [("change-enqueued", "i")]
    assert event_kinds(state(item), state(tested)) == []
    assert event_kinds(state(tested), state(replace(tested, buildset=BuildSet("b2")))) == [("item-reset", "i")]
    assert event_kinds(state(tested), state(), Record(tested, "FAILURE", "")) == [("change-rejected", "i")]


def test_a_change_overtaken_by_promoted_ones_is_not_published_as_enqueued_again() -> None:
    item = Item("i", CHANGE, event="e", buildset=BuildSet("b1"))
    moved = replace(item, id="j", buildset=BuildSet("b2"))
    assert event_kinds(state(item), state(moved)) == [("item-reset", "j")]
    newer = replace(item, id="k", event="another", buildset=None)
    assert event_kinds(state(item), state(newer), Record(item, "DEQUEUED", "")) == [
        ("change-enqueued", "k"),
        ("change-dequeued", "i"),
    ]


def test_of_jobs_that_run_after_the_end_only_the_builds_are_published() -> None:
    item = Item("i", CHANGE, event="e", buildset=BuildSet("b1", landing=True))
    build = Build("x", "announce", result="SUCCESS")
    after = Item("a", CHANGE, event="e", epilogue=True, buildset=BuildSet("b2"))
    done = replace(after, buildset=BuildSet("b2", builds={"announce": build}))
    assert event_kinds(state(item), state(after), Record(item, "SUCCESS", "")) == [("change-landed", "i")]
    assert event_kinds(state(after), state(), Record(done, "SUCCESS", "")) == [("build-finished", "a")]
