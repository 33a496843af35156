"""Test coordination on a store in memory, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate.recipes import blob
from headgate.recipes.backlog import Backlog
from headgate.recipes.calls import call
from headgate.recipes.claims import Claim
from headgate.recipes.codec import decode, encode
from headgate.recipes.line import line
from headgate.recipes.lock import lock, read_lock, semaphore, write_lock
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Request, RequestPlaces
from headgate.recipes.requests import Requests
from headgate.recipes.stream import Stream, consumed
from headgate.store.memory import MemoryBackend, Staged
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import Conflict, Delete, Lease, Put, SessionLost
from headgate.testing.clock import run_virtual

PLACES = RequestPlaces("/q/requests", "/q/locks", "/q/params", "/q/result-data", "/q/results", "/q/waiters")


def waiting(requests: Requests, mirror: Mirror) -> list[Open]:
    backlog = Backlog(requests, mirror)
    backlog.look()
    return list(line([backlog]))


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def test_a_lock_is_exclusive_and_fair() -> None:
    async def main() -> None:
        store, order = Store(MemoryBackend()), list[int]()

        async def worker(n: int, session: Session) -> None:
            async with lock(store, session, "/l").hold():
                order.append(n)
                await asyncio.sleep(1)

        async with store.session("me") as session, asyncio.TaskGroup() as group:
            for n in range(5):
                group.create_task(worker(n, session))
                await asyncio.sleep(0)
        assert order == [0, 1, 2, 3, 4] and not await store.list("/l")

    virtual(main())


def test_readers_share_and_writers_are_alone() -> None:
    async def main() -> None:
        store, inside, peak = Store(MemoryBackend()), {"r": 0, "w": 0}, {"r": 0}

        async def enter(kind: str, session: Session) -> None:
            line = (read_lock if kind == "r" else write_lock)(store, session, "/l")
            async with line.hold():
                inside[kind] += 1
                peak["r"] = max(peak["r"], inside["r"])
                assert inside["w"] == 0 or inside == {"r": 0, "w": 1}
                await asyncio.sleep(1)
                inside[kind] -= 1

        async with store.session("me") as session, asyncio.TaskGroup() as group:
            for kind in "rrwrrwr":
                group.create_task(enter(kind, session))
                await asyncio.sleep(0)
        assert peak["r"] == 2

    virtual(main())


def test_a_semaphore_has_so_many_places() -> None:
    async def main() -> None:
        store, now, peak = Store(MemoryBackend()), 0, 0

        async def enter(session: Session) -> None:
            nonlocal now, peak
            async with semaphore(store, session, "/s", permits=3).hold():
                now += 1
                peak = max(peak, now)
                await asyncio.sleep(1)
                now -= 1

        async with store.session("me") as session, asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(enter(session))
        assert peak == 3

    virtual(main())


class Faulty(MemoryBackend):
    """Imitate a backend that renews nothing, for a reason that no store has."""

    async def keep_alive(self, lease: Lease) -> None:
        raise ValueError("an answer that nobody expects")


def test_a_session_that_a_faulty_backend_does_not_renew_ends_before_its_lease() -> None:
    async def main() -> None:
        loop, store = asyncio.get_running_loop(), Store(Faulty())
        begun_s = loop.time()
        with pytest.raises(SessionLost):
            async with store.session("me", ttl_s=9):
                await asyncio.sleep(100)
        assert 5 < loop.time() - begun_s < 9

    virtual(main())


def test_a_holder_that_lost_its_session_is_stopped_and_its_guard_refused() -> None:
    async def main() -> None:
        backend = MemoryBackend()
        store, guards = Store(backend), []
        with pytest.raises(SessionLost):
            async with store.session("me", ttl_s=3) as session, lock(store, session, "/l").hold() as guard:
                guards.append(guard)
                await backend.revoke(session.lease)
                await asyncio.sleep(60)
        with pytest.raises(GuardLost):
            await store.commit([], [Put("/x", b"")], guards=guards)
        assert await store.get("/x") is None

    virtual(main())


def test_a_store_that_ignores_guards_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Staged.commit
    monkeypatch.setattr(Staged, "commit", lambda self, checks, ops: real(self, (), ops))
    with pytest.raises(pytest.fail.Exception, match="GuardLost"):
        test_a_holder_that_lost_its_session_is_stopped_and_its_guard_refused()


@pytest.mark.parametrize("size", [0, 10, 5_000, 1_500_000])
def test_a_blob_of_any_size_is_switched_in_one_step(size: int) -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        first, second = bytes(range(256)) * (size // 256), b"second"
        await blob.write(store, "/b", first)
        assert await blob.read(store, "/b") == first
        await blob.write(store, "/b", second)
        assert await blob.read(store, "/b") == second and len(await store.list("/b")) == 1

    virtual(main())


def test_an_event_is_consumed_in_the_consumers_own_commit() -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        stream, mirror = Stream("/e/queue", "/e/data", int), Mirror(store, "/e")
        task = asyncio.ensure_future(mirror.run())
        for n in range(3):
            await store.commit([], stream.append(n))
        await mirror.ready()
        while stream.length(mirror) < 3:
            await mirror.moved(mirror.moves)
        waiting = stream.waiting(mirror, limit=2)
        assert [event.event for event in waiting] == [0, 1]
        await store.commit([], [*consumed(waiting), Put("/done", b"")])
        await mirror.gone(waiting[-1].entry)
        assert [event.event for event in stream.waiting(mirror, limit=9)] == [2]
        task.cancel()

    virtual(main())


class Office:
    """Submitters and workers of one queue."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.store = Store(self.backend)
        self.requests = Requests(self.store, PLACES)
        self.mirror = Mirror(self.store, "/q")
        self.task = asyncio.ensure_future(self.mirror.run())

    async def submit(self, id: str, precedence: int = 200) -> None:
        await self.store.commit([], self.requests.submit(Request(id, precedence), b'"params"'))
        await self.mirror.reached(f"{PLACES.requests}/{id}")


