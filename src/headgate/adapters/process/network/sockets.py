"""Serve sockets in a build's network: relays to a service outside or to resolvers, and files of earlier builds.

A socket listens in the network of the build, and the executor serves its connections.  So this works with every kind of
network, and gives a build access only to that service.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import h11

from headgate.adapters.blocklist import DeniedNetworks, Ip
from headgate.base.tasks import end

log = logging.getLogger("headgate.executor")

CONNECTIONS_MAX = 64
"""Concurrent connections of one listener."""
CONNECT_TIMEOUT_S = 10.0
CHUNK_SIZE_BYTES = 65_536
NAMES_PORT = 53
NAMES_ADDRESS = "127.0.0.1"
"""Address of the relay for names in the network of a build."""
QUERIES_MAX = 128
"""Concurrent queries of one build; further ones get no answer, and clients repeat them."""
QUERY_TIMEOUT_S = 6.0
QUERY_SIZE_MAX_BYTES = 4096
RESOLVERS = Path("/etc/resolv.conf")
ARTIFACTS_ADDRESS, ARTIFACTS_PORT = "127.72.71.1", 80
"""Address and port in the network of a build; programs of jobs are unlikely to use this address."""
REQUEST_TIMEOUT_S = 30.0
HEAD_SIZE_MAX_BYTES = 16_384

Serve = Callable[[socket.socket], Awaitable[None]]
"""Serves one connection, which the listener closes afterwards. Raises OSError."""
ReadLog = Callable[[str, str], AsyncGenerator[bytes, None]]
"""(id of a build, path of a log file) -> the content; raises LookupError before the first piece."""


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


async def serve_connections(listener: socket.socket, serve: Serve) -> None:
    """Serve connections until cancelled."""
    loop = asyncio.get_running_loop()
    free, under_way = asyncio.Semaphore(CONNECTIONS_MAX), set[asyncio.Future[None]]()

    async def serve_one(connection: socket.socket) -> None:
        try:
            # If one side disappears or cannot be reached, the build sees its connection close, as without a relay.
            with connection, contextlib.suppress(OSError, TimeoutError):
                await serve(connection)
        finally:
            free.release()

    try:
        with listener:
            while True:
                # Acquire before accept: further clients wait in the kernel's backlog, without using descriptors of the
                # executor.
                await free.acquire()
                connection, _ = await loop.sock_accept(listener)
                task = asyncio.ensure_future(serve_one(connection))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
    finally:
        await end(*under_way)


def forwarding_to(target: NetworkTarget) -> Serve:
    """Return a server that forwards bytes to the target and back."""

    async def serve(connection: socket.socket) -> None:
        # Limit only the connect: connections to a build's machines may be idle for hours.
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            other = await _connected(target)
        with other:
            forth = asyncio.ensure_future(_copy(connection, other))
            try:
                # A client that has sent everything may still wait for the answer, so do not close the connection when
                # its input ends.
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
    """Copy until the source ends, and then shut down the sink for writing. Raise OSError."""
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, CHUNK_SIZE_BYTES):
        await loop.sock_sendall(sink, piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def resolvers(text: str) -> list[Ip]:
    """Return the resolvers that a resolv.conf names."""
    found = list[Ip]()
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                # In a link-local address, the interface follows a percent sign.
                found.append(ipaddress.ip_address(words[1].partition("%")[0]))
    return found


def resolvers_relayed(text: str) -> bytes:
    """Return the resolv.conf of a build that uses the relay for names, with the other lines unchanged."""
    rest = [line for line in text.splitlines() if line.split()[:1] != ["nameserver"]]
    return "".join(f"{line}\n" for line in (f"nameserver {NAMES_ADDRESS}", *rest)).encode()


def resolvers_reachable(found: Iterable[Ip], denied: DeniedNetworks) -> bool:
    """Return whether builds can reach all resolvers themselves."""
    return not any(one in denied for one in found)


async def relay_names(listening: socket.socket, servers: list[Ip]) -> None:
    """Relay UDP queries until cancelled, and return the answer of the first of `servers` that responds."""
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
                # Each query uses a socket of the executor, so a job could exhaust its descriptors.
                if len(under_way) < QUERIES_MAX:
                    task = asyncio.ensure_future(relay_one(query, asker))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
    finally:
        await end(*under_way)


async def _answer_of(server: Ip, query: bytes) -> bytes:
    """Send a query to a server, and return its answer.  Raise OSError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET if server.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as asking:
        asking.connect((str(server), NAMES_PORT))  # ignores answers from others
        await loop.sock_sendall(asking, query)
        return await loop.sock_recv(asking, 65_535)


