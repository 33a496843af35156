"""Measure what it costs when a worker joins or is lost."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path

from headgate.cli.terminal.screen import TextTable
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.queues.harness import DisturbanceCost, disturbances, fleet, start_three
from headgate.testing.servers.databases import SESSION_LEAST_S, ensemble, zookeeper

QUEUES = 27


def set_partitioner() -> tuple[int, float]:
    """Let a fourth member join three; return how many of 27 items moved, and the seconds in which none had an owner."""
    from kazoo.client import KazooClient

    items = tuple(f"{n:02d}" for n in range(QUEUES))
    held: dict[str, frozenset[str]] = {}
    stop = threading.Event()

    def member(name: str, port: int) -> None:
        client = KazooClient(f"127.0.0.1:{port}")
        client.start()
        share = client.SetPartitioner("/worker", set=items, identifier=name, time_boundary=1)
        while not stop.is_set():
            if share.release:
                held[name] = frozenset()
                share.release_set()
            elif share.acquired:
                held[name] = frozenset(share)
                time.sleep(0.005)
            else:
                share.wait_for_acquire(0.2)
        share.finish()
        client.stop()

    def all_held(members: int) -> bool:
        return len(held) == members and sum(map(len, held.values())) == QUEUES and all(held.values())

    with tempfile.TemporaryDirectory() as name, zookeeper(Path(name)) as server:
        threads = [threading.Thread(target=member, args=(f"m{n}", server.port)) for n in range(4)]
        for thread in threads[:3]:
            thread.start()
        while not all_held(3):
            time.sleep(0.005)
        before = {item: owner for owner, some in held.items() for item in some}
        threads[3].start()
        silent_s, quiet_since = 0.0, 0.0
        while not all_held(4):
            now = time.monotonic()
            quiet_since = (quiet_since or now) if not any(held.values()) else 0.0
            silent_s = max(silent_s, now - quiet_since if quiet_since else 0.0)
            time.sleep(0.002)
        after = {item: owner for owner, some in held.items() for item in some}
        stop.set()
        for thread in threads:
            thread.join()
    return sum(after[item] != before[item] for item in items), silent_s


async def ours() -> dict[str, DisturbanceCost]:
    with tempfile.TemporaryDirectory() as name, ensemble(Path(name) / "zookeeper") as servers:
        url = "zookeeper://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        backend = await ZooKeeperBackend.open(url)

        async def leader_dies() -> None:
            next(server for server in servers if server.leads).program.kill()

        async with fleet(Path(name), url, backend, queues=QUEUES) as found:
            await start_three(found, max(3.0, SESSION_LEAST_S))
            costs = {
                name: await found.cost(disturb, workers)
                for name, (disturb, workers) in disturbances(found, leader_dies).items()
            }
        await backend.close()
        return costs


def rebalance() -> TextTable:
    table = TextTable(
        "disturbance", "moved", "pause of those, s", "pause of the rest, s", "ran twice",
        title=f"{QUEUES} queues, three workers, three ZooKeeper servers, sessions of 3 s",
    )  # fmt: skip
    moved, silent_s = set_partitioner()
    table.add_row("SetPartitioner: a fourth member joins", str(moved), f"{silent_s:.1f}", f"{silent_s:.1f}", "")
    for name, cost in asyncio.run(ours()).items():
        pauses = (f"{cost.pause_moved_s:.1f}", f"{cost.pause_others_s:.1f}")
        table.add_row(f"Headgate: {name}", str(cost.moved), *pauses, str(cost.repeated))
    return table
