"""Test lost answers, and requests that arrive although nobody waits for them any more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

import headgate.recipes.claims
from headgate.base.tasks import end
from headgate.recipes.backlog import Backlog
from headgate.recipes.calls import call
from headgate.recipes.codec import decode
from headgate.recipes.line import line
from headgate.recipes.lock import LockLine, lock
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, Request, RequestPlaces
from headgate.recipes.requests import Requests
from headgate.store.memory import MemoryBackend
from headgate.store.store import GIVES_UP_S, Session, Store
from headgate.store.types import At, Backend, Delete, Entry, Lease, Op, Put, Unavailable, Unwritable
from headgate.testing.backends import WrappedBackend
from headgate.testing.clock import run_virtual

T = TypeVar("T")
PLACES = RequestPlaces("/q/requests", "/q/locks", "/q/params", "/q/result-data", "/q/results", "/q/waiters")


def waiting(requests: Requests, mirror: Mirror) -> list[Open]:
    backlog = Backlog(requests, mirror)
    backlog.look()
    return list(line([backlog]))


class Slow(WrappedBackend):
    """Let each commit take a second to arrive, whatever happens to its sender."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        async def late() -> Sequence[Entry | None]:
            await asyncio.sleep(1)
            return await self.inner.commit(checks, ops)

        return await asyncio.shield(asyncio.ensure_future(late()))


class Forgetful(WrappedBackend):
    """Refuse the next commits before they take effect, or lose their answers afterwards."""

    fates: tuple[str, ...] = ()

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        fate, self.fates = (self.fates[0], self.fates[1:]) if self.fates else ("answered", ())
        if fate == "refused":
            raise Unavailable("the connection broke before the commit was sent")
        written = await self.inner.commit(checks, ops)
        if fate == "unanswered":
            raise Unavailable("the connection broke before the answer came")
        return written


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


class Full(WrappedBackend):
    """Refuse all writes once the disk is full, but renew sessions."""

    full = False

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        if self.full:
            raise Unwritable("the disk is full")
        return await self.inner.commit(checks, ops)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_full_disk_delays_the_end_of_a_process_and_costs_no_lock_before(stopped: bool) -> None:
    async def main() -> None:
        backend, stop = Full(MemoryBackend()), asyncio.Event()
        store, ended = Store(backend), asyncio.Event()

        async def hold() -> None:
            async with store.session("scheduler", stop=stop) as session, lock(store, session, "/l").hold():
                await stop.wait()
            ended.set()

        async def leave_early() -> None:
            async with store.session("scheduler", stop=stop) as session:
                async with lock(store, session, "/l").hold():
                    backend.full = True
                ended.set()

        running = asyncio.ensure_future(hold() if stopped else leave_early())
        await asyncio.sleep(60)
        backend.full = True
        if stopped:
            stop.set()
            async with asyncio.timeout(GIVES_UP_S + 5):
                await running
        else:
            assert not ended.is_set(), "the line would stop at an entry that nobody removes"
            backend.full = False
            async with asyncio.timeout(5):
                await running
            assert [entry for entry in await store.list("/l") if entry.path != "/l"] == []

    virtual(main())


def test_a_task_that_is_cancelled_while_it_joins_a_line_leaves_no_entry() -> None:
    async def main() -> None:
        backend = MemoryBackend()
        store = Store(Slow(backend))

        async def wait(session: Session) -> None:
            async with lock(store, session, "/l").hold():
                raise AssertionError("it is cancelled before it gets there")

        async with store.session("me") as session:
            waiter = asyncio.ensure_future(wait(session))
            await asyncio.sleep(0.5)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            async with asyncio.timeout(10), lock(store, session, "/l").hold():
                pass
        assert not backend.tree.under("/l")

    virtual(main())


