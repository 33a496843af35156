"""Test that changes that closed long ago are forgotten, unless they may still be needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.gate.state.change import Change, ChangeState
from headgate.map.places import Map
from headgate.ports.forge import Sighting
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.scheduler.changestates import ChangeStates
from headgate.services.scheduler.connection import ConnectionRunner
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

PROJECT = "git.example/code"


def change(topic: str, *needs: str) -> Change:
    ref = f"refs/for/master/{topic}"
    return Change("local", PROJECT, "master", topic, commit=topic * 8, ref=ref, needs=tuple(map(key, needs)))


def key(topic: str) -> str:
    return f"{PROJECT}/master/{topic}"


@dataclass
class Scripted:
    """Imitate a connection with planned sightings."""

    sightings_: list[Sighting]
    name: str = "local"
    seen: asyncio.Event = field(default_factory=asyncio.Event)

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        for sighting in self.sightings_:
            yield sighting
        self.seen.set()
        await asyncio.Event().wait()


def left_after(closing: Sighting, closed_max: int) -> set[str]:
    """Return the remembered topics: `a` to `d` and `e`, which needs `a`, were open; then this was seen."""

    async def play() -> set[str]:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        opening = Sighting((*map(ChangeState, map(change, "abcd")), ChangeState(change("e", "a"))))
        forge = Scripted([opening, closing])
        mirroring = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        async with store.session("scheduler") as session:
            runner = ConnectionRunner(context, forge, {"example": frozenset({PROJECT})}, closed_max)
            running = asyncio.ensure_future(runner.run(session))
            await forge.seen.wait()
            await asyncio.sleep(1)
            running.cancel()
        mirroring.cancel()
        place = context.map.cache.connection("local")
        known = ChangeStates(context.map, context.mirror, ("local",)).now()
        assert len(await store.list(place.data.path)) == len(known), "no body without its entry"
        return {change_state.change.topic for change_state in known.values()}

    return run_virtual(play())


CLOSING = Sighting(
    tuple(ChangeState(change(topic), open=False, landed=True) for topic in "abcd"), lingering={PROJECT: frozenset()}
)


def test_the_oldest_closed_changes_are_forgotten_but_not_those_that_an_open_change_needs() -> None:
    assert left_after(CLOSING, closed_max=1) == {"a", "d", "e"}


def test_a_closed_change_whose_ref_exists_is_remembered() -> None:
    assert left_after(replace(CLOSING, lingering={PROJECT: frozenset({key("b")})}), closed_max=1) == {
        "a",
        "b",
        "d",
        "e",
    }


def test_of_a_project_not_seen_yet_nothing_is_forgotten() -> None:
    assert left_after(replace(CLOSING, lingering={}), closed_max=1) == set("abcde")


def test_few_are_all_remembered() -> None:
    assert left_after(CLOSING, closed_max=4) == set("abcde")
