"""Test semaphore places of builds whose executors died."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from headgate.base.tasks import end
from headgate.gate.state.model import State
from headgate.map.places import Map, semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.scheduler.semaphores import Semaphores
from headgate.services.scheduler.turn import packed
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

MANY = 120
"""Builds; the deletion of that many requests exceeds one commit."""


def test_many_lost_builds_give_back_their_places_and_leave_no_request() -> None:
    async def main() -> None:
        map, store = Map(), Store(MemoryBackend())
        context = Context(store, Mirror(store, map.path), lambda: 0)
        mirror = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        builds = [f"{number:032x}" for number in range(MANY)]
        for build in builds:
            cancelled = Request(build, state="running", wanted="cancel")
            await store.commit([], context.zone("").submit(cancelled, b"{}"))
        address = semaphore_of(map, "t", "one", shared=False)
        holders = tuple(SemaphoreHolder("gate", "b", "unit", build) for build in builds)
        (written,) = await store.commit([], [address.put(SemaphoreRecord(holders))])
        assert written is not None
        await context.mirror.reached(written.path, written.version)
        tenant = SimpleNamespace(name="t", semaphores=())
        landed = SimpleNamespace(landed=SimpleNamespace(semaphores={}))
        configuration = SimpleNamespace(tenant=tenant, layouts=landed)  # only this is read of it
        semaphores = Semaphores(context, cast(Any, configuration), "gate")
        for commit in packed(semaphores.holding(State(), State(), {}, (), settled=True)):
            await store.commit(commit.checks, commit.ops)
        entry = await store.get(address.path)
        assert entry is None or address.decode(entry.value).holders == ()
        assert not await store.list(map.executor.unzoned.requests.path)
        assert not await store.list(map.executor.unzoned.params.path)
        await end(mirror)

    run_virtual(main())