def test_a_task_that_is_cancelled_twice_while_it_leaves_a_line_leaves_no_entry() -> None:
    async def main() -> None:
        backend = MemoryBackend()
        store = Store(Slow(backend))

        async def hold(session: Session) -> None:
            async with lock(store, session, "/l").hold():
                await asyncio.sleep(60)

        async with store.session("me") as session:
            holder = asyncio.ensure_future(hold(session))
            await asyncio.sleep(5)
            for _ in range(2):
                holder.cancel()
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            assert not backend.tree.under("/l")

    virtual(main())


def test_a_caller_cancelled_twice_while_its_session_ends_holds_no_lock() -> None:
    async def main() -> None:
        backend, ended = MemoryBackend(), list[bool]()
        store = Store(backend)

        async def errand() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(1)
                ended.append(True)

        async def live() -> None:
            async with store.session("me") as session:
                await store.commit([], [Put("/mine", b"", session.lease)])
                session.errand(errand())
                await asyncio.sleep(60)

        one = asyncio.ensure_future(live())
        await asyncio.sleep(5)
        for _ in range(2):
            one.cancel()
            await asyncio.sleep(0.1)
        await asyncio.gather(one, return_exceptions=True)
        assert ended and not backend.tree.under("/mine")

    virtual(main())


def test_a_session_that_is_cancelled_repeatedly_while_it_ends_still_revokes_its_lease() -> None:
    class Revokes(WrappedBackend):
        async def revoke(self, lease: Lease) -> None:
            await asyncio.sleep(1)
            await self.inner.revoke(lease)

    async def main() -> None:
        backend = MemoryBackend()
        store = Store(Revokes(backend))

        async def live() -> None:
            async with store.session("me") as session:
                await store.commit([], [Put("/mine", b"", session.lease)])
                await asyncio.sleep(60)

        one = asyncio.ensure_future(live())
        await asyncio.sleep(5)
        for _ in range(3):
            one.cancel()
            await asyncio.sleep(0.1)
        await asyncio.gather(one, return_exceptions=True)
        assert not backend.tree.under("/mine")

    virtual(main())


def test_a_claim_whose_answer_is_lost_is_made_once() -> None:
    async def main() -> None:
        for fates in (("unanswered",), ("refused",), ("refused", "unanswered")):
            backend = Forgetful(MemoryBackend())
            store = Store(backend)
            mirror, requests = Mirror(store, "/q"), Requests(store, PLACES)
            async with store.session("worker") as session:
                await store.commit([], requests.submit(Request("one"), b"{}"))
                keep = asyncio.ensure_future(mirror.run())
                await mirror.reached("/q/requests/one")
                backend.fates = fates
                claim = await requests.claim(waiting(requests, mirror)[0], session, {})
                assert claim is not None and await claim.complete([]), fates
                keep.cancel()
            assert not await store.list("/q"), fates

    virtual(main())


def test_a_result_that_nobody_waits_for_is_not_stored() -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        mirror, requests = Mirror(store, "/q"), Requests(store, PLACES)
        async with store.session("both") as session:
            keep = asyncio.ensure_future(mirror.run())
            caller = asyncio.ensure_future(call(requests, session, b"{}", precedence=1, meta={}))
            await mirror.ready()
            while not waiting(requests, mirror):
                await mirror.moved(mirror.moves)
            claim = await requests.claim(waiting(requests, mirror)[0], session, {})
            assert claim is not None
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
            assert await claim.complete([], b"the result")
            assert not await store.list("/q")
            keep.cancel()

    virtual(main())


