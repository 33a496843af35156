"""Worker processes on three servers of a store, and everything that may happen to them."""

from __future__ import annotations

from pathlib import Path

from headgate.base.ids import fresh
from headgate.map.check import check
from headgate.map.trees import Tree
from headgate.map.workers import ROOT, QueueMap
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.queues.fleet import disturbances, fleet
from headgate.testing.servers.etcd import Etcd
from headgate.testing.servers.zookeeper import SESSION_LEAST_S, ensemble

QUEUES = 27


async def test_three_workers_and_whatever_comes_on_three_servers(tmp_path: Path) -> None:
    with ensemble(tmp_path / "zookeeper") as servers:
        url = "zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        backend = await ZooKeeperBackend.open(url)

        async def leader_dies() -> None:
            next(server for server in servers if server.leads).program.kill()

        async with fleet(tmp_path, url, backend, queues=QUEUES, session_s=max(5.0, SESSION_LEAST_S)) as found:
            for _ in range(3):
                await found.start()
            await found.shared(3)
            costs = {}
            for name, (disturb, workers) in disturbances(found, leader_dies).items():
                costs[name] = await found.cost(disturb, workers)
            entries = await backend.list(ROOT)
        print(*costs.items(), sep="\n")
        assert not found.wrong(), "left out, or out of order"
        assert costs["a fourth worker joins"].moved == 6 and costs["and goes on"].moved <= 9
        assert costs["one is killed (-9)"].moved <= 7
        assert costs["the store's leader is killed"].moved == 0
        assert costs["a fourth worker joins"].repeated == costs["one is asked to stop"].repeated == 0
        findings = check(entries, [Tree(ROOT, QueueMap)])
        assert not findings.unknown and not findings.undecodable, findings.text()
        await backend.close()


async def test_three_workers_and_whatever_comes_on_etcd(tmp_path: Path, etcd_server: Etcd) -> None:
    url = f"etcd://127.0.0.1:{etcd_server.port}/{fresh()}"
    backend = await EtcdBackend.open(url)
    async with fleet(tmp_path, url, backend, queues=QUEUES, session_s=5.0) as found:
        for _ in range(3):
            await found.start()
        await found.shared(3)
        costs = {}
        for name, (disturb, workers) in disturbances(found).items():
            costs[name] = await found.cost(disturb, workers)
        entries = await backend.list(ROOT)
    print(*costs.items(), sep="\n")
    assert not found.wrong(), "left out, or out of order"
    assert costs["a fourth worker joins"].moved == 6 and costs["one is killed (-9)"].moved <= 7
    assert costs["a fourth worker joins"].repeated == costs["one is asked to stop"].repeated == 0
    findings = check(entries, [Tree(ROOT, QueueMap)])
    assert not findings.unknown and not findings.undecodable, findings.text()
    await backend.close()
