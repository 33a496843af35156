"""Test semaphores that playbooks acquire through their executor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from headgate.gate.state.world import PATIENCE_MS, Waiter
from headgate.map.places import Map
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.contact import ClaimContact
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.testing.clock import run_virtual

PLACE = Map().semaphores("t").semaphore("printer").record
META = {"tenant": "t", "pipeline": "gate", "buildset": "set", "job": "job"}


class Shop:
    """Simulate running builds, and the one printer that they share."""

    def __init__(self) -> None:
        self.store = Store(MemoryBackend())
        self.context = Context(self.store, Mirror(self.store, Map().path), lambda: 0)
        self.log: list[str] = []

    async def build(self, session: Session, id: str, project: str = "ours") -> ClaimContact:
        builds = self.context.builds
        await self.store.commit([], builds.submit(Request(id, meta={**META, "project": project}), b"{}"))
        await self.context.mirror.reached(f"{builds.places.requests}/{id}")
        found = builds.find(id, self.context.mirror)
        assert found is not None
        claim = await builds.claim(found, session, {})
        assert claim is not None
        return ClaimContact(self.context, claim, asyncio.Event(), {"printer": 1}, lambda data, build: data)

    async def prints(self, contact: ClaimContact, go: asyncio.Event, limit_s: float = 100) -> None:
        id = contact.claim.request.id
        async with contact.holding(["printer"], contact.cancel, limit_s) as held:
            self.log.append(f"{id} {'prints' if held else 'gives up'}")
            if held:
                await go.wait()

    async def holders(self) -> list[str]:
        entry = await self.store.get(PLACE.path)
        return [holder.build for holder in PLACE.decode(entry.value).holders] if entry else []


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


async def opened(shop: Shop) -> asyncio.Task[None]:
    task = asyncio.ensure_future(shop.context.mirror.run())
    await shop.context.mirror.ready()
    return task


def test_a_second_playbook_waits_for_the_semaphore_and_is_woken() -> None:
    async def main() -> None:
        shop, go = Shop(), asyncio.Event()
        task = await opened(shop)
        async with shop.store.session("one") as session:
            one, two = await shop.build(session, "one"), await shop.build(session, "two")
            first = asyncio.ensure_future(shop.prints(one, go))
            await shop.context.mirror.reached(PLACE.path)
            second = asyncio.ensure_future(shop.prints(two, go))
            await asyncio.sleep(50)
            assert shop.log == ["one prints"] and await shop.holders() == ["one"]
            go.set()
            await asyncio.gather(first, second)
            assert shop.log == ["one prints", "two prints"] and await shop.holders() == []
        task.cancel()

    virtual(main())


def test_a_playbook_gives_up_a_semaphore_when_its_time_ends_or_it_is_cancelled() -> None:
    async def main() -> None:
        shop = Shop()
        task = await opened(shop)
        other = SemaphoreRecord((SemaphoreHolder("check", "set", "job"),))
        await shop.store.commit([], [PLACE.put(other)])
        await shop.context.mirror.reached(PLACE.path)
        async with shop.store.session("one") as session:
            one, two = await shop.build(session, "one"), await shop.build(session, "two")
            await shop.prints(one, asyncio.Event(), 5)
            two.cancel.set()
            await shop.prints(two, asyncio.Event())
        assert shop.log == ["one gives up", "two gives up"]
        entry = await shop.store.get(PLACE.path)
        assert entry is not None and PLACE.decode(entry.value) == other
        task.cancel()

    virtual(main())


def test_a_restarted_build_keeps_its_semaphore_places() -> None:
    async def main() -> None:
        shop, go = Shop(), asyncio.Event()
        go.set()
        task = await opened(shop)
        await shop.store.commit([], [PLACE.put(SemaphoreRecord((SemaphoreHolder("gate", "set", "job", "one"),)))])
        await shop.context.mirror.reached(PLACE.path)
        async with shop.store.session("two") as session:
            await shop.prints(await shop.build(session, "one"), go)
            assert shop.log == ["one prints"] and await shop.holders() == []
        task.cancel()

    virtual(main())


def test_a_worker_that_lost_its_claim_takes_nothing_and_is_stopped() -> None:
    async def main() -> None:
        shop = Shop()
        task = await opened(shop)
        with suppress(Exception):
            async with shop.store.session("one") as session:
                one = await shop.build(session, "one")
                await shop.store.backend.revoke(session.lease)
                await shop.prints(one, asyncio.Event())
                assert shop.log == ["one gives up"] and one.cancel.is_set() and one.lost
        assert shop.log == ["one gives up"] and await shop.holders() == []
        task.cancel()

    virtual(main())


def test_a_flood_of_one_project_delays_the_build_of_another_by_one_turn() -> None:
    async def main() -> None:
        shop, go = Shop(), asyncio.Event()
        task = await opened(shop)
        async with shop.store.session("one") as session:
            waiting = list[asyncio.Future[None]]()
            for number in range(20):
                flood = await shop.build(session, f"flood{number}", "theirs")
                waiting.append(asyncio.ensure_future(shop.prints(flood, go)))
                await asyncio.sleep(1)
            waiting.append(asyncio.ensure_future(shop.prints(await shop.build(session, "ours"), go)))
            await asyncio.sleep(1)
            go.set()
            await asyncio.gather(*waiting)
            assert len(shop.log) == 21 and shop.log.index("ours prints") <= 2, shop.log
            entry = await shop.store.get(PLACE.path)
            assert entry is not None and PLACE.decode(entry.value) == SemaphoreRecord(())
        task.cancel()

    virtual(main())


def test_an_unused_reserved_place_is_free_after_a_while() -> None:
    async def main() -> None:
        shop, go = Shop(), asyncio.Event()
        go.set()
        task = await opened(shop)
        gone = Waiter(1, "t", "a pipeline that nobody runs", "x")
        await shop.store.commit([], [PLACE.put(SemaphoreRecord((), (gone,)))])
        await shop.context.mirror.reached(PLACE.path)
        async with shop.store.session("one") as session:
            one = await shop.build(session, "one")
            await shop.prints(one, go, PATIENCE_MS / 1000 - 1)
            assert shop.log == ["one gives up"]
            await shop.prints(await shop.build(session, "two"), go, PATIENCE_MS / 1000 + 1)
            assert shop.log[1:] == ["two prints"]
            entry = await shop.store.get(PLACE.path)
            assert entry is not None and PLACE.decode(entry.value) == SemaphoreRecord(())
        task.cancel()

    virtual(main())
