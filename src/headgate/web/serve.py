"""The web server in our loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn

from headgate.web.peers.admission import LOOPBACK, ConnectionAdmission, peer_of
from headgate.web.peers.heads import HeadApplication
from headgate.web.peers.listener import Acceptor, ServerCertificates, Tls, listening
from headgate.web.peers.protocols import (
    ADMISSION,
    CLIENT_CERTIFICATE,
    WEBSOCKET_MESSAGE_MAX_BYTES,
    HttpProtocol,
    WebSocketProtocol,
)
from headgate.web.peers.requests import LOOPBACK_NAMES, CheckedApplication

__all__ = ["CLIENT_CERTIFICATE", "Tls", "serve"]

log = logging.getLogger("headgate.web")

SWEEP_TICKS = 10
"""Ticks of the server, a tenth of a second each, between two looks at connections that get nowhere."""


class _Server(uvicorn.Server):
    """Accept connections without uvicorn's help: they count from their first moment, before TLS is spoken."""

    def __init__(self, config: uvicorn.Config, certificates: ServerCertificates | None) -> None:
        super().__init__(config)
        self.servers = []
        self._admission = ConnectionAdmission.of_process(lambda: asyncio.get_running_loop().time())
        self._acceptor = Acceptor(self._protocol, certificates)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are the program's, not the server's."""
        # By default uvicorn takes over the signals of the process, which
        # would end the whole program with one of its servers.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        for listener in sockets or ():
            self._acceptor.begin(listener)
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            self._admission.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._acceptor.close()
        await super().shutdown(sockets)

    def _protocol(self) -> HttpProtocol:
        state = {**self.lifespan.state, ADMISSION: self._admission}
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
    dashboards: Collection[str] = (),
) -> None:
    """Serve until `stop` or cancelled; `bound` receives the port. `names` are names of this server besides those of
    the machine. For `shared` and `dashboards`, see `CheckedApplication`. Raise UserError if the address cannot be
    used: `section` and `option` name the setting of the port."""
    is_local = peer_of(host) == LOOPBACK or host in LOOPBACK_NAMES
    # Only a loopback server knows all its names; others are reached by names that their operators invent.
    hosts = LOOPBACK_NAMES | {host, *names} if is_local else ()
    checked = CheckedApplication(HeadApplication(app), hosts, names, shared=shared, dashboards=dashboards)
    config = _configured(checked)
    certificates = ServerCertificates(tls) if tls else None
    listener = listening(host, port, section, option)
    bound(listener.getsockname()[1])
    server = _Server(config, certificates)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        # The server closes its connections even when the caller is cancelled; the listener is closed after it.
        await asyncio.shield(serving)
        listener.close()


def _configured(app: Any) -> uvicorn.Config:  # ASGI
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=WEBSOCKET_MESSAGE_MAX_BYTES,
        # Whoever connects could otherwise claim any address and escape the limits for each peer.
        proxy_headers=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    config.load()
    return config
