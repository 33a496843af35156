"""Test etcd with late answers: a request never takes effect after it was looked for in vain."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from headgate.base.ids import fresh
from headgate.store.etcd import link as patience
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.etcd.commits import EtcdCommits
from headgate.store.etcd.link import LONG_S, SHORT_S, SLOW_FOR_S, Patience
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import Append, At, Delete, Put, SessionLost, Unavailable
from headgate.testing.servers.databases import Etcd
from headgate.testing.servers.faults import Proxy, proxy
from tests.waiting import slow, until

BRIEF_S = 0.1
APART_S = 0.02
"""Pause between the pieces of delayed data: etcd has performed a request when it learns that nobody waits for it any
more."""
SENT_S = 1.0
SILENCES = 10
DEADLINE_S = 120.0


@pytest.fixture
async def line(etcd_server: Etcd) -> AsyncIterator[Proxy]:
    async with proxy(etcd_server.port) as between:
        yield between


@pytest.fixture
async def backend(line: Proxy) -> AsyncIterator[EtcdBackend]:
    """Provide a backend behind `line`."""
    opened = await EtcdBackend.open(f"etcd://127.0.0.1:{line.port}/{fresh()}")
    await opened.commit([], [Delete("/none")])  # the first one raises its fence before it is sent
    yield opened
    line.restore()
    await opened.close()


@pytest.fixture
async def recording(etcd_server: Etcd, backend: EtcdBackend) -> AsyncIterator[EtcdBackend]:
    """Provide a backend of the same tree that is not behind `line`."""
    opened = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}{backend.address.root}")
    yield opened
    await opened.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SHORT_S", BRIEF_S)
    monkeypatch.setattr(patience, "SLOW_FOR_S", 0.0)


async def _written(backend: EtcdBackend, parent: str) -> Sequence[bytes]:
    async def listed() -> list[Sequence[bytes]]:
        try:
            return [[entry.value for entry in await backend.list(parent)]]
        except Unavailable:
            return []

    (found,) = await until("the store answers again", listed, every_s=BRIEF_S)
    return found


async def _weathered(backend: EtcdBackend, recording: EtcdBackend, line: Proxy, seed: int) -> None:
    """Append through a network that delays requests and answers, until this many went unanswered. Look for each entry
    whose commit was not confirmed, and make it again if it is absent. Raise AssertionError if an entry exists twice,
    or in another order."""
    chance, silences, values = random.Random(seed), 0, list[bytes]()

    async def change() -> None:
        while True:
            chance.choice((line.stall, line.deaf))()
            await slow(chance.uniform(1, 3) * BRIEF_S)
            line.restore()
            await slow(chance.uniform(1, 6) * BRIEF_S)

    weather = asyncio.ensure_future(change())
    line.latency_s = APART_S
    try:
        async with asyncio.timeout(DEADLINE_S):
            while silences < SILENCES:
                values.append(b"%d" % len(values))
                while True:
                    try:
                        await backend.commit([], [Append("/q", values[-1])])
                        break
                    except Unavailable:
                        silences += 1
                        if values[-1] in await _written(backend, "/q"):
                            break
    finally:
        weather.cancel()
    line.restore()
    line.latency_s = 0.0
    await _written(backend, "/q")
    await backend.commit([], [Put("/end", b"")])  # behind all that was held up
    assert await _written(recording, "/q") == values


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(2))
async def test_delayed_writes_are_made_once_and_in_order(
    backend: EtcdBackend, recording: EtcdBackend, line: Proxy, hasty: None, seed: int
) -> None:
    await _weathered(backend, recording, line, seed)


class Fenceless(EtcdCommits):
    """Treat everything as settled, whatever happened before."""

    async def settle(self) -> None:
        self._unsure = False


@pytest.mark.long
async def test_without_the_fence_a_late_commit_would_take_effect(
    backend: EtcdBackend, recording: EtcdBackend, line: Proxy, hasty: None
) -> None:
    backend._commits = Fenceless(backend._link, backend._keys)
    with pytest.raises(AssertionError, match="b'0', b'1'"):
        for seed in range(10):
            await _weathered(backend, recording, line, seed)


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "late"), [(EtcdCommits, []), (Fenceless, [b"late"])])
async def test_requests_of_a_process_that_has_ended_have_no_late_effect(
    etcd_server: Etcd, monkeypatch: pytest.MonkeyPatch, kind: type[EtcdCommits], late: list[bytes]
) -> None:
    """A late commit is in a network that nobody uses any more. It was sent before it was given up, and etcd performs
    it before it learns of that, however busy the machine is."""
    monkeypatch.setattr(patience, "SHORT_S", SENT_S)
    async with proxy(etcd_server.port) as one, proxy(etcd_server.port) as other:
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{one.port},127.0.0.1:{other.port}/{fresh()}")
        backend._commits = kind(backend._link, backend._keys)
        await backend.commit([], [Put("/before", b"")])
        used = (one, other)[backend._link._used]
        used.latency_s = SENT_S
        used.stall()
        with pytest.raises(Unavailable):
            await backend.commit([], [Append("/q", b"late")])
        assert await _written(backend, "/q") == [], "the other server says so"
        await backend.close()
        used.restore()
        recording = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}{backend.address.root}")
        await used.drained()
        assert await _written(recording, "/q") == late
        await recording.close()


async def test_an_expired_fence_is_raised_again(
    backend: EtcdBackend, recording: EtcdBackend, etcd_server: Etcd
) -> None:
    await backend._link.ask(
        "Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=backend._commits._lease), pb.LeaseRevokeResponse
    )
    (entry,) = await backend.commit([At("/a", None)], [Put("/a", b"1")])
    assert entry is not None and await recording.get("/a") == entry


@pytest.mark.long
async def test_a_store_that_is_only_slow_is_waited_for(
    backend: EtcdBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SHORT_S", BRIEF_S)
    line.latency_s = 2 * BRIEF_S
    attempts = 0
    for number in range(5):
        while True:
            attempts += 1
            try:
                await backend.commit([], [Append("/q", b"%d" % number)])
                break
            except Unavailable:
                if attempts > 20:
                    raise
    assert attempts <= 5 + 6, "after as many doublings as it takes, each one is answered"


async def test_however_many_are_under_way_one_silence_is_settled_once(
    backend: EtcdBackend, line: Proxy, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(number: int) -> int:
        for attempt in range(1, 20):
            with suppress(Unavailable):
                await backend.commit([], [Put(f"/a/{number}", b"")])
                return attempt
            monkeypatch.setattr(patience, "SHORT_S", LONG_S)  # there are no more silences, however busy the machine is
            line.restore()
        raise AssertionError("it was restored")

    line.stall()
    before = backend.traffic.requests
    attempts = await asyncio.gather(*(write(number) for number in range(30)))
    assert max(attempts) > 1
    assert backend.traffic.requests - before <= 30 + 2 * 30 + 10


async def test_a_lease_is_renewed_at_another_server_when_one_is_silent(etcd_server: Etcd, hasty: None) -> None:
    async with proxy(etcd_server.port) as one, proxy(etcd_server.port) as other:
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{one.port},127.0.0.1:{other.port}/{fresh()}")
        lease = await backend.grant(60)
        (one, other)[backend._link._used].stall()
        with pytest.raises(Unavailable, match="no answer for"):
            await backend.keep_alive(lease)
        await backend.keep_alive(lease)
        await backend.revoke(lease)
        with pytest.raises(SessionLost):
            await backend.keep_alive(lease)
        await backend.close()


def test_patience_grows_with_each_silence_and_with_the_size_of_a_request_and_shrinks_again() -> None:
    patience, waited = Patience(), list[float]()
    for _ in range(5):
        waited.append(patience.limit_s(0, now_s=0.0))
        patience.missed(waited[-1], now_s=0.0)
    assert waited == [SHORT_S, 2 * SHORT_S, 4 * SHORT_S, LONG_S, LONG_S]
    assert patience.limit_s(0, now_s=SLOW_FOR_S) == LONG_S
    assert patience.limit_s(0, now_s=SLOW_FOR_S + 1) == SHORT_S
    assert SHORT_S < patience.limit_s(100_000, now_s=SLOW_FOR_S + 1) <= LONG_S
    assert patience.limit_s(900_000, now_s=SLOW_FOR_S + 1) == LONG_S


def test_many_concurrent_timeouts_count_as_one() -> None:
    patience = Patience()
    limit_s = patience.limit_s(0, now_s=0.0)
    for _ in range(10):
        patience.missed(limit_s, now_s=0.0)
    assert patience.limit_s(0, now_s=0.0) == 2 * SHORT_S
