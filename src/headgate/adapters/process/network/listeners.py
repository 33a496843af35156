"""Serve sockets that listen in a build's network: each address leads to exactly one service outside.

The socket listens in the network of the build, and the executor serves its connections, so this works however that
network is made, and a build reaches nothing but that service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headgate.base.tasks import end

log = logging.getLogger("headgate.executor")

CONNECTIONS_MAX = 64
"""Concurrent connections of one listener."""
CONNECT_TIMEOUT_S = 10.0
CHUNK_SIZE_BYTES = 65_536


class NetworkTarget(NamedTuple):
    host: str
    port: int

    @staticmethod
    def read(text: str) -> NetworkTarget:
        """Parse `HOST:PORT`, with an IPv6 address in brackets. Raise ValueError with the text."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(text)
        return NetworkTarget(host.removeprefix("[").removesuffix("]"), int(port))


Serve = Callable[[socket.socket], Awaitable[None]]
"""Serves one connection and leaves it open, for the listener to close. Raises OSError."""


async def serve_connections(listener: socket.socket, serve: Serve) -> None:
    """Serve connections until cancelled."""
    loop = asyncio.get_running_loop()
    free, under_way = asyncio.Semaphore(CONNECTIONS_MAX), set[asyncio.Future[None]]()

    async def serve_one(connection: socket.socket) -> None:
        try:
            # One side has gone away or cannot be reached: the build sees its connection close, as it would without a
            # relay.
            with connection, contextlib.suppress(OSError, TimeoutError):
                await serve(connection)
        finally:
            free.release()

    try:
        with listener:
            while True:
                # Acquired before accept: further clients wait in the kernel's backlog and take no descriptor of the
                # executor.
                await free.acquire()
                connection, _ = await loop.sock_accept(listener)
                task = asyncio.ensure_future(serve_one(connection))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
    finally:
        await end(*under_way)


def forwarding_to(target: NetworkTarget) -> Serve:
    """Return a server that passes bytes to the target and back."""

    async def serve(connection: socket.socket) -> None:
        # Only the connect is limited; connections to a build's machines may be idle for hours.
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            other = await _connected(target)
        with other:
            forth = asyncio.ensure_future(_copy(connection, other))
            try:
                # A client that has sent everything may still wait for the answer, so its end alone does not end the
                # connection.
                await _copy(other, connection)
                await forth
            finally:
                await end(forth)

    return serve


async def _connected(target: NetworkTarget) -> socket.socket:
    """Connect to the first address of the target that can be reached.  Raise OSError if there is none."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{target.host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(*target, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            await loop.sock_connect(made, address)
            return made
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source ends, and then close the sink for writing. Raise OSError."""
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, CHUNK_SIZE_BYTES):
        await loop.sock_sendall(sink, piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
