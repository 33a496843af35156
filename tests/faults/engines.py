"""The kinds of stores that the faults are tried on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.store.types import Backend
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers.zookeeper import ZooKeeper, chroot, ensemble


@dataclass(slots=True)
class ZooKeepers:
    """Three servers."""

    servers: list[ZooKeeper]
    root: str
    killed: list[ZooKeeper] = field(default_factory=list)

    @property
    def ports(self) -> Sequence[int]:
        return [server.port for server in self.servers]

    def url(self, ports: Sequence[int]) -> str:
        return f"zookeeper://{','.join(f'127.0.0.1:{port}' for port in ports)}{self.root}?session_s=3"

    async def open(self) -> Backend:
        return await ZooKeeperBackend.open(self.url(self.ports))

    async def kill_leader(self) -> None:
        for server in self.servers:
            if await asyncio.to_thread(lambda: server.leads):  # noqa: B023 - awaited at once
                await asyncio.to_thread(server.program.kill)
                self.killed.append(server)
                return
        raise AssertionError("no server leads")

    async def mend(self) -> None:
        while self.killed:
            server = self.killed.pop()
            server.start()
            await asyncio.to_thread(server.ready)


@asynccontextmanager
async def zookeepers(directory: Path) -> AsyncIterator[ZooKeepers]:
    with ensemble(directory) as servers:
        yield ZooKeepers(servers, await chroot(servers[0]))
