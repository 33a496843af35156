"""Provide the service in this process, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from headgate.base.tasks import run_until
from headgate.inventory.wire import inventory_pb2 as v1
from headgate.inventory.wire import runm_pb2 as runm
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.inventory import Inventory
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Backend
from headgate.testing.clock import DEADLINE_S
from headgate.web.inventory.identity import CallerSessions, Identity, Trusting
from headgate.web.inventory.server import RUNM, V1, serve
from headgate.web.peers.connections import Tls

ALICE = {"user": "alice", "project": "blue", "partition": "site"}


class Client:
    """`await client.Search(any=[...])`: any method of both services, with the session unless another is given."""

    def __init__(
        self, channel: grpc.aio.Channel, session: Mapping[str, str], metadata: Mapping[str, str], target: str = ""
    ) -> None:
        """`target`: the address of the service."""
        self.target = target
        self.channel, self._session, self._metadata = channel, session, tuple(metadata.items())

    def like(self, metadata: Mapping[str, str] | None = None, **session: str) -> Client:
        return Client(self.channel, {**self._session, **session}, metadata or dict(self._metadata))

    def __getattr__(self, name: str) -> Any:
        service = RUNM if name in RUNM.methods_by_name else V1
        return lambda **fields: self._call(service, name, fields)

    def _call(self, service: ServiceDescriptor, name: str, fields: dict[str, Any]) -> Any:
        session = (runm if service is RUNM else v1).Session(**self._session)
        request = GetMessageClass(service.methods_by_name[name].input_type)(**{"session": session, **fields})
        return self.raw(service, name, request.SerializeToString())

    def raw(self, service: ServiceDescriptor, name: str, request: bytes, timeout_s: float = DEADLINE_S) -> Any:
        """Send any bytes."""
        method = service.methods_by_name[name]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        read = GetMessageClass(method.output_type).FromString
        call = kind(f"/{service.full_name}/{name}", response_deserializer=read)
        return call(request, timeout=timeout_s, metadata=self._metadata)


@asynccontextmanager
async def served(
    identity: Identity | None = None,
    *,
    backend: Backend | None = None,
    tls: Tls | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    clock: Callable[[], int] = lambda: 1_000,
) -> AsyncIterator[Client]:
    """Provide an inventory with one partition, `site`."""
    inventory = Inventory(Store(backend or MemoryBackend()), InventoryMap(), clock)
    await inventory.begin()
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    works = (
        inventory.journal.run(),
        serve(inventory, CallerSessions(identity or Trusting(), inventory), "127.0.0.1:0", tls, stop, port.set_result),
    )
    running = asyncio.ensure_future(run_until(stop, *works))
    try:
        target = f"127.0.0.1:{await port}"
        options = [("grpc.ssl_target_name_override", "localhost")] if tls else []
        channel = (
            grpc.aio.secure_channel(target, credentials or grpc.ssl_channel_credentials(), options)
            if tls
            else grpc.aio.insecure_channel(target)
        )
        async with channel:
            yield Client(channel, ALICE, {}, target)
    finally:
        stop.set()
        await running


async def serve_at(address: str) -> None:
    """Serve another inventory, which is empty, at this address. Raise UserError."""
    inventory = Inventory(Store(MemoryBackend()), InventoryMap(), lambda: 0)
    await serve(inventory, CallerSessions(Trusting(), inventory), address, None, asyncio.Event(), lambda port: None)