def artifact_builds(zuul: Mapping[str, Any]) -> set[str]:
    """Return the builds whose artifacts the `zuul` variable passes to a build."""
    artifacts = zuul.get("artifacts")
    found = (one.get("build") for one in artifacts or () if isinstance(one, Mapping))
    # Ids of builds consist of letters and digits; anything else could become a path in a lookup.
    return {build for build in found if isinstance(build, str) and build.isalnum()}


def reachable_artifacts(zuul: Mapping[str, Any], tenant: str) -> list[Any]:
    """Return the artifacts for a build with a separate network: those that Headgate serves, under whatever root URL it
    had at the time, get URLs at `ARTIFACTS_ADDRESS`. JSON."""
    artifacts = zuul.get("artifacts")
    found = list(artifacts) if isinstance(artifacts, list | tuple) else []
    for number, artifact in enumerate(found):
        if not isinstance(artifact, Mapping) or not isinstance(artifact.get("url"), str):
            continue
        # Do not compare the root URL: an operator may have moved the server since the artifact was returned.
        _, own, path = artifact["url"].partition(f"/t/{quote(tenant)}/logs/{artifact.get('build')}/")
        if own:
            found[number] = {**artifact, "url": f"http://{ARTIFACTS_ADDRESS}/logs/{artifact['build']}/{path}"}
    return found


def serving_files(read: ReadLog | None, builds: Collection[str]) -> Serve | None:
    """Return a server for one request per connection, for a file of one of `builds`; None if there are none."""
    if read is None or not builds:
        return None

    async def serve(connection: socket.socket) -> None:
        speaking = _HttpConnection(connection)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await speaking.request()
            if request.method not in (b"GET", b"HEAD"):
                return await speaking.refuse(405, "this server only supports GET and HEAD")
            build, path = _named(request.target)
            # This is the access check: the job chooses the path of a request, and the gate the set of builds.
            if build not in builds or not path:
                return await speaking.refuse(404, "this is not a file of a build whose artifacts this build gets")
            await speaking.answer(read(build, path), body=request.method == b"GET")
        except h11.RemoteProtocolError as error:
            await speaking.refuse(error.error_status_hint, str(error))

    return serve


def _named(target: bytes) -> tuple[str, str]:
    """Return build and path of `/logs/BUILD/PATH`; empty for anything else."""
    try:
        parts = urlsplit(target.decode("ascii", errors="replace")).path.split("/", 3)
    except ValueError:
        return "", ""
    if len(parts) != 4 or parts[:2] != ["", "logs"]:
        return "", ""
    path = unquote(parts[3])
    # Check after unquoting, or %2e%2e would pass.
    return ("", "") if {"", ".", ".."}.intersection(path.split("/")) else (parts[2], path)


class _HttpConnection:
    """Speak HTTP over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX_BYTES)

    async def request(self) -> h11.Request:
        """Read a request.  Raise RemoteProtocolError, OSError."""
        loop = asyncio.get_running_loop()
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise h11.RemoteProtocolError("this is not a request")
            self._http.receive_data(await loop.sock_recv(self._connection, CHUNK_SIZE_BYTES))

    async def answer(self, content: AsyncGenerator[bytes, None], *, body: bool) -> None:
        """Answer with the content (without it if no `body` is wanted), or refuse if it does not exist. Raise
        OSError."""
        async with contextlib.aclosing(content):
            try:
                # The first piece shows whether the file exists, while a status can still be sent.
                first = await anext(content, b"")
            except LookupError as error:
                return await self.refuse(404, str(error))
            await self._head(200)
            if body:
                await self._send(h11.Data(data=first))
                async for piece in content:
                    await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int, why: str) -> None:
        """Refuse a request with a status and a reason, unless the answer has begun.  Raise OSError."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._head(status)
            await self._send(h11.Data(data=f"{why}\n".encode()))
            await self._send(h11.EndOfMessage())

    async def _head(self, status: int) -> None:
        kind = "application/octet-stream" if status == 200 else "text/plain"
        headers = [("Content-Type", kind), ("Connection", "close")]
        await self._send(h11.Response(status_code=status, headers=headers))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await asyncio.get_running_loop().sock_sendall(self._connection, data)
