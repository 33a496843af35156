"""Test what the pages tell of the holders of a semaphore."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from headgate.base.tasks import end
from headgate.map.places import Map, semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual
from headgate.web.shapes import HolderShape
from headgate.web.status import Status


def test_a_cancelled_build_is_ending_until_its_place_is_free() -> None:
    async def main() -> None:
        map, store = Map(), Store(MemoryBackend())
        context = Context(store, Mirror(store, map.path), lambda: 0)
        mirror = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        for build, wanted in (("a" * 32, "cancel"), ("b" * 32, "run")):
            await store.commit([], context.zone("").submit(Request(build, state="running", wanted=wanted), b"{}"))
        holders = (
            SemaphoreHolder("gate", "s1", "unit", "a" * 32),
            SemaphoreHolder("gate", "s2", "deploy", "b" * 32),
            SemaphoreHolder("gate", "s3", "unit"),
            SemaphoreHolder("gate", "s4", "unit", "c" * 32),
        )
        address = semaphore_of(map, "t", "one", shared=False)
        (written,) = await store.commit([], [address.put(SemaphoreRecord(holders))])
        assert written is not None
        await context.mirror.reached(written.path, written.version)
        layouts = SimpleNamespace(landed=SimpleNamespace(semaphores={"one": 4}))
        configured = SimpleNamespace(tenant=SimpleNamespace(semaphores={}), layouts=layouts)  # only this is read of it
        (shown,) = Status(context, {"t": cast(Any, configured)}).semaphores("t")
        assert shown.holders.count == 4
        assert shown.holders.this_tenant == (
            HolderShape("s1", "unit", ending=True),
            HolderShape("s2", "deploy"),
            HolderShape("s3", "unit"),
            HolderShape("s4", "unit"),
        )
        await end(mirror)

    run_virtual(main())
