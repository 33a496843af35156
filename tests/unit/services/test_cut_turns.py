"""Test the requests of a turn that begins with the remains of an earlier one that was cut short."""

from __future__ import annotations

from headgate.gate.state.actions import Cancel, Merge
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import Item, Queue, State
from headgate.gate.state.works import MergeRequest
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Request
from headgate.services.context import Context
from headgate.services.scheduler.changestates import ChangeStates
from headgate.services.scheduler.connection import _Known
from headgate.services.scheduler.turn import PipelineTurn, TurnPart
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Delete, Entry, Op, Put


def written(*actions: Cancel | Merge, there: bool = False) -> list[Op]:
    """Return the writes of a turn with this request; `there`: the merge was requested before, and no merger has taken
    it."""
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, Map().path), lambda: 0)
    merges = context.merges
    opened = {}
    if there:
        before = merges.submit(Request("m"), b"{}")[-1]
        assert isinstance(before, Put)
        opened = {"m": Open(Entry(before.path, before.value, version=1, born=1), Request("m"), False, merges.places)}
    turn = PipelineTurn(context.map, "t", "gate", lambda job: context.builds, merges, opened, context.mirror, 0)
    return [op for piece in turn.pieces(State(), State(), actions, []) for op in piece.ops]


MERGE = Merge("m", MergeRequest(buildset="b", chain=(), projects={}), 0)
CANCEL = Cancel("m", build=False)


def test_an_unneeded_request_is_not_written() -> None:
    assert not written(MERGE, CANCEL)


def test_an_unneeded_request_is_deleted() -> None:
    assert all(isinstance(op, Delete) for op in written(CANCEL, there=True)) and written(CANCEL, there=True)


def test_a_request_that_is_needed_again_is_written() -> None:
    assert any(isinstance(op, Put) and op.path.endswith("/m") for op in written(CANCEL, MERGE))


def test_a_request_that_is_needed_again_stays() -> None:
    """An item entered, left and entered again, according to repeated events."""
    assert not written(CANCEL, MERGE, there=True)


def test_a_report_is_written_before_the_item_is_forgotten() -> None:
    """A scheduler that takes over in between reports it again; afterwards no one else knows of it."""
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, Map().path), lambda: 0)
    turn = PipelineTurn(context.map, "t", "gate", lambda job: context.builds, context.merges, {}, context.mirror, 0)
    item = Item("i", Change("local", "p", "master", commit="c"), "e", 0)
    before = State((Queue("q", "q", (item,), 1),))
    ends, reported = [TurnPart([Delete("/event")])], [TurnPart([Delete("/report")])]
    order = [
        op for piece in turn.pieces(before, State((Queue("q", "q", (), 1),)), [], ends, reported) for op in piece.ops
    ]
    places = [getattr(op, "path", "") for op in order]
    queue = next(n for n, path in enumerate(places) if "/queue/" in path)
    assert places.index("/report") < queue < places.index("/event")


def test_a_change_that_was_only_looked_up_is_new_to_its_connection() -> None:
    seen, looked_up = (ChangeState(Change("hub", "p", "master", commit=c, number=c), looked_up=c == "2") for c in "12")

    class Both(ChangeStates):
        def __init__(self) -> None:
            """Two changes, of which one was looked up."""

        def now(self) -> dict[str, ChangeState]:
            return {one.change.key: one for one in (seen, looked_up)}

    known = _Known(Both())
    assert dict(known) == {seen.change.key: seen} and len(known) == 1 and known.get(looked_up.change.key) is None
