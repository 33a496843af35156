"""Test what happens only to a store across a network: interruptions, refusals, late requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from headgate.recipes.mirror import Mirror
from headgate.store.store import Store
from headgate.store.types import (
    Append,
    At,
    Conflict,
    Delete,
    Put,
    SessionLost,
    Snapshot,
    Unavailable,
)
from headgate.store.zookeeper.address import parse
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.store.zookeeper.session import attach
from headgate.store.zookeeper.wire.connection import (
    ZooKeeperConnectionLost,
    ZooKeeperLink,
    ZooKeeperSessionIdentity,
    ZooKeeperTraffic,
)
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.databases import ZooKeeper, chroot
from headgate.testing.servers.faults import Proxy, proxy
from headgate.testing.servers.program import free_ports
from tests.waiting import nothing_happens, slow, until


@pytest.fixture
def server(zookeeper_server: ZooKeeper) -> ZooKeeper:
    return zookeeper_server


@pytest.fixture
async def line(server: ZooKeeper) -> AsyncIterator[Proxy]:
    async with proxy(server.port) as between:
        yield between


@pytest.fixture
async def ours(server: ZooKeeper, line: Proxy) -> AsyncIterator[ZooKeeperBackend]:
    """Provide a backend behind `line`."""
    backend = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{line.port}{await chroot(server)}?session_s=4")
    yield backend
    await backend.close()


@pytest.fixture
async def theirs(server: ZooKeeper, ours: ZooKeeperBackend) -> AsyncIterator[ZooKeeperBackend]:
    """Provide a backend of the same tree that is not behind `line`."""
    backend = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}{ours.address.chroot}")
    yield backend
    await backend.close()


async def test_missed_changes_are_found_without_reading_the_other_entries(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy
) -> None:
    body = b"x" * 5_000
    for start in range(0, 200, 50):
        await theirs.commit([], [Put(f"/r/{n}", body) for n in range(start, start + 50)])
    watch = ours.watch("/r")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        await anext(watch)
        line.refuse()
        await theirs.commit([], [Put("/r/7", b"new"), Delete("/r/8"), Put("/r/cancel", b"")])
        await theirs.commit([], [Delete("/r/cancel"), Put("/r/9/below", b"fresh")])
        before = replace(ours.traffic)
        line.restore()
        async with asyncio.timeout(DEADLINE_S):
            snapshot = await anext(watch)
    assert isinstance(snapshot, Snapshot)
    assert {e.path: e for e in snapshot.entries} == {e.path: e for e in await theirs.list("/r")}
    assert ours.traffic.requests - before.requests <= 10
    assert ours.traffic.received_bytes - before.received_bytes < 60_000, "the other bodies are 990,000 bytes"


async def test_a_connection_that_breaks_is_not_noticed_by_readers(ours: ZooKeeperBackend, line: Proxy) -> None:
    await ours.commit([], [Put("/a", b"1")])
    line.cut()
    entry = await ours.get("/a")
    assert entry is not None and entry.value == b"1"


@pytest.mark.long
async def test_a_commit_without_an_answer_is_unknown_and_seen_when_read_again(
    ours: ZooKeeperBackend, line: Proxy
) -> None:
    await ours.commit([], [Put("/a", b"1")])
    line.deaf()
    with pytest.raises(Unavailable, match="unknown"):
        await ours.commit([], [Put("/a", b"2")])
    line.cut()
    line.restore()
    entry = await ours.get("/a")
    assert entry is not None and entry.value == b"2"


async def test_a_leased_commit_without_an_answer_is_settled_before_anything_is_read(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy
) -> None:
    lease = await ours.grant(10)
    await ours.commit([], [Append("/line", b"first")])
    line.deaf()
    joining = asyncio.ensure_future(ours.commit([], [Append("/line", b"ticket", lease)]))

    async def both() -> bool:
        return len(await theirs.list("/line")) >= 2

    await until("the ticket is there", both, every_s=0.01)
    line.cut()
    line.restore()
    with pytest.raises(Unavailable, match="unknown"):
        await joining
    assert [entry.value for entry in await ours.list("/line")] == [b"first", b"ticket"]
    await ours.commit([], [Append("/line", b"again", lease)])
    await ours.revoke(lease)


@pytest.mark.long
async def test_a_client_that_is_cut_off_loses_its_lease_and_its_guard(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy
) -> None:
    lease = await ours.grant(2)
    (mine,) = await ours.commit([], [Append("/lock", b"me", lease)])
    assert mine is not None
    line.refuse()
    watch = theirs.watch("/lock")
    async with aclosing(watch), asyncio.timeout(DEADLINE_S):  # type: ignore[type-var]  # an async generator
        async for change in watch:
            if change == Snapshot(()) or not await theirs.list("/lock"):
                break
    line.restore()
    with pytest.raises(Conflict):
        await ours.commit([At(mine.path, mine.version)], [Put("/a", b"late")])
    with pytest.raises(SessionLost):
        await ours.keep_alive(lease)


@pytest.mark.parametrize("leased", [False, True])
async def test_an_entry_that_was_created_again_does_not_count_as_the_earlier_one(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, leased: bool
) -> None:
    """ZooKeeper itself counts writes from zero again, and finds nothing wrong."""
    lease = await ours.grant(30) if leased else None
    (old,) = await ours.commit([], [Put("/a", b"same", lease)])
    (beside,) = await ours.commit([], [Put("/b", b"same", lease)])
    assert old is not None and beside is not None
    if lease is not None:
        await ours.revoke(lease)
    else:
        await theirs.commit([], [Delete("/a")])
    await theirs.commit([At("/a", None)], [Put("/a", b"same")])
    with pytest.raises(Conflict):
        await ours.commit([At("/a", old.version)], [Put("/c", b"late")])
    assert await ours.get("/c") is None


@pytest.mark.long
async def test_an_idle_store_sends_no_requests(ours: ZooKeeperBackend, theirs: ZooKeeperBackend) -> None:
    mirror = Mirror(Store(ours), "/r")
    running = asyncio.ensure_future(mirror.run())
    await mirror.ready()
    before = ours.traffic.requests
    pings = ours.traffic.pings
    await until("it is kept alive meanwhile", lambda: ours.traffic.pings >= pings + 2)
    assert ours.traffic.requests == before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_commit_and_its_reading_cost_one_request_each(ours: ZooKeeperBackend, theirs: ZooKeeperBackend) -> None:
    one, other = Mirror(Store(ours), "/r"), Mirror(Store(theirs), "/r")
    running = [asyncio.ensure_future(mirror.run()) for mirror in (one, other)]
    await asyncio.gather(one.ready(), other.ready())
    (first,) = await ours.commit([], [Put("/r/a/b", b"1")])
    assert first is not None
    await other.reached("/r/a/b", first.version)
    before = ours.traffic.requests, theirs.traffic.requests
    second, _ = await ours.commit([At("/r/a/b", first.version)], [Put("/r/a/b", b"2"), Put("/r/a/c", b"3")])
    assert second is not None
    await asyncio.gather(*(mirror.reached("/r/a/b", second.version) for mirror in (one, other)))
    assert ours.traffic.requests - before[0] == 1
    assert theirs.traffic.requests - before[1] <= 2, "two when the events of the commit come far apart"
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("steps", range(5))
async def test_a_task_that_is_cancelled_as_the_connection_comes_back_ends(
    ours: ZooKeeperBackend, line: Proxy, steps: int
) -> None:
    line.refuse()
    async with asyncio.timeout(DEADLINE_S):
        await until("it is cut off", lambda: ours._session.present is None, every_s=0)
        asking = asyncio.ensure_future(ours.get("/x"))
        await nothing_happens(asking.done, for_s=0.01)
        line.restore()
        await until("it is back", lambda: ours._session.present is not None, every_s=0)
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelling = asking.cancel()
        await asyncio.wait({asking})
    assert asking.cancelled() or not cancelling, "it would go on with what it holds no more"


async def test_a_write_between_the_first_read_and_the_end_of_a_reconnection_is_shown(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown although nothing happens afterwards."""
    mirror = Mirror(Store(ours), "/r")
    running = asyncio.ensure_future(mirror.run())
    await mirror.ready()
    attached = ours._session._attached

    async def slowly(link: ZooKeeperLink) -> None:
        await attached(link)
        await theirs.commit([], [Put("/r/a", b"1")])
        await until("it is told", lambda: not ours._views["/r"].settled("/r/a"), every_s=0)
        await slow(0.01)

    monkeypatch.setattr(ours._session, "_attached", slowly)
    line.cut()
    async with asyncio.timeout(DEADLINE_S):
        await mirror.reached("/r/a")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_entries_that_a_broken_connection_had_read_but_not_shown_are_read_again(
    ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be deleted meanwhile, and nobody is notified of the deletion of an entry that was never shown."""
    mirror = Mirror(Store(ours), "/r")
    running = asyncio.ensure_future(mirror.run())
    await mirror.ready()
    lease, view, attempts = await theirs.grant(30), ours._views["/r"], 0
    missed, show = view._missed, view._show

    async def changing(link: ZooKeeperLink, root: str) -> dict[str, Any]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await theirs.commit([], [Put("/r/held", b"1", lease)])
        else:
            await theirs.revoke(lease)
        return await missed(link, root)

    def breaking() -> None:
        if attempts == 1:
            raise ZooKeeperConnectionLost("it broke")
        show()

    monkeypatch.setattr(view, "_missed", changing)
    monkeypatch.setattr(view, "_show", breaking)
    line.cut()
    async with asyncio.timeout(DEADLINE_S):
        await until("it was read anew", lambda: attempts > 1 and view.current, every_s=0)
        await theirs.commit([], [Put("/r/a", b"1")])
        await mirror.reached("/r/a")
    assert mirror.get("/r/held") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_lost_connection_leaves_no_watches_on_the_servers(
    server: ZooKeeper, ours: ZooKeeperBackend, theirs: ZooKeeperBackend, line: Proxy
) -> None:
    mirror = Mirror(Store(ours), "/r")
    running = asyncio.ensure_future(mirror.run())
    for n in range(10):
        await theirs.commit([], [Put(f"/r/{n}/{m}", b"x") for m in range(50)])
    await mirror.reached("/r/9/49")
    before = _watches(server)
    for n in range(3):
        line.refuse()
        await theirs.commit([], [Delete(f"/r/{n}/0"), Put("/r/0/new", b"")])
        line.restore()
        await mirror.gone(f"/r/{n}/0")
    # each costs them memory, and there are as many as nodes
    await until("the server sees that the connections are gone", lambda: _watches(server) <= before, every_s=0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _watches(server: ZooKeeper) -> int:
    figures = dict(line.split("\t") for line in server.status("mntr").splitlines() if line.count("\t") == 1)
    return int(figures["zk_watch_count"])


async def test_an_error_of_all_servers_has_the_same_text_each_time() -> None:
    """Servers are tried in any order; the log repeats nothing that is already in it."""
    address = parse(f"zookeeper://{','.join(f'127.0.0.1:{port}' for port in free_ports(3))}")
    texts = set[str]()
    for _ in range(20):
        with pytest.raises(ZooKeeperConnectionLost, match="connection refused") as lost:
            await attach(address, ZooKeeperSessionIdentity(1_000), ZooKeeperTraffic(), lambda *_: None)
        texts.add(str(lost.value))
    assert len(texts) == 1
