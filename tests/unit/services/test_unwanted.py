"""Test that orphaned records are found: answers without a requester, and desired states of components that are gone."""

from __future__ import annotations

import asyncio

from headgate.map.places import Map
from headgate.map.records import ComponentRecord, DesiredState, ManagementResult
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.membership import want
from headgate.services.scheduler.leftovers import Unwanted
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Delete, Put


async def test_unneeded_answers_and_desired_states_are_found() -> None:
    store, map = Store(MemoryBackend()), Map()
    context = Context(store, Mirror(store, map.path), lambda: 0)
    lease = await store.backend.grant(60)
    results, executor = map.results.management, map.components.executor
    entry = f"{executor.path}/host0000000001"
    await store.commit(
        [],
        [
            Put(f"{results.path}/waited", results.encode(ManagementResult(False)), lease),
            Put(f"{results.path}/left", results.encode(ManagementResult(True))),
            Put(entry, executor.encode(ComponentRecord("host", "executor")), lease),
        ],
    )
    assert await want(context, "executor/host0000000001", "paused")
    assert not await want(context, "executor/nobody0000000001", "paused")
    desired = f"{map.desired_states.path}/executor.host0000000001"
    found = await store.get(desired)
    assert found is not None and map.desired_states.decode(found.value) == DesiredState("paused")
    task = asyncio.ensure_future(context.mirror.run())
    await context.mirror.ready()
    assert set(Unwanted(context).left(context.mirror)) == {f"{results.path}/left"}
    await store.commit([], [Delete(entry)])
    await context.mirror.gone(entry)
    assert set(Unwanted(context).left(context.mirror)) == {f"{results.path}/left", desired}
    assert not await want(context, "executor/host0000000001", "running")
    task.cancel()
