"""etcd, held to the same suite as the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headgate.base.ids import fresh
from headgate.store.etcd.address import parse
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend, Put, StoreError, Unavailable
from headgate.testing.conformance import Conformance, Gap
from headgate.testing.servers.etcd import Etcd
from headgate.testing.servers.proxy import Proxy, proxy
from headgate.testing.stores.machine import Run, Subject, machine


def url(port: int) -> str:
    """A tree of its own."""
    return f"etcd://127.0.0.1:{port}/{fresh()}"


@pytest.fixture
async def line(etcd_server: Etcd) -> AsyncIterator[Proxy]:
    async with proxy(etcd_server.port) as between:
        yield between


class TestEtcd(Conformance):
    TTL_S = 1.0
    SEES_LEASED_PARENTS = False

    @pytest.fixture
    async def backend(self, line: Proxy) -> AsyncIterator[Backend]:
        backend = await EtcdBackend.open(url(line.port))
        yield backend
        await backend.close()

    @pytest.fixture
    def gap(self, backend: Backend, line: Proxy) -> Gap:
        return lambda: noticed(line, backend)


async def noticed(line: Proxy, backend: Backend) -> None:
    """The connection breaks, and another is made."""
    line.cut()
    async with asyncio.timeout(20):
        while True:
            try:
                await backend.get("/any")
                return
            except Unavailable:
                continue


def test_etcd_is_as_the_model(etcd_server: Etcd) -> None:
    between: list[Proxy] = []

    @contextmanager
    def real() -> Iterator[Run]:
        with asyncio.Runner() as runner:
            between.append(Proxy("127.0.0.1", etcd_server.port))
            runner.run(between[-1].start())
            yield runner.run
            runner.run(between.pop().stop())

    async def empty() -> Backend:
        return await EtcdBackend.open(url(between[-1].port))

    async def cut(backend: Backend) -> None:
        await noticed(between[-1], backend)

    kind = machine(Subject(real, empty, cut))
    quick = settings(max_examples=20, stateful_step_count=25, deadline=None, derandomize=True, phases=[Phase.generate])
    run_state_machine_as_test(kind, settings=quick)


async def test_a_commit_whose_answer_is_lost_has_an_end_before_the_next_read(line: Proxy) -> None:
    backend = await EtcdBackend.open(url(line.port))
    line.deaf()
    with pytest.raises(Unavailable):
        async with asyncio.timeout(20):
            await backend.commit([], [Put("/a", b"1")])
    line.restore()
    line.cut()
    entry = await backend.get("/a")
    assert entry is not None and entry.value == b"1"
    await backend.close()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("etcd://host:99999", "no host:port"),
        ("etcd://", "no host:port"),
        ("etcd://user@host", "user:password"),
        ("etcd://h?colour=red", "unknown option 'colour'"),
        ("etcd://h?tls_cert=x", "needs tls_ca"),
        ("etcd://h/a//b", "not a store path"),
        ("etcd://h?tls_ca=/nowhere", "/nowhere cannot be read"),
    ],
)
def test_a_wrong_address_is_told(wrong: str, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        parse(wrong).credentials()


def test_an_address_says_hosts_and_prefix_and_no_password() -> None:
    found = parse("etcd://ada:se%40cret@one,two:23790/a/b?tls_ca=ca.pem")
    assert (found.user, found.password, found.prefix) == ("ada", "se@cret", "/a/b")
    assert str(found) == "etcd://one:2379,two:23790/a/b"
