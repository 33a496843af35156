"""Test that a reset empties the store or says why not, whatever starts and writes at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headgate.map.places import Map
from headgate.map.records import Formats
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.membership import Membership
from headgate.services.reset import StoreInUse, reset_store
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import At, Entry, Op, Put
from tests.waiting import until

PLACE = Map().system.formats
ITEM = "/zuul/tenant/t/x"


class BusyBackend(MemoryBackend):
    """Run one function before a certain listing or commit, as another process would."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.counts = {"list": 0, "commit": 0}

    async def _count(self, verb: str) -> None:
        self.counts[verb] += 1
        if (work := self.before.pop(f"{verb} {self.counts[verb]}", None)) is not None:
            await work()

    async def list(self, prefix: str) -> Sequence[Entry]:
        await self._count("list")
        return await super().list(prefix)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        await self._count("commit")
        return await super().commit(checks, ops)

    async def write(self, *puts: Put) -> None:
        """Write like another process."""
        await MemoryBackend.commit(self, [], puts)

    @property
    def paths(self) -> list[str]:
        return sorted(self.tree.entries)


def every(_: Entry) -> bool:
    return True


def member(backend: MemoryBackend) -> tuple[Membership, Callable[[asyncio.Event], Awaitable[object]]]:
    """Return a component and what runs it."""
    context = Context(Store(backend), mirror := Mirror(Store(backend), Map().path), lambda: 0, ProcessSettings("m"))
    one = Membership(context, "executor")

    async def body(session: Session) -> None:
        await asyncio.Event().wait()

    async def run(stop: asyncio.Event) -> None:
        watching = asyncio.ensure_future(mirror.run())
        await one.serve(body, stop)
        watching.cancel()

    return one, run


async def test_entries_written_during_a_reset_are_deleted_too() -> None:
    backend = BusyBackend()
    await backend.write(Put(ITEM, b""), Put("/zuul/tenant/t", b""))
    backend.before["commit 2"] = lambda: backend.write(Put(f"{ITEM}/below", b""), Put("/zuul/other", b""))
    assert await reset_store(backend, every) == 4
    assert backend.paths == []


async def test_a_component_that_starts_meanwhile_joins_the_empty_store() -> None:
    backend, stop = BusyBackend(), asyncio.Event()
    await backend.write(Put(ITEM, b""))
    one, run = member(backend)
    messages, works = list[str](), list[asyncio.Future[object]]()

    async def start() -> None:
        works.append(asyncio.ensure_future(run(stop)))
        await until("the component waits", lambda: "reset" in one.problem)
        messages.append(one.problem)
        assert not one.joined.is_set()

    backend.before["list 3"] = start
    assert await reset_store(backend, every) == 1
    await until("the component joins", one.joined.is_set)
    assert ITEM not in backend.paths and PLACE.path not in backend.paths
    assert messages and "run it again" in messages[0]
    stop.set()
    await asyncio.gather(*works)


@pytest.mark.parametrize("before", [None, Formats(1)])
@pytest.mark.parametrize("when", ["list 1", "commit 1", "list 2"])
async def test_a_reset_is_refused_if_a_process_has_joined(when: str, before: Formats | None) -> None:
    backend = BusyBackend()
    await backend.write(Put(ITEM, b""), *([PLACE.put(before)] if before else []))
    lease = await backend.grant(30)
    backend.before[when] = lambda: backend.write(Put("/zuul/components/executor/x", b"", lease))
    with pytest.raises(StoreInUse, match="is using this store"):
        await reset_store(backend, every)
    entry = await backend.get(PLACE.path)
    assert (PLACE.decode(entry.value) if entry else None) == before
    assert ITEM in backend.paths


async def test_an_interrupted_reset_is_repeated() -> None:
    async def fail() -> None:
        raise OSError

    backend = BusyBackend()
    await backend.write(Put(ITEM, b""), PLACE.put(Formats(1)))
    backend.before["commit 2"] = fail
    with pytest.raises(OSError):
        await reset_store(backend, every)
    one, run = member(backend)
    stop = asyncio.Event()
    work = asyncio.ensure_future(run(stop))
    await until("the component waits", lambda: "reset" in one.problem)
    stop.set()
    await work
    assert await reset_store(backend, every) == 2
    assert backend.paths == []


async def test_a_reset_names_the_place_that_is_written_all_the_time() -> None:
    class Restless(BusyBackend):
        async def list(self, prefix: str) -> Sequence[Entry]:
            await self.write(Put("/zuul/inventory", b""))
            return await super().list(prefix)

    with pytest.raises(StoreInUse, match="/zuul/inventory"):
        await reset_store(Restless(), every)