class Leaves(WrappedBackend):
    """Call `leave` at the nth request to the store, before it takes effect or after."""

    def __init__(self, inner: Backend, at: int, *, before: bool) -> None:
        super().__init__(inner)
        self.left, self._before = at, before
        self.leave: Callable[[], object] = lambda: None

    async def get(self, path: str) -> Entry | None:
        return await self._step(lambda: self.inner.get(path))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._step(lambda: self.inner.list(prefix))

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self._step(lambda: self.inner.commit(checks, ops))

    async def _step(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.left -= 1
        if self.left == 0 and self._before:
            self.leave()
            await asyncio.sleep(1)
        try:
            return await asyncio.shield(ask())
        finally:
            if self.left == 0 and not self._before:
                self.leave()
                await asyncio.sleep(1)


async def leave_at(moment: int, *, before: bool) -> bool:
    """Whether that moment came."""
    backend = Leaves(MemoryBackend(), moment, before=before)
    store = Store(backend)
    mirror, requests = Mirror(store, "/q"), Requests(store, PLACES)

    async def work(session: Session) -> None:
        await mirror.ready()
        while not (found := waiting(requests, mirror)):
            await mirror.moved(mirror.moves)
        claim = await requests.claim(found[0], session, {})
        assert claim is not None
        await claim.complete([], random.Random(1).randbytes(1_000_000))

    async with store.session("both") as session:
        tasks = [asyncio.ensure_future(mirror.run()), asyncio.ensure_future(work(session))]
        caller = asyncio.ensure_future(call(requests, session, b"{}", precedence=1, meta={}))
        backend.leave = caller.cancel
        await asyncio.gather(caller, return_exceptions=True)
        await asyncio.sleep(60)
        came = backend.left <= 0
        assert not await store.list("/q"), f"left at request {moment}, {'before' if before else 'after'} it"
        await end(*tasks)
    return came


def test_whenever_a_caller_leaves_nothing_stays() -> None:
    async def main() -> None:
        for before in (True, False):
            moment = 1
            while await leave_at(moment, before=before):
                moment += 1
            assert moment > 10

    virtual(main())


@pytest.mark.parametrize("leaves", ["the caller", "the request"])
def test_pieces_of_a_large_result_are_removed_when_nobody_waits_for_it(
    leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headgate.recipes.claims, "OPS_MAX", 2)

    class Withdraws(WrappedBackend):
        async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
            written = await self.inner.commit(checks, ops)
            if any(entry is not None and "/result-data/one/" in entry.path for entry in written):
                gone = "/q/waiters/one" if leaves == "the caller" else "/q/requests/one"
                await self.inner.commit([], [Delete(gone)])
            return written

    async def main() -> None:
        backend = MemoryBackend()
        store = Store(Withdraws(backend))
        mirror, requests = Mirror(store, "/q"), Requests(store, PLACES)
        async with store.session("worker") as session:
            submitted = requests.submit(Request("one", waited=True), b"{}")
            await store.commit([], [*submitted, Put("/q/waiters/one", b"", session.lease)])
            keep = asyncio.ensure_future(mirror.run())
            await mirror.reached("/q/requests/one")
            claim = await requests.claim(waiting(requests, mirror)[0], session, {})
            assert claim is not None
            done = await claim.complete([], random.Random(1).randbytes(2_000_000))
            assert done == (leaves == "the caller")
            assert not await store.list("/q/result-data") and not await store.list("/q/locks")
            await end(keep)

    virtual(main())


def test_a_lost_answer_to_a_submission_is_one_request() -> None:
    async def main() -> None:
        backend = Forgetful(MemoryBackend())
        store = Store(backend)
        requests = Requests(store, PLACES)
        async with store.session("caller") as session:
            backend.fates = ("unanswered",)
            caller = asyncio.ensure_future(call(requests, session, b"{}", precedence=1, meta={}))
            await asyncio.sleep(5)
            (entry,) = await store.list("/q/requests")
            id = decode(entry.value, Request).id
            done = [Put(f"/q/result-data/{id}", b"answer"), Put(f"/q/results/{id}", b"ready")]
            await store.commit([], done)
            assert await caller == b"answer"

    virtual(main())


def test_the_tests_detect_a_caller_that_stays_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockLine, "_join", LockLine._enter)
    with pytest.raises(TimeoutError):
        test_a_task_that_is_cancelled_while_it_joins_a_line_leaves_no_entry()
