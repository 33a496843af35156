"""Test worker processes on three servers of a store, and every possible failure of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headgate.base.ids import fresh
from headgate.map.check import check
from headgate.map.trees import StoreTree
from headgate.map.workers import ROOT, QueueMap
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.queues.harness import disturbances, fleet, start_three
from headgate.testing.servers.databases import SESSION_LEAST_S, Etcd, ZooKeeper, ensemble, etcd_cluster
from tests.waiting import wait_for

QUEUES = 27
_ROW = "{:32} {:>6} {:>20} {:>20} {:>9}"


@pytest.mark.soak
async def test_three_workers_and_whatever_comes_on_zookeeper(tmp_path: Path) -> None:
    with ensemble(tmp_path / "zookeeper") as servers:
        url = "zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        await _disturbed(tmp_path, url, ZooKeeperBackend.open, servers, max(5.0, SESSION_LEAST_S))


@pytest.mark.long
async def test_three_workers_and_whatever_comes_on_etcd(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / "etcd") as servers:
        url = "etcd://" + ",".join(f"127.0.0.1:{server.port}" for server in servers) + f"/{fresh()}"
        await _disturbed(tmp_path, url, EtcdBackend.open, servers, 5.0)


async def _disturbed(
    root: Path,
    url: str,
    open: Callable[[str], Awaitable[Backend]],
    servers: Sequence[ZooKeeper | Etcd],
    session_s: float,
) -> None:
    def leader() -> ZooKeeper | Etcd | None:
        return next((server for server in servers if server.leads), None)

    async def leader_dies() -> None:
        found = await asyncio.to_thread(wait_for, "one leads, as they may be electing", leader)
        found.program.kill()

    backend = await open(url)
    async with fleet(root, url, backend, queues=QUEUES) as found:
        await start_three(found, session_s)
        costs = {}
        for name, (disturb, workers) in disturbances(found, leader_dies).items():
            costs[name] = await found.cost(disturb, workers)
        entries = await backend.list(ROOT)
    print(_ROW.format("", "moved", "pause of those, s", "pause of the rest, s", "repeated"))
    for name, cost in costs.items():
        pauses = f"{cost.pause_moved_s:.2f}", f"{cost.pause_others_s:.2f}"
        print(_ROW.format(name, cost.moved, *pauses, cost.repeated))
    assert not found.wrong(), "left out, or out of order"
    assert costs["a fourth worker joins"].moved == 6 and costs["and continues"].moved <= 9
    assert costs["one is killed (-9)"].moved <= 7
    assert costs["the store's leader is killed"].moved == 0
    assert costs["a fourth worker joins"].repeated == costs["one is terminated"].repeated == 0
    findings = check(entries, [StoreTree(ROOT, QueueMap)])
    assert not findings.unknown and not findings.undecodable, findings.text()
    await backend.close()
