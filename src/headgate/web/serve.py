"""The web server in our loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from headgate.base.errors import UserError
from headgate.base.tasks import end
from headgate.web.peers.door import LOOPBACK, Door, peer_of
from headgate.web.peers.protocols import (
    CLIENT_CERTIFICATE,
    DOOR,
    WEBSOCKET_MESSAGE_MAX_BYTES,
    HttpProtocol,
    WebSocketProtocol,
)
from headgate.web.peers.requests import LOOPBACK_NAMES, Checked

__all__ = ["CLIENT_CERTIFICATE", "Tls", "serve"]

log = logging.getLogger("headgate.web")

BACKLOG = 256
HANDSHAKE_MAX_S = 10.0
HANDSHAKES_MAX = 100
"""Of TLS, under way; who begins another ends the oldest."""
TROUBLE_PAUSE_S = 0.1
"""When no connection can be accepted, as there are no descriptors."""
SWEEP_TICKS = 10
"""Ticks of the server, a tenth of a second each, between two looks at connections that get nowhere."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files.  With `client_ca`, clients show a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Certificates:
    """The files of a server's TLS, read again for the next connection when one has changed."""

    def __init__(self, tls: Tls) -> None:
        """Raises UserError."""
        self._tls = tls
        self._stamps = self._now()
        try:
            self._context = self._read()
        except OSError as error:  # of a file, or of what is in it
            raise UserError(f"certificate, key or client authority cannot be used: {error}") from error

    def context(self) -> ssl.SSLContext:
        if (stamps := self._now()) != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._read()
                log.info("%s has changed, and is shown from now on", self._tls.certificate)
            except OSError as error:
                log.error("%s: what has changed cannot be used, the old is shown: %s", self._tls.certificate, error)
        return self._context

    def _read(self) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(self._tls.certificate, self._tls.key)
        if self._tls.client_ca is not None:
            made.load_verify_locations(self._tls.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def _now(self) -> tuple[object, ...]:
        """What tells of a change."""
        found = []
        for file in (self._tls.certificate, self._tls.key, self._tls.client_ca):
            with contextlib.suppress(OSError):
                told = file.stat() if file is not None else None
                found.append((told.st_mtime_ns, told.st_ino, told.st_size) if told else None)
        return tuple(found)


class _Server(uvicorn.Server):
    """Accepts by itself: connections count from their first moment, before TLS is spoken."""

    def __init__(self, config: uvicorn.Config, certificates: Certificates | None) -> None:
        super().__init__(config)
        self._certificates = certificates
        self.servers = []
        self._door = Door.of_process(lambda: asyncio.get_running_loop().time())
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: dict[asyncio.Task[None], None] = {}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the program's, not the server's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        for listener in sockets or ():
            listener.setblocking(False)
            self._accepting.append(asyncio.get_running_loop().create_task(self._accept(listener)))
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            self._door.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await end(*self._accepting, *self._entering)
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop, troubled = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if not troubled:
                    log.error("connections cannot be accepted just now: %s", error.strerror)
                troubled = True
                await asyncio.sleep(TROUBLE_PAUSE_S)
                continue
            troubled = False
            if len(self._entering) >= HANDSHAKES_MAX:
                next(iter(self._entering)).cancel()
            task = loop.create_task(self._enter(connection))
            self._entering[task] = None
            task.add_done_callback(lambda done: self._entering.pop(done, None))

    async def _enter(self, connection: socket.socket) -> None:
        tls = self._certificates.context() if self._certificates else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_MAX_S if tls else None
            )
        except (OSError, asyncio.CancelledError):  # a handshake that failed, or took too long
            connection.close()

    def _protocol(self) -> HttpProtocol:
        state = {**self.lifespan.state, DOOR: self._door}
        return HttpProtocol(self.config, self.server_state, state)


async def serve(
    app: Any,  # ASGI
    host: str,
    port: int,
    stop: asyncio.Event,
    bound: Callable[[int], None],
    section: str = "[web]",
    option: str = "port",
    tls: Tls | None = None,
    names: Collection[str] = (),
    shared: bool = False,
) -> None:
    """Until `stop` or cancelled; `bound` is told the port.  `names`: by which people reach a server of this machine,
    beside those of the machine itself.  `shared`: see `Checked`.  Raises UserError when the address cannot be had:
    `section` and `option` of the settings are where the port is set."""
    here = peer_of(host) == LOOPBACK or host in LOOPBACK_NAMES
    hosts = LOOPBACK_NAMES | {host, *names} if here else ()
    config = _configured(Checked(app, hosts, names, shared=shared))
    certificates = Certificates(tls) if tls else None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once on a socket that says it is TCP; else each answer waits 40 ms for an acknowledgement
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = f"{section} {host}:{port} cannot be listened on: {error.strerror}; set {option} to another"
        raise UserError(why) from error
    listener.listen(BACKLOG)
    bound(listener.getsockname()[1])
    server = _Server(config, certificates)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        await asyncio.shield(serving)
        listener.close()


def _configured(app: Any) -> uvicorn.Config:  # ASGI
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=WEBSOCKET_MESSAGE_MAX_BYTES,
        proxy_headers=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    config.load()
    return config
