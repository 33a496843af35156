"""Test peers of the inventory's server: huge messages, and endless streams in any number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headgate.inventory.wire import inventory_pb2 as pb
from headgate.testing.clock import DEADLINE_S
from headgate.web.inventory.server import V1
from tests.integration.inventory.served import Client, served

CONNECTIONS, STREAMS = 8, 150
"""More streams than there are calls in all, and fewer per connection than permitted."""
HUGE_BYTES = 20_000_000


def connection(client: Client) -> grpc.aio.Channel:
    """Use a separate connection."""
    return grpc.aio.insecure_channel(client.target, [("grpc.use_local_subchannel_pool", 1)])


async def a_neighbour_is_served(client: Client, name: str) -> None:
    step = pb.Step(create=pb.Object(type="runm.machine", name=name))
    assert (await client.Apply(steps=[step])).objects
    assert name in [found.name for found in (await client.Search()).objects]
    request = pb.WatchRequest(session=pb.Session(user="alice", project="blue", partition="site"))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        async for _ in client.raw(V1, "Watch", request.SerializeToString(), 1.0):
            pass
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED, "a stream of its own lives as long as it wants"


async def watch_for_ever(channel: grpc.aio.Channel, begun: asyncio.Semaphore) -> None:
    """Report whether it is answered."""
    try:
        async for _ in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            begun.release()
    except grpc.aio.AioRpcError:
        begun.release()


async def endless() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    while True:
        yield reflection_pb2.ServerReflectionRequest(list_services="x" * 10_000)
        await asyncio.sleep(0)


@pytest.mark.long
async def test_a_flood_of_endless_streams_keeps_nobody_out() -> None:
    """Health and reflection need no credentials."""
    async with served() as client, AsyncExitStack() as stack:
        await client.SetPartition(partition=pb.Partition(name="site"))
        begun, tasks = asyncio.Semaphore(0), list[asyncio.Future[Any]]()
        for _ in range(CONNECTIONS):
            channel = await stack.enter_async_context(connection(client))
            tasks += [asyncio.ensure_future(watch_for_ever(channel, begun)) for _ in range(STREAMS)]
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(endless())
            tasks.append(asyncio.ensure_future(call.initial_metadata()))  # its answers are never read
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(CONNECTIONS * STREAMS):
                await begun.acquire()
        await a_neighbour_is_served(client, "beside")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await a_neighbour_is_served(client, "after")


@pytest.mark.long
async def test_a_huge_message_is_refused_and_its_connection_served() -> None:
    async with served() as client:
        await client.SetPartition(partition=pb.Partition(name="site"))
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.Apply(steps=[pb.Step(create=pb.Object(name="x" * HUGE_BYTES))])
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await a_neighbour_is_served(client, "beside")
