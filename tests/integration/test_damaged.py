"""Test truncated values: they are reported, left alone, and stop nothing that does not need them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headgate.base.ids import fresh
from headgate.services.quarantine import Quarantine
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend, Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.gate import MEASURED_TENANTS, gate, measured_configuration
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot

CUT = b'{"id":"x","stat'
PLACES = (
    "/zuul/executor/unzoned/requests/x",
    "/zuul/merger/requests/x",
    "/zuul/components/executor/other0000000077",
    "/zuul/components/merger/other0000000077",
    "/zuul/components/scheduler/other0000000077",
    "/zuul/cache/connection/local/cache/00",
    "/zuul/events/connection/local/events/queue/x",
    "/zuul/events/tenant/bench/trigger/queue/x",
    "/zuul/events/tenant/bench/pipelines/gate/result/queue/x",
    "/zuul/history/queue/x",
)


async def _lands(root: Path, backend: Backend, log: pytest.LogCaptureFixture) -> None:
    await backend.commit([], [Put(path, CUT) for path in PLACES])
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": measured_configuration(1), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    with log.at_level(logging.ERROR, "headgate"):
        async with gate(root, repositories.hub, backend, MEASURED_TENANTS) as running:
            repositories.propose("code", "one", {"a": "1\n"})
            repositories.approve("code", "one")
            assert (await running.history.result_of("one", "gate")).result == "SUCCESS"
    for path in PLACES:
        entry = await backend.get(path)
        assert entry is not None and entry.value == CUT, f"{path} is left alone"
        messages = [message for message in log.messages if message.startswith(f"{path} cannot be read")]
        assert len(messages) == 1, f"{path} is named, once"


@pytest.mark.long
async def test_changes_land_despite_damaged_records_on_etcd(
    tmp_path: Path, etcd_server: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}/{fresh()}")
    await _lands(tmp_path, backend, caplog)
    await backend.close()


@pytest.mark.long
async def test_changes_land_despite_damaged_records_on_zookeeper(
    tmp_path: Path, zookeeper_server: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    where = f"zookeeper://127.0.0.1:{zookeeper_server.port}{await chroot(zookeeper_server)}"
    backend = await ZooKeeperBackend.open(where)
    await _lands(tmp_path, backend, caplog)
    await backend.close()


@pytest.mark.long
async def test_damaged_records_that_can_be_derived_are_written_again_and_named(
    tmp_path: Path, etcd_server: Etcd
) -> None:
    backend = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}/{fresh()}")
    heads, layout = "/zuul/cache/connection/local/branches/data", "/zuul/layout/bench"
    await backend.commit([], [Put(heads, CUT), Put(layout, CUT)])
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": measured_configuration(1), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    async with gate(tmp_path, repositories.hub, backend, MEASURED_TENANTS) as running:
        repositories.propose("code", "one", {"a": "1\n"})
        repositories.approve("code", "one")
        assert (await running.history.result_of("one", "gate")).result == "SUCCESS", "it goes on by itself"
        (named,) = Quarantine(running.context).all().values()
        assert named.kind == "record" and named.what == heads, "what was pushed meanwhile may have been missed"
    for path in (heads, layout):
        entry = await backend.get(path)
        assert entry is not None and entry.value != CUT, f"{path} was made anew"
    await backend.close()
