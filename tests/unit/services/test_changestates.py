"""Test what is known of changes, and their dependencies."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.state.change import Change, ChangeState
from headgate.map.places import Map
from headgate.map.records import CacheEntry
from headgate.recipes.codec import decode
from headgate.recipes.mirror import Mirror
from headgate.services.scheduler.changestates import ChangeStates, remember
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Delete
from headgate.testing.clock import run_virtual

TOPICS = "abcd"
STEPS = st.tuples(st.sampled_from(TOPICS), st.none() | st.frozensets(st.sampled_from(TOPICS)), st.booleans())


def _change(topic: str, needs: frozenset[str]) -> Change:
    ref = f"refs/for/master/{topic}"
    keys = tuple(sorted(_change(need, frozenset()).key for need in needs))
    return Change("local", "git.example/code", "master", topic, commit=topic * 8, ref=ref, needs=keys)


@given(st.lists(STEPS, max_size=12))
def test_dependents_equal_those_that_a_full_search_finds(
    steps: list[tuple[str, frozenset[str] | None, bool]],
) -> None:
    """A step gives a change its needs, or forgets it; a check follows only some of the steps."""

    async def play() -> None:
        map, store = Map(), Store(MemoryBackend())
        mirror = Mirror(store, map.path)
        mirroring = asyncio.ensure_future(mirror.run())
        await mirror.ready()
        change_states = ChangeStates(map, mirror, ("local",))
        for number, (topic, needs, looked) in enumerate(steps):
            if needs is not None:
                check, ops = remember(map, mirror, ChangeState(_change(topic, needs)), f"id{number}")
                await store.commit([check], ops)
            else:
                place, key = map.cache.connection("local"), _change(topic, frozenset()).key
                entries = [e for e in mirror.under(place.cache.path) if decode(e.value, CacheEntry).key == key]
                await store.commit([], [Delete(entry.path) for entry in entries])
            await asyncio.sleep(0.01)
            if looked:
                change_states.now()
        known = change_states.now()
        found = {(need, key) for key, change_state in known.items() for need in change_state.change.needs}
        assert change_states.of_project("git.example/code") == known
        assert change_states.of_project("git.example/other") == {}
        assert {(need, key) for need, keys in change_states.dependants.items() for key in keys} == found
        mirroring.cancel()

    run_virtual(play())
