"""Test that records of removed connections, buildsets and machine requests are removed, and not too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import msgspec

from headgate.base.tasks import end
from headgate.gate.state.change import Change, EventKind, TriggerEvent
from headgate.gate.state.world import Waiter
from headgate.map.inventory.nodes import NodeAnswer, NodeRequest
from headgate.map.places import Map
from headgate.map.records import BranchCache, SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.scheduler.leftovers import (
    CONNECTION_LOOKS,
    INTERVAL_S,
    Disconnected,
    Forsaken,
    ResultSweeper,
    Unasked,
)
from headgate.services.shares import publish_once
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Entry, Put
from headgate.testing.clock import run_virtual
from headgate.testing.lawful import LawfulBackend, Laws

EVERYBODY = frozenset({"scheduler", "launcher", "executor", "web"})
MAP = Map()


@dataclass
class Place:
    """Provide a store under the rules of the map, and an observer."""

    store: Store = field(default_factory=lambda: Store(LawfulBackend(MemoryBackend(), Laws("/zuul"), EVERYBODY)))
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.context = Context(self.store, Mirror(self.store, MAP.path), lambda: 0)

    @asynccontextmanager
    async def swept(self, sweeper: Callable[[Context], ResultSweeper]) -> AsyncIterator[None]:
        async with self.store.session("scheduler") as session:
            mirror = asyncio.ensure_future(self.context.mirror.run())
            await self.context.mirror.ready()
            sweep = asyncio.ensure_future(sweeper(self.context).run(session))
            yield
            await end(sweep, mirror)

    async def names(self, path: str) -> set[str]:
        return {e.path.removeprefix(f"{path}/").split("/")[0] for e in await self.store.list(path) if e.lease is None}

    async def put(self, *puts: tuple[Address[object], object]) -> None:
        await self.store.commit([], [address.put(value) for address, value in puts])


def of_connections(context: Context) -> ResultSweeper:
    gone = Disconnected(context, {"here"})
    return ResultSweeper(context, lambda: [gone], MAP.cleanup.connection.path, looks=CONNECTION_LOOKS, locks=gone.locks)


async def watched(place: Place, name: str) -> None:
    """Return the records of a connection."""
    branches, event = (
        MAP.cache.connection(name).branches,
        TriggerEvent(id="e", kind=EventKind.PROPOSED, change=Change(name, "p", "master")),
    )
    async with (
        place.store.session("scheduler") as session,
        lock(place.store, session, branches.lock.path).hold() as guard,
    ):
        heads = branches.data.encode(BranchCache({"p": {"refs/heads/master": "1"}}))
        ops = MAP.events.connection(name).events.stream.append(event)
        await place.store.commit([], [Put(f"{branches.data.path}", heads), *ops], guards=[guard])


def test_records_of_a_removed_connection_are_deleted_after_an_hour() -> None:
    async def main() -> None:
        place = Place()
        async with place.swept(of_connections):
            await watched(place, "here")
            await watched(place, "gone / now")
            await asyncio.sleep(INTERVAL_S * (CONNECTION_LOOKS - 2))
            assert await place.names(MAP.cache.connection.path) == {"here", "gone%20%2F%20now"}
            await asyncio.sleep(INTERVAL_S * 4)
            assert await place.names(MAP.cache.connection.path) == {"here"}
            assert await place.names(MAP.events.connection.path) == {"here"}

    run_virtual(main())


def test_data_of_many_removed_connections_is_deleted_in_several_commits() -> None:
    async def main() -> None:
        place, names = Place(), [f"gone{n}" for n in range(45)]
        async with place.swept(of_connections):
            for name in names:
                await watched(place, name)
            await asyncio.sleep(INTERVAL_S * (CONNECTION_LOOKS + 8))
            assert not await place.names(MAP.cache.connection.path)
            assert not await place.names(MAP.events.connection.path)

    run_virtual(main())


def test_a_connection_that_others_watch_is_theirs_whatever_our_settings_say() -> None:
    async def main() -> None:
        place, election = Place(), MAP.events.connection("theirs").events.election
        async with place.swept(of_connections), place.store.session("other") as session:
            await watched(place, "theirs")
            async with lock(place.store, session, election.path).hold():
                await asyncio.sleep(INTERVAL_S * (CONNECTION_LOOKS + 4))
                assert await place.names(MAP.cache.connection.path) == {"theirs"}
            await asyncio.sleep(INTERVAL_S * (CONNECTION_LOOKS + 4))
            assert not await place.names(MAP.cache.connection.path)

    run_virtual(main())


def test_records_of_a_connection_are_not_deleted_while_a_process_leads_it() -> None:
    """A process that registered right before the last poll is not visible in it, but is in the line."""

    async def main() -> None:
        place = Place()
        async with place.store.session("other") as session:
            await watched(place, "theirs")
            sweeper, gone = of_connections(place.context), Disconnected(place.context, set())
            entries = await place.store.list(MAP.cache.connection.path)
            due = [entry for entry in entries if entry.lease is None]
            guard = MAP.cleanup.connection.path
            async with lock(place.store, session, guard).hold() as ours:
                async with lock(place.store, session, gone.locks(due[0])[0]).hold():
                    await sweeper._remove(due, session, ours)
                assert await place.names(MAP.cache.connection.path) == {"theirs"}
                await sweeper._remove(due, session, ours)
                assert not await place.names(MAP.cache.connection.path)

    run_virtual(main())


def test_an_answer_is_deleted_once_nobody_waits_for_it() -> None:
    async def main() -> None:
        place, nodes = Place(), MAP.nodes
        async with place.swept(lambda c: ResultSweeper(c, lambda: [Unasked(c)], MAP.cleanup.node_request.path)):
            async with place.store.session("executor") as session:
                request = NodeRequest("1", "t", "p", "b", "j", (), "host")
                ask = Put(nodes.requests("1").record.path, msgspec.json.encode(request), session.lease)
                answers = [nodes.answers(id).record.put(NodeAnswer(id)) for id in "12"]
                await place.store.commit([], [ask, *answers])
                await asyncio.sleep(3 * INTERVAL_S)
                assert await place.names(nodes.answers.path) == {"1"}
            await asyncio.sleep(4 * INTERVAL_S)
            assert not await place.names(nodes.answers.path)

    run_virtual(main())


def test_only_places_of_ended_buildsets_and_removed_pipelines_are_taken_from_a_semaphore() -> None:
    async def main() -> None:
        place, pipeline = Place(), MAP.tenant("t").pipeline("gate")
        async with place.swept(of_semaphores):
            own = MAP.locks.pipeline("t").pipeline("gate").path
            async with place.store.session("s") as session, lock(place.store, session, own).hold() as guard:
                old = pipeline.item("i").buildset("old").repo_state.path  # whose builds continue
                spared = [pipeline.record.path, pipeline.item("i").buildset("b").record.path, old]
                await place.store.commit([], [Put(path, b"{}") for path in spared], guards=[guard])
            here, gone = (
                SemaphoreHolder("gate", "b", "j", tenant="t"),
                SemaphoreHolder("gate", "other", "j", tenant="t"),
            )
            goes_on = SemaphoreHolder("gate", "old", "j", tenant="t")
            waits, left = Waiter(1, "t", "gate", "p"), Waiter(2, "t", "nobody's", "p")
            shared, own = MAP.global_semaphores.semaphore("s").record, MAP.semaphores("t").semaphore("s").record
            await place.put(
                (shared, SemaphoreRecord((here, goes_on, gone), (waits, left))), (own, SemaphoreRecord((gone,)))
            )
            await asyncio.sleep(4 * INTERVAL_S)
            (entry,) = await place.store.list(MAP.global_semaphores.path)
            assert shared.decode(entry.value) == SemaphoreRecord((here, goes_on), (waits,))
            assert not await place.store.list(MAP.semaphores.path)

    run_virtual(main())


def of_semaphores(context: Context) -> ResultSweeper:
    forsaken = Forsaken(context)
    return ResultSweeper(context, lambda: [forsaken], MAP.cleanup.sempahores.path, mended=forsaken.mended)


def test_an_unreadable_semaphore_is_left_to_the_turns_which_write_it_again() -> None:
    place = Place()
    entry = Entry(MAP.semaphores("t").semaphore("s").record.path, b"\xff{", 1, 1, None)
    assert Forsaken(place.context)._remaining(entry) is None


def test_one_process_reports_metrics_of_the_system_and_the_next_takes_over() -> None:
    async def main() -> None:
        place, couriers = Place(), list[str]()

        def of(name: str) -> asyncio.Task[None]:
            @contextmanager
            def courier(map: Map, mirror: Mirror):
                couriers.append(name)
                try:
                    yield
                finally:
                    couriers.remove(name)

            async def stands() -> None:
                async with place.store.session(name) as session:
                    await publish_once(place.context, courier, session)

            return asyncio.ensure_future(stands())

        first = of("s1")
        await asyncio.sleep(1)
        others = [of("s2"), of("web")]
        await asyncio.sleep(60)
        assert couriers == ["s1"]
        first.cancel()
        await asyncio.sleep(60)
        assert len(couriers) == 1 and couriers != ["s1"]
        await end(first, *others)

    run_virtual(main())