def test_the_most_urgent_request_goes_to_one_worker() -> None:
    async def main() -> None:
        office = Office()
        await office.submit("later")
        await office.submit("urgent", 100)
        async with office.store.session("one") as one, office.store.session("two") as two:
            found = waiting(office.requests, office.mirror)[0]
            claims = [await office.requests.claim(found, session) for session in (one, two)]
            assert found.request.id == "urgent" and claims[0] is not None and claims[1] is None
            assert await claims[0].params(office.mirror) == b'"params"'
            assert await claims[0].complete([Put("/answer", b"")])
            assert [e.path for e in await office.store.list("/q")] == ["/q/params/later", "/q/requests/later"]
        office.task.cancel()

    virtual(main())


def test_a_dead_workers_request_is_free_again_and_its_late_answer_refused() -> None:
    async def main() -> None:
        office = Office()
        await office.submit("r")
        lease = await office.backend.grant(5)
        dead = await office.requests.claim(waiting(office.requests, office.mirror)[0], Session(lease, "dead"))
        assert dead is not None
        await office.mirror.reached(f"{PLACES.locks}/r")
        await office.backend.revoke(lease)
        await office.mirror.gone(f"{PLACES.locks}/r")
        async with office.store.session("alive") as session:
            claim = await office.requests.claim(waiting(office.requests, office.mirror)[0], session)
            assert claim is not None
            with pytest.raises(Conflict):
                await dead.complete([Put("/answer", b"late")])
            assert await claim.complete([Put("/answer", b"right")])
        entry = await office.store.get("/answer")
        assert entry is not None and entry.value == b"right"
        office.task.cancel()

    virtual(main())


def test_a_cancelled_request_is_withdrawn_or_its_worker_learns_of_it() -> None:
    async def main() -> None:
        office = Office()
        await office.submit("free")
        await office.submit("taken")
        async with office.store.session("one") as session:
            by_id = {found.request.id: found for found in office.requests.open(office.mirror)}
            claim = await office.requests.claim(by_id["taken"], session)
            assert claim is not None
            while not {f.request.id: f for f in office.requests.open(office.mirror)}["taken"].locked:
                await office.mirror.moved(office.mirror.moves)
            for found in office.requests.open(office.mirror):
                checks, ops = office.requests.cancel(found)
                await office.store.commit(checks, ops)
            await office.mirror.gone(f"{PLACES.requests}/free")
            while claim.wanted(office.mirror) != "cancel":
                await office.mirror.moved(office.mirror.moves)
            assert await claim.complete([Delete("/nothing")])
        office.task.cancel()

    virtual(main())


