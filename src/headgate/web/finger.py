"""Serve live logs of builds over the finger protocol: read one line, then stream the build's output.

Callers are anonymous, so the server denies that builds of private tenants exist.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from headgate.base.tasks import end, run_until
from headgate.config.operator.model import Tenant
from headgate.recipes.requestforms import Open
from headgate.services.context import Context
from headgate.web.access import Access
from headgate.web.buildlogs import BuildLogs, NoLogs
from headgate.web.logfiles import over
from headgate.web.peers import connections

log = logging.getLogger("headgate.finger")

REQUEST_MAX_BYTES = 1_023
"""Limit on the size of a request with its newline, which must arrive within `HEAD_MAX_S` of the admission."""
CONNECTIONS_MAX = 200
"""Limit on connections: each log that is followed needs a connection to its executor, which limits those per peer."""
PIECE_MAX_BYTES = 16_384
"""Size of the pieces that are written; the client must read each within `STALL_MAX_S`."""
BUFFER_MAX_BYTES = 65_536
"""Limit on the unsent bytes of a connection."""
SWEEP_S = 1.0
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 9))
"""Idle seconds, seconds between probes, and number of probes after which a silent peer counts as gone."""
TCP_CLOSED = 7
"""The kernel's number for the state of a closed connection."""

NOT_FOUND = b"Build not found"
NOT_STARTED = b"Build did not start yet"
FAILED = b"Internal streaming error"
ECHO_MAX = 64
"""Number of characters of an invalid id that the response repeats."""

_ID = re.compile(rb"[0-9a-f]{1,64}", re.IGNORECASE)
# The id is repeated on a terminal, which would obey control characters.
_ODD = re.compile(rb"[^\x21-\x7e]")
Answer = Callable[[bytes], AsyncGenerator[bytes, None]]


class _Connection(asyncio.StreamReaderProtocol):
    """Represent one connection, and report its loss."""

    def __init__(self, served: Callable[[_Connection], Coroutine[Any, Any, None]]) -> None:
        super().__init__(asyncio.StreamReader(limit=REQUEST_MAX_BYTES), self._connected)
        self._served, self.lost = served, asyncio.Event()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[Any, Any, None]:
        self.reader, self.writer = reader, writer
        return self._served(self)

    def connection_lost(self, why: Exception | None) -> None:
        """Forget a peer that has left, or was disconnected."""
        super().connection_lost(why)
        self.lost.set()


class _FingerConnections:
    """Manage the connections of one server."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self._tasks = answer, set[asyncio.Task[None]]()
        self._transports = set[asyncio.Transport]()
        loop = asyncio.get_running_loop()
        self.admission = connections.ConnectionAdmission.of_process(loop.time, CONNECTIONS_MAX)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of one connection."""
        return _Connection(self._serve)

    async def _serve(self, one: _Connection) -> None:
        transport, peer = one.writer.transport, one.writer.get_extra_info("peername")
        task = asyncio.current_task()
        assert isinstance(transport, asyncio.Transport) and task is not None
        self._tasks.add(task)
        transport.set_write_buffer_limits(BUFFER_MAX_BYTES)
        place = self.admission.enter(transport, peer[0] if peer else "")
        self._transports.add(transport)
        try:
            _keep_alive(transport.get_extra_info("socket"))
            line = await _line(one.reader)
            # The connection may have been evicted, or have run out of time, while its request was read.
            if transport.is_closing():
                return
            # From here on the connection is evicted last, after those that have sent no request.
            place.works()
            await run_until(one.lost, self._write(line, one, place))
            place.sends()
            transport.close()
            # Closing sends the buffered bytes first; the sweep ends the wait if the peer does not read them.
            await one.lost.wait()
        except OSError:
            pass  # the peer is gone
        except Exception:
            log.exception("a finger request failed with an unexpected error")
        finally:
            self.admission.leave(transport)
            self._transports.discard(transport)
            self._tasks.discard(task)
            transport.abort()

    async def _write(self, line: bytes, one: _Connection, place: connections.AdmittedConnection) -> None:
        """Write the response. Raise OSError if the peer has left."""
        async with aclosing(self._answer(line)) as pieces:
            async for piece in pieces:
                for at in range(0, len(piece), PIECE_MAX_BYTES):
                    place.sends()
                    one.writer.write(piece[at : at + PIECE_MAX_BYTES])
                    await one.writer.drain()
                # A quiet build writes nothing for minutes, which is not a delay of the peer.
                place.sent()

    async def sweep(self) -> None:
        """End connections that are gone or make no progress, repeatedly, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.admission.sweep()
            for transport in [one for one in self._transports if _is_gone(one)]:
                transport.abort()

    async def close(self) -> None:
        """End the remaining connections."""
        await end(*self._tasks)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the first line, or as much of it as has arrived if it is too long or the peer ends early."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as early:
        return early.partial
    except asyncio.LimitOverrunError:
        return await reader.read(REQUEST_MAX_BYTES)


def _is_gone(transport: asyncio.Transport) -> bool:
    """Return whether the peer has reset the connection: asyncio does not report that once the peer has sent EOF."""
    found: socket.socket = transport.get_extra_info("socket")
    return found.fileno() < 0 or found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def serve(
    answer: Answer,
    host: str,
    port: int,
    stop: asyncio.Event,
    bound: Callable[[int], None],
    tls: connections.Tls | None = None,
) -> None:
    """Serve until `stop` or cancelled; `bound` receives the port. Raise UserError when the address cannot be used."""
    certificates = connections.ServerCertificates(tls) if tls else None
    listener = connections.listening(host, port, "[fingergw]", "port")
    bound(listener.getsockname()[1])
    served = _FingerConnections(answer)
    acceptor = connections.Acceptor(served.protocol, certificates)
    acceptor.begin(listener)
    try:
        await run_until(stop, served.sweep())
    finally:
        await acceptor.close()
        await served.close()
        listener.close()


@dataclass(frozen=True, slots=True)
class Gateway:
    """Answer finger requests. `tenants` are those of the current configuration."""

    context: Context
    tenants: Callable[[], Mapping[str, Tenant]]
    logs: BuildLogs
    """Logs of executors, in this process and in others; the log store is not searched."""

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the response to a request line."""
        query = line.rstrip(b"\r\n")
        if _ID.fullmatch(query) is None:
            yield b"Invalid build UUID " + _ODD.sub(b"?", query[:ECHO_MAX])
            return
        build = query.decode()
        found = self.context.build_request(build)
        # The same response for both, so that a stranger cannot learn whether a private build exists.
        if found is None or not self._readable(found):
            yield NOT_FOUND
        elif not found.locked:
            yield NOT_STARTED
        else:
            async for piece in self._log(build, found):
                yield piece

    async def _log(self, build: str, found: Open) -> AsyncGenerator[bytes, None]:
        answered = False
        try:
            async for piece in self.logs.output(build, over(self.context, build), 0):
                # The tenant may have become private in the meantime.
                if not self._readable(found):
                    return
                answered = True
                yield piece
        except NoLogs:
            if not answered:
                yield FAILED

    def _readable(self, found: Open) -> bool:
        tenant = self.tenants().get(found.request.meta.get("tenant", ""))
        return tenant is not None and Access().may_read(None, tenant)
