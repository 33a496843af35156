"""Test that a pipeline's state survives writing and reading."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.state.actions import Cancel, Land
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.model import Build, BuildSet, Item, Phase, Queue, State
from headgate.gate.state.works import LandRequest, RepoState
from headgate.map import state as pipeline_state
from headgate.map.places import Map
from headgate.map.state import KnownItem, garbage, load, writes
from headgate.recipes import blob
from headgate.recipes.codec import encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Request
from headgate.recipes.requests import Requests
from headgate.services.scheduler.turn import PipelineTurn, TurnPart, packed
from headgate.store.memory import MemoryBackend
from headgate.store.model import check_commit
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Delete, Entry, Put

PLACE = Map().tenant("a/b").pipeline("gate")


def state() -> State:
    change = Change(connection="local", project="h/p", branch="master", topic="t", commit="1" * 40)
    jobs = (FrozenJob(name="unit"), FrozenJob(name="a/b c"))
    buildset = BuildSet(
        id="b1",
        ahead="b0",
        merge=Phase.MERGED,
        state=RepoState(
            (MergeItem("i1", "h/p", "local", "master", "r", "1" * 40),), {"h/p": {"refs/heads/master": "2"}}
        ),
        proposed={"h/p": {"master": {"zuul.yaml": "x" * 900_000}}},
        graph=FrozenGraph(jobs, fail_fast=True, debug=True, reporters=(FrozenJob(name="tells", type="reporter"),)),
        builds={"unit": Build(id="u1", job="unit", result="SUCCESS", data={"a": 1})},
    )
    items = (Item(id="i1", change=change, buildset=buildset, resets=2, event="e"), Item(id="i2", change=change))
    queue = Queue(id="q", name="shared", items=items, window=7, landed=("b0",), landed_keys=("h/p/master/x",))
    return State(queues=(queue,), failures=1)


async def write(store: Store, before: State, after: State) -> None:
    for commit in packed(TurnPart([op]) for op in writes(PLACE, before, after)):
        await store.commit([], commit.ops)


async def test_a_written_state_is_read_again_unchanged() -> None:
    store = Store(MemoryBackend())
    await write(store, State(), state())
    assert load(PLACE, await store.list(PLACE.path)).state == state()


async def test_the_difference_of_two_states_is_all_that_is_written() -> None:
    store, first = Store(MemoryBackend()), state()
    await write(store, State(), first)
    before = store.counts.ops
    queue = first.queues[0]
    second = replace(first, queues=(replace(queue, items=queue.items[1:]),))
    await write(store, first, second)
    assert load(PLACE, await store.list(PLACE.path)).state == second
    assert store.counts.ops - before <= 10
    assert not garbage(PLACE, await store.list(PLACE.path), second)


async def test_builds_that_no_longer_belong_to_a_buildset_are_deleted() -> None:
    store, first = Store(MemoryBackend()), state()
    await write(store, State(), first)
    queue = first.queues[0]
    item = queue.items[0]
    assert item.buildset is not None
    item = replace(item, buildset=replace(item.buildset, builds={}))
    second = replace(first, queues=(replace(queue, items=(item, *queue.items[1:])),))
    await write(store, first, second)
    assert load(PLACE, await store.list(PLACE.path)).state == second


async def test_entries_of_a_writer_that_died_are_garbage() -> None:
    store = Store(MemoryBackend())
    diff = writes(PLACE, State(), state())
    for op in diff.fresh:
        await store.commit([], [op])
    entries = await store.list(PLACE.path)
    assert load(PLACE, entries).state == State()
    assert {op.path for op in garbage(PLACE, entries, State())} == {entry.path for entry in entries}


def test_a_landing_request_is_in_the_same_commit_as_the_item_that_waits_for_it() -> None:
    """A turn of many commits may stop after any of them: an item that waits for an answer to a request that was never
    written would wait for ever."""
    map, store = Map(), Store(MemoryBackend())
    before = state()
    item = before.queues[0].items[0]
    assert item.buildset is not None and item.buildset.state is not None
    landing = replace(item, buildset=replace(item.buildset, landing=True))
    after = replace(before, queues=(replace(before.queues[0], items=(landing, *before.queues[0].items[1:])),))
    work = LandRequest(item.buildset.id, item.buildset.state, item.change, "1" * 40, "note")
    requests = Requests(store, map.merger.places)
    turn = PipelineTurn(map, "a/b", "gate", lambda job: requests, requests, {}, Mirror(store, "/zuul"), 0)
    pieces = turn.pieces(before, after, [Land("request", work, 200)], [])
    record = PLACE.item("i1").buildset("b1").path
    text = f"{map.merger.places.requests}/request"
    (together,) = [piece for piece in pieces if any(isinstance(op, Put) and op.path == text for op in piece.ops)]
    assert any(isinstance(op, Put) and op.path == record for op in together.ops)


@pytest.mark.parametrize("there", [True, False], ids=["to one that is there", "to a new one"])
def test_an_item_that_changes_queues_is_in_one_of_them_wherever_a_turn_is_split(there: bool) -> None:
    map, store = Map(), Store(MemoryBackend())
    change = Change("git", "p", "master", "t", "1" * 40)
    one, two, three = (Item(name, change) for name in ("one", "two", "three"))
    before = State(queues=(Queue("q1", "first", (one, two)), *[Queue("q2", "second", (three,))] * there))
    moved = Queue("q2", "second", (*[three] * there, two))
    after = State(queues=(Queue("q1", "first", (one,)), moved))
    requests = Requests(store, map.merger.places)
    turn = PipelineTurn(map, "a/b", "gate", lambda job: requests, requests, {}, Mirror(store, "/zuul"), 0)
    ops = {op.path: op for op in writes(PLACE, State(), before)}
    for piece in turn.pieces(before, after, [], []):
        for op in piece.ops:
            ops = {**ops, op.path: op} if isinstance(op, Put) else {p: o for p, o in ops.items() if p != op.path}
        entries = [Entry(op.path, op.value, 1, 1) for op in ops.values() if isinstance(op, Put)]
        loaded = load(PLACE, entries)
        assert loaded.damaged == ()
        assert sorted(item.id for _, item in loaded.state.items()) == ["one", *["three"] * there, "two"]
    assert loaded.state == after


@pytest.mark.long
@pytest.mark.heavy
def test_a_pipeline_of_more_queues_than_one_entry_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries have a tenth of their usual limit."""
    monkeypatch.setattr(blob, "INLINE_MAX_BYTES", blob.INLINE_MAX_BYTES // 10)
    monkeypatch.setattr(blob, "PIECE_SIZE_BYTES", blob.PIECE_SIZE_BYTES // 10)
    monkeypatch.setattr(pipeline_state, "MANY", pipeline_state.MANY // 10)
    entries, before = dict[str, Entry](), State()
    for count in (4_500, 4_499, 7):
        after = State(queues=tuple(Queue(derived("queue", str(n)), "p", dynamic=True) for n in range(count)))
        commits = packed(TurnPart([op]) for op in writes(PLACE, before, after))
        for commit in commits:
            check_commit(commit.checks, commit.ops)
            for op in commit.ops:
                if isinstance(op, Put):
                    entries[op.path] = Entry(op.path, op.value, 1, 1)
                else:
                    assert isinstance(op, Delete)
                    entries.pop(op.path, None)
        loaded = load(PLACE, entries.values())
        assert loaded.state == after and loaded.damaged == ()
        assert garbage(PLACE, entries.values(), after) == [], "nothing is left of what it was"
        before = after


def test_any_number_of_unneeded_builds_is_cancelled() -> None:
    map, store = Map(), Store(MemoryBackend())
    requests = Requests(store, map.executor.unzoned.places)

    def runs(id: str) -> Open:
        entry = Entry(f"{requests.places.requests}/{id}", b"", 7, 7)
        return Open(entry, Request(id, state="running"), locked=True, places=requests.places)

    builds = [f"b{number}" for number in range(3 * OPS_MAX)]
    waits = {id: runs(id) for id in builds}
    turn = PipelineTurn(map, "a/b", "gate", lambda job: requests, requests, waits, Mirror(store, "/zuul"), 0)
    actions = [Cancel(id, build=True) for id in builds]
    commits = packed(turn.pieces(State(), State(), actions, []))
    for commit in commits:
        check_commit(commit.checks, commit.ops)
    assert [op.path for commit in commits for op in commit.ops] == [f"{requests.places.requests}/{id}" for id in builds]


def stored(value: State) -> list[Entry]:
    """Return the state as stored."""
    return [Entry(op.path, op.value, 1, 1) for op in writes(PLACE, State(), value) if isinstance(op, Put)]


def test_the_epilogue_of_a_landed_item_is_read_again() -> None:
    first = state()
    item = replace(first.queues[0].items[0], epilogue=True)
    second = replace(first, queues=(replace(first.queues[0], items=(item,)),))
    assert load(PLACE, stored(second)).state == second


B1 = PLACE.item("i1").buildset("b1")


@pytest.mark.parametrize(
    "path",
    [
        B1.record.path,
        B1.job("unit").record.path,
        B1.job("a/b c").record.path,
        B1.job("tells").record.path,
        B1.repo_state.path,
        B1.proposed.path,
    ],
)
def test_an_item_whose_record_refers_to_a_missing_one_is_damaged(path: str) -> None:
    loaded = load(PLACE, [entry for entry in stored(state()) if entry.path != path])
    (damaged,) = loaded.damaged
    assert (damaged.item, damaged.path) == ("i1", path) and "missing" in damaged.why
    item, other = loaded.state.queues[0].items
    assert item.buildset is None and other == state().queues[0].items[1]


@pytest.mark.parametrize("path", [PLACE.item("i2").record.path, PLACE.queue("q").record.path])
def test_a_missing_item_or_queue_is_reported(path: str) -> None:
    loaded = load(PLACE, [entry for entry in stored(state()) if entry.path != path])
    assert path in {damaged.path for damaged in loaded.damaged}
    assert "i2" not in {item.id for _, item in loaded.state.items()}


def test_an_item_in_two_queues_stays_in_the_first_and_is_reported() -> None:
    first = state()
    twice = replace(first, queues=(*first.queues, replace(first.queues[0], id="q2")))
    loaded = load(PLACE, stored(twice))
    assert loaded.state.queues[0] == first.queues[0] and loaded.state.queues[1].items == ()
    assert [damaged.path for damaged in loaded.damaged] == [PLACE.item(id).record.path for id in ("i1", "i2")]


@pytest.mark.parametrize("later", ["a", "z"])
def test_of_two_attempts_that_a_dying_writer_left_the_later_counts(later: str) -> None:
    """The previous one is removed in the last of a turn's commits, when its end is no longer in any queue."""
    first, again = state(), Build(id=later, job="unit", attempt=2)
    left = [*stored(first), Entry(B1.job("unit").build(later).record.path, encode(again), 2, 2)]
    buildset = load(PLACE, left).state.queues[0].items[0].buildset
    assert buildset is not None and buildset.builds["unit"] == again


async def test_items_with_unchanged_records_are_not_read_again() -> None:
    store, before, first = Store(MemoryBackend()), State(), state()
    one, two = first.queues[0].items
    moved = replace(first.queues[0], items=(two,))
    assert one.buildset is not None
    failed = replace(one.buildset.builds["unit"], result="FAILURE")
    other = replace(one, buildset=replace(one.buildset, builds={"unit": failed}))
    known: dict[str, KnownItem] = {}
    seen = []
    for items in ((one, two), (one, two), (other, two), (other,), (other, two), ()):
        after = replace(first, queues=(replace(moved, items=items),))
        await write(store, before, after)
        entries = await store.list(PLACE.path)
        loaded, before = load(PLACE, entries, known), after
        assert loaded == load(PLACE, entries) and loaded.state == after
        assert set(known) == {item.id for item in items}
        seen.append({item.id: item for _, item in loaded.state.items()})
    assert seen[0]["i1"] is seen[1]["i1"] and seen[1]["i2"] is seen[2]["i2"], "they are the same objects"


async def test_a_damaged_item_is_reported_at_each_read() -> None:
    store, known = Store(MemoryBackend()), dict[str, KnownItem]()
    await write(store, State(), state())
    path = PLACE.item("i1").buildset("b1").job("unit").record.path
    for garbage_ in (None, b"garbage", b"garbage", b"other garbage"):
        if garbage_ is not None:
            await store.commit([], [Put(path, garbage_)])
        entries = await store.list(PLACE.path)
        loaded = load(PLACE, entries, known)
        assert loaded == load(PLACE, entries)
        assert [one.path for one in loaded.damaged] == [path] * (garbage_ is not None)
