"""A pipeline's state survives being written and read."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.change import Change
from headgate.gate.model import Build, BuildSet, Cancel, Item, Land, Phase, Queue, State
from headgate.gate.work import LandRequest, MergeItem, RepoState
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Open, Request, Requests
from headgate.services.scheduler.keeping import garbage, load, writes
from headgate.services.scheduler.turn import Piece, Turn, packed
from headgate.store.memory import MemoryBackend
from headgate.store.model import check_commit
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Entry, Put

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
        graph=FrozenGraph(jobs, fail_fast=True),
        builds={"unit": Build(id="u1", job="unit", result="SUCCESS", data={"a": 1})},
    )
    items = (Item(id="i1", change=change, buildset=buildset, resets=2, event="e"), Item(id="i2", change=change))
    queue = Queue(id="q", name="shared", items=items, window=7, landed=("b0",), landed_keys=("h/p/master/x",))
    return State(queues=(queue,), failures=1)


async def write(store: Store, before: State, after: State) -> None:
    diff = writes(PLACE, before, after)
    every = [diff.fresh, *diff.builds.values(), *diff.items.values(), diff.queues, diff.stale]
    for commit in packed(Piece([op]) for ops in every for op in ops):
        await store.commit([], commit.ops)


async def test_what_is_written_is_read_again() -> None:
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
    assert store.counts.ops - before <= 9
    assert not garbage(PLACE, await store.list(PLACE.path), second)


async def test_builds_that_are_no_longer_part_of_it_go() -> None:
    store, first = Store(MemoryBackend()), state()
    await write(store, State(), first)
    queue = first.queues[0]
    item = queue.items[0]
    assert item.buildset is not None
    item = replace(item, buildset=replace(item.buildset, builds={}))
    second = replace(first, queues=(replace(queue, items=(item, *queue.items[1:])),))
    await write(store, first, second)
    assert load(PLACE, await store.list(PLACE.path)).state == second


async def test_what_a_dying_writer_left_is_swept() -> None:
    store = Store(MemoryBackend())
    diff = writes(PLACE, State(), state())
    for op in diff.fresh:
        await store.commit([], [op])
    entries = await store.list(PLACE.path)
    assert load(PLACE, entries).state == State()
    assert {op.path for op in garbage(PLACE, entries, State())} == {entry.path for entry in entries}


def test_what_asks_for_a_landing_goes_with_what_waits_for_it() -> None:
    """A turn of many commits may end after any of them: who waits for an answer that was never asked for waits for
    ever."""
    map, store = Map(), Store(MemoryBackend())
    before = state()
    item = before.queues[0].items[0]
    assert item.buildset is not None and item.buildset.state is not None
    landing = replace(item, buildset=replace(item.buildset, landing=True))
    after = replace(before, queues=(replace(before.queues[0], items=(landing, *before.queues[0].items[1:])),))
    work = LandRequest(item.buildset.id, item.buildset.state, item.change, "1" * 40, "note")
    requests = Requests(store, map.merger.places)
    turn = Turn(map, "a/b", "gate", lambda job: requests, requests, {}, Mirror(store, "/zuul"), 0)
    pieces = turn.pieces(before, after, [Land("request", work, 200)], [])
    record = PLACE.item("i1").buildset("b1").path
    asked = f"{map.merger.places.requests}/request"
    (together,) = [piece for piece in pieces if any(isinstance(op, Put) and op.path == asked for op in piece.ops)]
    assert any(isinstance(op, Put) and op.path == record for op in together.ops)


def test_what_is_no_longer_wanted_is_cancelled_however_much_it_is() -> None:
    map, store = Map(), Store(MemoryBackend())
    requests = Requests(store, map.executor.unzoned.places)

    def runs(id: str) -> Open:
        entry = Entry(f"{requests.places.requests}/{id}", b"", 7, 7)
        return Open(entry, Request(id, state="running"), locked=True, places=requests.places)

    builds = [f"b{number}" for number in range(3 * OPS_MAX)]
    told = {id: runs(id) for id in builds}
    turn = Turn(map, "a/b", "gate", lambda job: requests, requests, told, Mirror(store, "/zuul"), 0)
    asked = [Cancel(id, build=True) for id in builds]
    commits = packed(turn.pieces(State(), State(), asked, []))
    for commit in commits:
        check_commit(commit.checks, commit.ops)
    assert [op.path for commit in commits for op in commit.ops] == [f"{requests.places.requests}/{id}" for id in builds]
