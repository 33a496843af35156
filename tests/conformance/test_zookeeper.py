"""Run the conformance suite of memory and SQLite on ZooKeeper, and test what happens only to a store across a
network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.conformance import Conformance, Gap
from headgate.testing.servers.databases import SESSION_LEAST_S, ZooKeeper, chroot
from headgate.testing.servers.faults import Proxy, proxy
from headgate.testing.stores.machine import Run, Subject, machine


@pytest.fixture
def server(zookeeper_server: ZooKeeper) -> ZooKeeper:
    return zookeeper_server


@pytest.fixture
async def line(server: ZooKeeper) -> AsyncIterator[Proxy]:
    async with proxy(server.port) as between:
        yield between


class TestZooKeeper(Conformance):
    TTL_S = SESSION_LEAST_S

    @pytest.fixture
    async def backend(self, server: ZooKeeper, line: Proxy) -> AsyncIterator[Backend]:
        backend = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{line.port}{await chroot(server)}")
        yield backend
        await backend.close()

    @pytest.fixture
    def gap(self, backend: Backend, line: Proxy) -> Gap:
        return lambda: noticed(line, backend)


async def noticed(line: Proxy, backend: Backend) -> None:
    """Break the connection, and wait until another is made."""
    line.cut()
    await backend.get("/any")


def test_zookeeper_is_as_the_model(server: ZooKeeper) -> None:
    between: list[Proxy] = []

    @contextmanager
    def real() -> Iterator[Run]:
        with asyncio.Runner() as runner:
            between.append(Proxy("127.0.0.1", server.port))
            runner.run(between[-1].start())
            yield runner.run
            runner.run(between.pop().stop())

    async def empty() -> Backend:
        return await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{between[-1].port}{await chroot(server)}")

    async def cut(backend: Backend) -> None:
        await noticed(between[-1], backend)

    kind = machine(Subject(real, empty, cut))
    quick = settings(max_examples=20, stateful_step_count=25, deadline=None, derandomize=True, phases=[Phase.generate])
    run_state_machine_as_test(kind, settings=quick)
