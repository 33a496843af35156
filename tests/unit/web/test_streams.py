"""Test whose streams are closed when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headgate.web.inventory import server
from headgate.web.inventory.server import Streams, host_of


class Context:
    """Represent a call of a peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, why: str) -> None:
        raise ConnectionAbortedError(code.name)


async def test_a_host_with_a_network_of_addresses_pays_for_its_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 3)
    begun = asyncio.Semaphore(0)

    async def for_ever(request: Any, context: Any) -> AsyncIterator[Any]:
        begun.release()
        await asyncio.Event().wait()
        yield request

    async def found(details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(for_ever)

    handler = await Streams().intercept_service(found, None)
    peers = ["ipv4:192.0.2.1:1", *(f"ipv6:%5B2001:db8::{number}%5D:1" for number in range(1, 4))]
    tasks = list[asyncio.Future[Any]]()
    for peer in peers:
        tasks.append(asyncio.ensure_future(anext(handler.unary_stream(b"", Context(peer)))))
        await begun.acquire()
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert ended == {tasks[1]} and isinstance(tasks[1].exception(), ConnectionAbortedError)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:50000", "192.0.2.1"),
        ("ipv6:%5B2001:db8:0:1:2::3%5D:50000", "2001:db8:0:1::/64"),
        ("ipv6:[2001:db8:0:1::3]:50000", "2001:db8:0:1::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50000", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:50000", "192.0.2.1"),
        ("unix:/run/socket", "unix"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_streams_count_for_the_host_whatever_its_address_and_port(peer: str, host: str) -> None:
    assert host_of(peer) == host
