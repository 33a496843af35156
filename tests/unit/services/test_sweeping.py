"""Test the remains of requests whose processes died at the wrong moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.map.places import Map
from headgate.recipes import blob
from headgate.recipes.claims import Claim
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.scheduler.leftovers import INTERVAL_S, ResultSweeper
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import Put
from headgate.testing.clock import run_virtual

LARGE = random.Random(1).randbytes(900_000)


RESULT = f"{Map().executor.unzoned.result_data.path}/r"


class Place:
    """Simulate a queue, its submitters and workers, and a sweeper."""

    def __init__(self, named: Collection[str] = ()) -> None:
        self.backend = MemoryBackend()
        self.store = Store(self.backend)
        self.context = Context(self.store, Mirror(self.store, Map().path), lambda: 0)
        self.requests, self.named = self.context.builds, named

    @asynccontextmanager
    async def swept(self) -> Any:
        lock = self.context.map.cleanup.build_requests.path
        async with self.store.session("scheduler") as session:
            tasks = [asyncio.ensure_future(self.context.mirror.run())]
            await self.context.mirror.ready()
            tasks.append(
                asyncio.ensure_future(
                    ResultSweeper(self.context, self.context.zones, lock, lambda: self.named).run(session)
                )
            )
            yield
            await asyncio.sleep(4 * INTERVAL_S)
            for task in tasks:
                task.cancel()

    async def claimed(self, session: Session, id: str) -> Claim:
        await self.context.mirror.reached(f"{self.requests.places.requests}/{id}")
        found = self.requests.find(id, self.context.mirror)
        assert found is not None
        claim = await self.requests.claim(found, session, {})
        assert claim is not None
        return claim

    async def left(self) -> set[str]:
        """Return the kinds of entries in the queue."""
        return {e.path.split("/")[4] for e in await self.store.list(Map().executor.unzoned.path)}


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def test_a_result_whose_caller_died_goes() -> None:
    async def main() -> None:
        place = Place()
        async with place.swept():
            caller = await place.backend.grant(5)
            waiter = Put(f"{place.requests.places.waiters}/r", b"", caller)
            await place.store.commit([], [waiter, *place.requests.submit(Request("r", waited=True), b"{}")])
            async with place.store.session("worker") as session:
                assert await (await place.claimed(session, "r")).complete([], LARGE)
            await place.backend.revoke(caller)
            assert await place.left() == {"results", "result-data"}
        assert not await place.left()

    virtual(main())


def test_pieces_of_a_result_that_was_never_answered_go() -> None:
    async def main() -> None:
        place = Place()
        async with place.swept():
            *pieces, _ = blob.ops(f"{place.requests.places.result_data}/gone", LARGE)
            await place.store.commit([], pieces[:1])
        assert not await place.left()

    virtual(main())


@pytest.mark.parametrize("by", ["request", "waiter", "event"])
def test_a_result_that_somebody_still_wants_stays(by: str) -> None:
    async def main() -> None:
        place = Place(named={RESULT} if by == "event" else ())
        async with place.swept():
            await place.store.commit([], blob.ops(f"{place.requests.places.result_data}/r", b"result"))
            if by == "request":
                await place.store.commit([], place.requests.submit(Request("r"), b"{}"))
            if by == "waiter":
                await place.store.commit([], [Put(f"{place.requests.places.waiters}/r", b"")])
        assert "result-data" in await place.left()

    virtual(main())
