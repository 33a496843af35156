"""Test what a turn appends to the history besides the ends of items."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.state.actions import Record
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet, Item, Queue, State
from headgate.gate.state.works import BuildOutcome, RepoState
from headgate.map.records import Finished
from headgate.recipes.requestforms import Open, Owner, Request, RequestPlaces
from headgate.services.scheduler.bygone import Bygone, tree_of
from headgate.store.types import Entry

CHANGE = Change("local", "git.example/app", "master", topic="one", commit="a" * 40)
GRAPH = FrozenGraph(jobs=(FrozenJob(name="unit"), FrozenJob(name="lint")))
RUNS = Build("u1", "unit", requested_ms=5)
PASSED = Build("l1", "lint", result="SUCCESS", start_ms=10, end_ms=20)
BEFORE = Item("i", CHANGE, buildset=BuildSet("b1", graph=GRAPH, builds={"unit": RUNS, "lint": PASSED}))


def state(*items: Item) -> State:
    return State(queues=(Queue("q", "integrated", items),))


def open_requests(build: str, began_ms: int) -> dict[str, Open]:
    request = Request(build, owner=Owner("host", "e1", began_ms))
    entry = Entry("/requests/x", b"", 1, 1)
    return {build: Open(entry, request, True, RequestPlaces("", "", "", "", "", ""))}


def superseded(after: State, *ended: Record, past: Bygone) -> list[Finished]:
    return list(past.superseded(state(BEFORE), after, ended))


def rows(finished: Iterable[Finished]) -> list[tuple[str, str, str, bool, int, int]]:
    return [(f.buildset, b.uuid, b.result, b.final, b.start_ms, b.end_ms) for f in finished for b in f.builds]


def past(open_requests: dict[str, Open] | None = None, **outcomes: BuildOutcome) -> Bygone:
    return Bygone("example", "gate", 90, open_requests or {}, outcomes)


def test_a_superseded_buildset_is_recorded_with_its_results() -> None:
    anew = replace(BEFORE, buildset=BuildSet("b2"))
    found = superseded(state(anew), past=past(open_requests("u1", 30)))
    assert [(f.result, f.final, bool(f.message)) for f in found] == [("DEQUEUED", False, True)]
    assert rows(found) == [("b1", "u1", "CANCELED", False, 30, 90), ("b1", "l1", "SUCCESS", False, 10, 20)]


def test_a_build_that_never_started_took_no_time() -> None:
    anew = replace(BEFORE, buildset=None)
    found = superseded(state(anew), past=past(open_requests("u1", 0)))
    assert rows(found)[0] == ("b1", "u1", "CANCELED", False, 0, 0)


def test_a_repeated_attempt_is_recorded_while_its_buildset_continues() -> None:
    second = replace(RUNS, id="u2", attempt=2)
    builds = {"unit": second, "lint": PASSED}
    assert BEFORE.buildset is not None
    after = replace(BEFORE, buildset=replace(BEFORE.buildset, builds=builds))
    outcome = BuildOutcome("u1", error="unreachable", start_ms=40, end_ms=60)
    found = superseded(state(after), past=past(u1=outcome))
    assert rows(found) == [("b1", "u1", "RETRY", False, 40, 60)]
    assert [(f.result, f.builds[0].error, f.builds[0].attempt) for f in found] == [("", "unreachable", 1)]


def test_a_build_stopped_by_fail_fast_is_recorded_with_its_times() -> None:
    stopped = replace(RUNS, result="CANCELED", error="fail-fast")
    assert BEFORE.buildset is not None
    after = replace(BEFORE, buildset=replace(BEFORE.buildset, builds={"unit": stopped, "lint": PASSED}))
    found = superseded(state(after), past=past(open_requests("u1", 50)))
    assert rows(found) == [("b1", "u1", "CANCELED", True, 50, 90)]


def test_unchanged_and_leaving_items_are_not_recorded_here() -> None:
    assert superseded(state(BEFORE), past=past()) == []
    assert superseded(state(), Record(BEFORE, "DEQUEUED", ""), past=past()) == []


def test_the_history_has_the_start_times_of_builds_that_a_leaving_item_stops() -> None:
    found = past(open_requests("u1", 30)).ended(BEFORE, "DEQUEUED", "withdrawn")
    assert rows([found]) == [("b1", "u1", "CANCELED", True, 30, 90), ("b1", "l1", "SUCCESS", True, 10, 20)]


def test_the_same_code_is_the_same_tree_whatever_its_commits_are() -> None:
    def on(commit: str, tree: str) -> str:
        merged = RepoState(merged={"git.example/app": {"master": commit}}, trees={"git.example/app": {"master": tree}})
        return tree_of(replace(BEFORE, buildset=BuildSet("b", state=merged)))

    assert on("1" * 40, "t") == on("2" * 40, "t") != on("1" * 40, "u")
    assert tree_of(BEFORE) == "" == tree_of(replace(BEFORE, buildset=BuildSet("b", state=RepoState())))
