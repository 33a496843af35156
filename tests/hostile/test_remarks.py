"""Test people who may only comment on a change, as much and as long as they like."""

from __future__ import annotations

import asyncio

import pytest

from headgate.config.forges.facts import ForgeAccount, ForgeEvent
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent
from headgate.map.places import Map
from headgate.ports.forge import Sighting
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.scheduler.changestates import ChangeStates
from headgate.services.scheduler.connection import ConnectionRunner
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual
from tests.unit.services.test_forgetting import Scripted

PROJECT = "git.example/code"


@pytest.mark.parametrize(("count", "size", "tenants"), [(250, 20, 1), (100, 16_000, 1), (3, 90_000, 15)])
def test_a_flood_of_remarks_on_one_change_delays_no_connection(count: int, size: int, tenants: int) -> None:
    """All comments between two polls are reported in order, and later ones as well."""
    flooded = Change("local", PROJECT, "master", commit="1" * 40, ref="refs/pull/1/head", number="1")
    other = beside(flooded)

    async def play() -> None:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        what = ForgeEvent("pull_request", "comment", ForgeAccount("eve"), ("x" * size,))
        events = tuple(TriggerEvent(EventKind.STIRRED, flooded, f"{n}", happening=what) for n in range(count))
        last = TriggerEvent(EventKind.PROPOSED, other, "last", fresh=True)
        forge = Scripted([Sighting((ChangeState(flooded),), events), Sighting((ChangeState(other),), (last,))])
        names = [f"t{n}" for n in range(tenants)]
        mirroring = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        async with store.session("scheduler") as session:
            runner = ConnectionRunner(context, forge, dict.fromkeys(names, frozenset({PROJECT})))
            running = asyncio.ensure_future(runner.run(session))
            await asyncio.wait({running}, timeout=60)
            assert not running.done(), "nothing that is said ends the look at the connection"
            running.cancel()
        streams = [context.map.events.tenant(name).trigger.stream for name in names]
        waiting = [[one.event.id for one in stream.waiting(context.mirror, limit=1_000)] for stream in streams]
        known = ChangeStates(context.map, context.mirror, ("local",)).now()
        mirroring.cancel()
        assert waiting == [[*map(str, range(count)), "last"]] * tenants
        assert known.keys() == {flooded.key, other.key}

    run_virtual(play())


def beside(change: Change) -> Change:
    return Change(change.connection, change.project, "master", commit="2" * 40, ref="refs/pull/2/head", number="2")