def test_a_request_whose_worker_died_ends_when_it_is_cancelled() -> None:
    """Perhaps no other worker ever takes it: all are busy, or there is no other."""

    async def main() -> None:
        office = Office()
        await office.submit("r")
        async with office.store.session("one") as session:
            claim = await office.requests.claim(waiting(office.requests, office.mirror)[0], session)
            assert claim is not None
            await office.mirror.reached(f"{PLACES.locks}/r")
        await office.mirror.gone(f"{PLACES.locks}/r")
        (found,) = office.requests.open(office.mirror)
        assert (found.request.state, found.locked) == ("running", False)
        checks, ops = office.requests.cancel(found)
        async with office.store.session("two") as other:
            taken = await office.requests.claim(found, other)
            assert taken is not None
            with pytest.raises(Conflict):
                await office.store.commit(checks, ops)
            await taken.release()
        await office.mirror.gone(f"{PLACES.locks}/r")
        (found,) = office.requests.open(office.mirror)
        await office.store.commit(*office.requests.cancel(found))
        await office.mirror.gone(f"{PLACES.requests}/r")
        assert not await office.store.list(PLACES.params)
        office.task.cancel()

    virtual(main())


async def paused(office: Office, session: Session) -> Claim:
    await office.submit("r")
    claim = await office.requests.claim(waiting(office.requests, office.mirror)[0], session)
    assert claim is not None
    await office.mirror.reached(f"{PLACES.locks}/r")
    assert await claim.pause([Put("/word", b"")]) == "run" and await office.store.get("/word")
    while office.requests.open(office.mirror)[0].request.state != "paused":
        await office.mirror.moved(office.mirror.moves)
    return claim


def test_a_worker_pauses_until_the_submitter_resumes_it() -> None:
    async def main() -> None:
        office = Office()
        async with office.store.session("one") as session:
            claim = await paused(office, session)
            check, op = office.requests.resume(office.requests.open(office.mirror)[0])
            await office.store.commit([check], [op])
            while claim.wanted(office.mirror) != "resume":
                await office.mirror.moved(office.mirror.moves)
            assert await claim.pause([Put("/again", b"")]) == "resume"
            assert await office.store.get("/again") is None, "there is no use in pausing any more"
            assert await claim.complete([])
        office.task.cancel()

    virtual(main())


@pytest.mark.parametrize("way", ["lost", "handed back"])
def test_a_claimed_request_shows_that_a_worker_that_died_had_paused_it(way: str) -> None:
    async def main() -> None:
        office = Office()
        async with office.store.session("one") as session:
            claim = await paused(office, session)
            if way == "handed back":
                await claim.release()
        await office.mirror.gone(f"{PLACES.locks}/r")
        async with office.store.session("two") as session:
            taken = await office.requests.claim(waiting(office.requests, office.mirror)[0], session)
            assert taken is not None and taken.request.state == "paused"
        office.task.cancel()

    virtual(main())


def test_a_caller_gets_the_result_and_leaves_nothing() -> None:
    async def main() -> None:
        office = Office()

        async def work(session: Session) -> None:
            while not (found := waiting(office.requests, office.mirror)):
                await office.mirror.moved(office.mirror.moves)
            claim = await office.requests.claim(found[0], session)
            assert claim is not None
            await claim.complete([], b"result" * 200_000)

        async with office.store.session("caller") as session:
            worker = asyncio.ensure_future(work(session))
            assert await call(office.requests, session, b"{}", precedence=1, meta={}) == b"result" * 200_000
            await worker
            assert not await office.store.list("/q")
        office.task.cancel()

    virtual(main())


def test_large_parameters_come_with_their_request_and_they_and_results_leave_nothing() -> None:
    large = random.Random(1).randbytes(1_000_000)

    async def main() -> None:
        office = Office()
        for piece in office.requests.submit(Request("r"), large):
            await office.store.commit([], [piece])
        await office.mirror.reached(f"{PLACES.requests}/r")
        async with office.store.session("one") as session:
            claim = await office.requests.claim(waiting(office.requests, office.mirror)[0], session)
            assert claim is not None
            reads = office.store.counts.reads
            assert await claim.params(office.mirror) == large
            assert office.store.counts.reads == reads, "the mirror that showed the request has them"
            unseeing = Mirror(office.store, "/q")
            assert await claim.params(unseeing) == large, "they are asked for where they are not seen"
            assert await claim.complete([Put("/event", b"names r")], large)
        assert {e.path.split("/")[2] for e in await office.store.list("/q")} == {"result-data"}
        found = await blob.taken(office.store, claim.result_path)
        assert found is not None and found[0] == large
        await office.store.commit([], [Delete("/event"), *found[1]])
        assert not await office.store.list("/q")
        office.task.cancel()

    virtual(main())


def test_a_record_survives_large_and_small_and_damage_is_reported() -> None:
    for value in ("x", "x" * 10_000):
        assert decode(encode(value), str) == value
    with pytest.raises(ValueError, match="damaged"):
        decode(encode("x" * 10_000)[:-5], str)
