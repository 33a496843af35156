"""Run the kinds of stores on which the faults are tried: three real servers each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.base.ids import fresh
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot, ensemble, etcd_cluster
from tests.waiting import wait_for


@dataclass(slots=True)
class Engine:
    """Hold the servers of a store, and the parts of its address."""

    name: str
    servers: Sequence[ZooKeeper | Etcd]
    scheme: str
    path: str
    """Rest of the address, from the slash on."""
    killed: list[ZooKeeper | Etcd] = field(default_factory=list)

    @property
    def ports(self) -> Sequence[int]:
        return [server.port for server in self.servers]

    def url(self, ports: Sequence[int]) -> str:
        return f"{self.scheme}://{','.join(f'127.0.0.1:{port}' for port in ports)}{self.path}"

    async def open(self) -> Backend:
        """Open the store without a proxy."""
        opened = ZooKeeperBackend.open if self.scheme == "zookeeper" else EtcdBackend.open
        return await opened(self.url(self.ports))

    def logs(self) -> list[str]:
        """Return the end of each server's log."""
        texts = (server.program.log.read_text(errors="replace")[-2_000:] for server in self.servers)
        return [f"--- server {number}\n{text}" for number, text in enumerate(texts, 1)]

    async def kill_leader(self) -> None:
        leader = await asyncio.to_thread(wait_for, "one leads", self._leader)
        await asyncio.to_thread(leader.program.kill)
        self.killed.append(leader)

    def _leader(self) -> ZooKeeper | Etcd | None:
        return next((server for server in self.servers if server.leads), None)

    async def mend(self) -> None:
        """Start the servers that were killed."""
        while self.killed:
            server = self.killed.pop()
            server.start()
            await asyncio.to_thread(server.ready)


@asynccontextmanager
async def zookeepers(directory: Path) -> AsyncIterator[Engine]:
    with ensemble(directory) as servers:
        yield Engine("ZooKeeper", servers, "zookeeper", f"{await chroot(servers[0])}?session_s=3")


@asynccontextmanager
async def etcds(directory: Path) -> AsyncIterator[Engine]:
    with etcd_cluster(directory) as servers:
        yield Engine("etcd", servers, "etcd", f"/{fresh()}")


ENGINES: dict[str, Callable[[Path], AbstractAsyncContextManager[Engine]]] = {"zookeeper": zookeepers, "etcd": etcds}
