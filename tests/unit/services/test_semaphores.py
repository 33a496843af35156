"""Test semaphore places of builds whose executors died, and of semaphores that become global or cease to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from headgate.base.tasks import end
from headgate.config.model import FrozenJob, JobSemaphore
from headgate.gate.state.model import State
from headgate.map.places import Map, semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.services.scheduler.semaphores import Semaphores
from headgate.services.scheduler.turn import packed
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At, Op
from headgate.testing.clock import run_virtual
from headgate.testing.plays import Play

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


def test_a_turn_that_frees_more_places_than_one_commit_can_frees_them() -> None:
    """Its state has given them up before: they stay taken only while a turn has to write anything else."""

    async def main(moving: _Moving) -> None:
        places = [semaphore_of(moving.context.map, "t", f"s{n}", shared=False) for n in range(MANY)]
        for place in places:
            await moving.written([], [place.put(SemaphoreRecord((SemaphoreHolder("gate", "b", "unit"),)))])
        commits = packed(moving.semaphores.holding(State(), State(), {}, (), cut=True))
        assert len(commits) > 1
        for commit in commits:
            await moving.written(commit.checks, commit.ops)
        entries = [moving.context.mirror.get(place.path) for place in places]
        assert all(entry is None or places[0].decode(entry.value).holders == () for entry in entries)

    moving(main)


class _Moving:
    """One pipeline of a tenant whose semaphore `one` becomes global or ceases to be."""

    def __init__(self, context: Context) -> None:
        self.context, self.backend = context, context.store
        self.tenant = SimpleNamespace(name="t", semaphores={})
        landed = SimpleNamespace(landed=SimpleNamespace(semaphores={"one": 1}))
        configuration = SimpleNamespace(tenant=self.tenant, layouts=landed)  # only this is read of it
        self.layouts = cast(Any, landed)
        self.semaphores = Semaphores(context, cast(Any, configuration), "gate")

    async def turn(self, before: State, after: State, ended: Collection[str] = ()) -> None:
        """Record the semaphores of a turn, and wait until the mirror shows them."""
        for commit in packed(self.semaphores.holding(before, after, {}, ended, settled=True)):
            await self.written(commit.checks, commit.ops)

    async def put(self, *holders: SemaphoreHolder, shared: bool) -> None:
        await self.written([], [self.place(shared).put(SemaphoreRecord(holders))])

    async def written(self, checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Commit, and wait until the mirror shows what was written."""
        for entry in await self.context.store.commit(checks, ops):
            if entry is not None:
                await self.context.mirror.reached(entry.path, entry.version)

    def place(self, shared: bool) -> Address[SemaphoreRecord]:
        return semaphore_of(self.context.map, "t", "one", shared=shared)

    def holders(self, shared: bool) -> tuple[SemaphoreHolder, ...]:
        entry = self.context.mirror.get(self.place(shared).path)
        return self.place(shared).decode(entry.value).holders if entry else ()


def moving(main: Callable[[_Moving], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        mirror = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        await main(_Moving(context))
        await end(mirror)

    run_virtual(run())


def test_a_semaphore_that_becomes_global_and_ceases_to_be_takes_the_places_of_jobs_along() -> None:
    async def main(moving: _Moving) -> None:
        play = Play(FrozenJob(name="unit", semaphores=(JobSemaphore("one"),)))
        play.approve("A")
        play.merges()
        state, other = play.state, SemaphoreHolder("gate", "x", "unit", tenant="u")
        await moving.turn(State(), state)
        (own,) = moving.holders(shared=False)
        assert (own.pipeline, own.tenant) == ("gate", "")
        await moving.put(other, shared=True)
        moving.tenant.semaphores = {"one": 1}
        assert moving.semaphores.held(moving.layouts, state) == {"one": 1}, "that of the other tenant"
        await moving.turn(state, state)
        assert moving.holders(shared=False) == ()
        assert moving.holders(shared=True) == (other, replace(own, tenant="t"))
        moving.tenant.semaphores = {}
        assert moving.semaphores.held(moving.layouts, state) == {"one": 0}
        await moving.turn(state, state)
        assert moving.holders(shared=False) == (own,) and moving.holders(shared=True) == (other,)

    moving(main)


@pytest.mark.parametrize("shared", [False, True])
def test_the_place_of_a_cancelled_build_is_free_when_it_ends_even_if_its_semaphore_moved(shared: bool) -> None:
    async def main(moving: _Moving) -> None:
        build, tenant = "a" * 32, "t" if shared else ""
        requests = moving.context.zone("")
        await moving.context.store.commit([], requests.submit(Request(build, state="running", wanted="cancel"), b"{}"))
        async with moving.context.store.session("executor") as session:
            found = requests.find(build, moving.context.mirror)
            while found is None:
                await moving.context.mirror.moved(moving.context.mirror.moves)
                found = requests.find(build, moving.context.mirror)
            assert await requests.claim(found, session, {}) is not None
            await moving.put(SemaphoreHolder("gate", "b", "unit", build, tenant), shared=shared)
            moving.tenant.semaphores = {} if shared else {"one": 1}
            assert moving.semaphores.held(moving.layouts, State()) == {"one": 1}
            await moving.turn(State(), State())
            assert moving.semaphores.held(moving.layouts, State()) == {"one": 1} and not moving.holders(shared)
            await moving.turn(State(), State(), ended=[build])
        assert moving.semaphores.held(moving.layouts, State()) == {"one": 0}
        assert moving.holders(shared=True) == moving.holders(shared=False) == ()

    moving(main)


def test_a_playbook_of_a_running_build_keeps_its_place_where_its_executor_removes_it() -> None:
    async def main(moving: _Moving) -> None:
        play = Play(FrozenJob(name="unit"))
        play.approve("A")
        play.merges()
        (build,) = play.running
        holder = SemaphoreHolder("gate", "b", "unit", build)
        await moving.put(holder, shared=False)
        moving.tenant.semaphores = {"one": 1}
        await moving.turn(play.state, play.state)
        assert moving.holders(shared=False) == (holder,)
        assert moving.semaphores.held(moving.layouts, play.state) == {"one": 1}
        await moving.turn(play.state, State(), ended=[build])
        assert moving.holders(shared=False) == moving.holders(shared=True) == ()

    moving(main)
