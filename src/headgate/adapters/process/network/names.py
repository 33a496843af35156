"""Names for builds: the resolvers of this machine, through a relay where a build cannot reach them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

from headgate.adapters.blocklist import DeniedNetworks, Ip
from headgate.base.tasks import end

PORT = 53
RELAY = "127.0.0.1"
"""Address of the relay in the network of a build."""
QUERIES_MAX = 128
"""Concurrent queries of one build; further ones get no answer, so that clients repeat them."""
QUERY_TIMEOUT_S = 6.0
QUERY_SIZE_MAX_BYTES = 4096
RESOLVERS = Path("/etc/resolv.conf")


def resolvers(text: str) -> list[Ip]:
    """Return the resolvers that a resolv.conf names."""
    found = list[Ip]()
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                # A link-local address carries its interface behind a percent sign.
                found.append(ipaddress.ip_address(words[1].partition("%")[0]))
    return found


def relayed(text: str) -> bytes:
    """Return the resolv.conf of a build that uses the relay, with the other lines unchanged."""
    rest = [line for line in text.splitlines() if line.split()[:1] != ["nameserver"]]
    return "".join(f"{line}\n" for line in (f"nameserver {RELAY}", *rest)).encode()


def reachable(found: Iterable[Ip], denied: DeniedNetworks) -> bool:
    """Return whether builds can reach all resolvers themselves."""
    return not any(one in denied for one in found)


async def relay(listening: socket.socket, servers: list[Ip]) -> None:
    """Relay UDP questions until cancelled, with the answer of the first of `servers` that responds."""
    loop, under_way = asyncio.get_running_loop(), set[asyncio.Future[None]]()

    async def relay_one(query: bytes, asker: tuple[str, int]) -> None:
        for server in servers:
            with contextlib.suppress(OSError, TimeoutError):
                # The servers share one limit, so that a dead one does not use up the time of the others.
                async with asyncio.timeout(QUERY_TIMEOUT_S / len(servers)):
                    answer = await _answer_of(server, query)
                await loop.sock_sendto(listening, answer, asker)
                return

    try:
        with listening:
            while True:
                try:
                    query, asker = await loop.sock_recvfrom(listening, QUERY_SIZE_MAX_BYTES)
                except OSError:
                    continue  # a client has disappeared
                # Each query holds a socket of the executor, which a job could exhaust.
                if len(under_way) < QUERIES_MAX:
                    task = asyncio.ensure_future(relay_one(query, asker))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
    finally:
        await end(*under_way)


async def _answer_of(server: Ip, query: bytes) -> bytes:
    """Ask a server, and return its answer.  Raise OSError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET if server.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as asking:
        asking.connect((str(server), PORT))  # ignores answers from others
        await loop.sock_sendall(asking, query)
        return await loop.sock_recv(asking, 65_535)
