"""Run the conformance suite of memory and SQLite on etcd, and test what happens only to a store across a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headgate.base.ids import fresh
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend
from headgate.testing.conformance import Conformance, Gap
from headgate.testing.servers.databases import LEASE_LEAST_S, Etcd
from headgate.testing.servers.faults import Proxy, proxy
from headgate.testing.stores.machine import Run, Subject, machine


@pytest.fixture
async def line(etcd_server: Etcd) -> AsyncIterator[Proxy]:
    async with proxy(etcd_server.port) as between:
        yield between


class TestEtcd(Conformance):
    TTL_S = LEASE_LEAST_S
    SEES_LEASED_PARENTS = False

    @pytest.fixture
    async def backend(self, line: Proxy) -> AsyncIterator[Backend]:
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{line.port}/{fresh()}")
        yield backend
        await backend.close()

    @pytest.fixture
    def gap(self, backend: Backend, line: Proxy) -> Gap:
        return lambda: noticed(line, backend)


async def noticed(line: Proxy, backend: Backend) -> None:
    """Break the connection, and wait until another is made."""
    line.cut()
    await backend.get("/any")


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
        return await EtcdBackend.open(f"etcd://127.0.0.1:{between[-1].port}/{fresh()}")

    async def cut(backend: Backend) -> None:
        await noticed(between[-1], backend)

    kind = machine(Subject(real, empty, cut))
    quick = settings(max_examples=20, stateful_step_count=25, deadline=None, derandomize=True, phases=[Phase.generate])
    run_state_machine_as_test(kind, settings=quick)
