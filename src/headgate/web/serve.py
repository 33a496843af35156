"""The web server in our loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from headgate.base.errors import UserError


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
) -> None:
    """Until `stop` or cancelled; `bound` is told the port.  Raises UserError when the address cannot be had: `section`
    and `option` of the settings are where the port is set."""
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=1, lifespan="off", ws="websockets-sansio"
    )
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
