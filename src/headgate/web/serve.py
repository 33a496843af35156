"""The web server in our loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from asyncio import BaseTransport
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.base.errors import UserError

CLIENT_CERTIFICATE = "client_certificate"
"""In the state of a request: the certificate its client showed and that was verified, PEM as bytes."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files.  With `client_ca`, clients show a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class _Protocol(HttpToolsProtocol):
    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # as above
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        if shown:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: ssl.DER_cert_to_PEM_cert(shown).encode()}


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the program's, not the server's."""
        yield


async def serve(
    app: Any,  # ASGI
    host: str,
    port: int,
    stop: asyncio.Event,
    bound: Callable[[int], None],
    section: str = "[web]",
    option: str = "port",
    tls: Tls | None = None,
) -> None:
    """Until `stop` or cancelled; `bound` is told the port.  Raises UserError when the address cannot be had: `section`
    and `option` of the settings are where the port is set."""
    config = _configured(app, tls)
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
    listener.listen()
    bound(listener.getsockname()[1])
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        await asyncio.shield(serving)
        listener.close()


def _configured(app: Any, tls: Tls | None) -> uvicorn.Config:  # ASGI
    """Raises UserError."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_level="warning",
        timeout_graceful_shutdown=1,
        lifespan="off",
        ws="websockets-sansio",
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:  # of a file, or of what is in it
        raise UserError(f"certificate, key or client authority cannot be used: {error}") from error
    return config
