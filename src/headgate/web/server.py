"""Serve HTTP and WebSocket with uvicorn, with limits on times and sizes, and strict checks of requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headgate.base.errors import HeadgateError
from headgate.web.peers import connections
from headgate.web.peers.requests import LOOPBACK_NAMES, CheckedApplication, HeadApplication

log = logging.getLogger("headgate.web")

CLIENT_CERTIFICATE = "client_certificate"
"""Key in the state of a request: the client's verified certificate, as PEM bytes."""
ADMISSION = "admission"
"""Key in the state of the application: its connection admission."""
HANDOVER = "headgate.handover"
"""ASGI extension by which a handler takes over the connection once its response has begun: `HttpProtocol.let_go`."""
URL_MAX_BYTES = 8_192
HEAD_MAX_BYTES = 32_768
HEADERS_MAX = 100
ONCE = {b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding", b"origin"}
"""Headers that may occur only once: given two, a proxy might use the first and this server the last."""
UNREAD_MAX_BYTES = 1 << 20
WEBSOCKET_MESSAGE_MAX_BYTES = 65_536

SWEEP_TICKS = 10
"""Ticks of the server, a tenth of a second each, between two sweeps for connections without progress."""


class MalformedRequest(HeadgateError):
    """Report a malformed request: the protocol sends its status and closes the connection."""


class HttpProtocol(HttpToolsProtocol):
    """Serve one connection."""

    _place: connections.AdmittedConnection
    _status = 400
    _why = "this is not an HTTP request"
    _head_bytes = 0
    _unread_bytes = 0
    """Bytes of a body that arrived after the response was sent, and were discarded."""

    @property
    def _admission(self) -> connections.ConnectionAdmission:
        admission: connections.ConnectionAdmission = self.app_state[ADMISSION]
        return admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(Any, transport))  # uvicorn declares a narrower type than asyncio
        self._place = self._admission.enter(self.transport, self.client[0] if self.client else "")
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        if shown:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: ssl.DER_cert_to_PEM_cert(shown).encode()}

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._place.receives()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {HANDOVER: cast(Any, self.let_go)}
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        # The parser passes an address in pieces as they arrive, so the limit applies to their sum.
        if len(self.url) + len(url) > URL_MAX_BYTES:
            self._refuse(414, f"the address is longer than {URL_MAX_BYTES} bytes")
        # uvicorn decodes the path as ASCII: other bytes would raise an error there instead of being refused.
        if any(byte <= 0x20 or byte >= 0x7F for byte in url):
            self._refuse(400, "the address has characters other than printable ASCII: percent-encode them")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_MAX_BYTES or len(self.headers) >= HEADERS_MAX:
            self._refuse(431, f"there are more than {HEADERS_MAX} headers, or more than {HEAD_MAX_BYTES} bytes of them")
        lower = name.lower()
        if lower in ONCE and any(known == lower for known, _ in self.headers):
            self._refuse(400, f"the header {lower.decode()} is repeated")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        names = {name for name, _ in self.headers}
        # Protects against request smuggling: if a proxy uses one of them and the
        # server the other, they disagree on where the next request begins.
        if {b"content-length", b"transfer-encoding"} <= names:
            self._refuse(400, "the request has both Content-Length and Transfer-Encoding")
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            self._refuse(400, "the header Host is missing")
        self._place.expects_body()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._place.arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline or not self.cycle.response_complete:
            return
        # Closing while a body is still arriving would reset the connection and might lose the response; but a body may
        # be endless, so the wait for it is limited.
        self._unread_bytes = 0
        self._place.rests(unread=self.cycle.more_body)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > UNREAD_MAX_BYTES:
                self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._place.sends()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._place.sent()

    def let_go(self) -> socket.socket | None:
        """Give the connection away: return its socket, on which the next bytes must be a chunk of the body.  None:
        impossible, as it uses TLS, or has other data to send or requests to answer."""
        cycle, transport = self.cycle, self.transport
        tls = transport.get_extra_info("ssl_object") is not None
        busy = self.pipeline or transport.get_write_buffer_size() or transport.is_closing()
        streaming = cycle.response_started and not (cycle.response_complete or cycle.disconnected or cycle.more_body)
        if tls or busy or not streaming or not cycle.chunked_encoding:
            return None
        # The duplicate keeps the connection open when the transport closes
        # its own descriptor, so the peer does not see an end.
        own: socket.socket = transport.get_extra_info("socket").dup()
        # Makes uvicorn drop what the application still sends, above all the final chunk, which would end the response.
        cycle.disconnected = True
        transport.abort()
        return own

    def _refuse(self, status: int, why: str) -> None:
        self._status, self._why = status, why
        raise MalformedRequest(why)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a response is being sent
            self.transport.close()
            return
        text = self._why.encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
        self.transport.write(STATUS_LINE[self._status] + head + text)
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Serve one connection that was upgraded to a WebSocket."""

    _place: connections.AdmittedConnection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        admission: connections.ConnectionAdmission = self.app_state[ADMISSION]
        self._admission = admission
        self._place = admission.enter(self.transport, self.client[0] if self.client else "")
        self._place.works()

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.leave(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._place.sends()
        # Pings need answers, too: without this, a peer that sends pings but reads nothing fills the buffer.
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._place.sent()
        if not self.read_paused:
            self.transport.resume_reading()


class _Server(uvicorn.Server):
    """Accept connections instead of uvicorn, so that they count from the beginning, before the TLS handshake."""

    def __init__(self, config: uvicorn.Config, certificates: connections.ServerCertificates | None) -> None:
        super().__init__(config)
        self.servers = []
        self._admission = connections.ConnectionAdmission.of_process(lambda: asyncio.get_running_loop().time())
        self._acceptor = connections.Acceptor(self._protocol, certificates)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        # By default, uvicorn handles the signals of the process: the program
        # would not see them.
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
    tls: connections.Tls | None = None,
    names: Collection[str] = (),
    shared: bool = False,
    dashboards: Collection[str] = (),
) -> None:
    """Serve until `stop` or cancelled; `bound` receives the port. `names` are further host names of this server. For
    `shared` and `dashboards`, see `CheckedApplication`. Raise UserError if the address cannot be used; the error names
    `section` and `option`, the setting of the port."""
    is_local = connections.peer_of(host) == connections.LOOPBACK or host in LOOPBACK_NAMES
    # Only a loopback server knows all its host names; others have names that their operators choose.
    hosts = LOOPBACK_NAMES | {host, *names} if is_local else ()
    checked = CheckedApplication(HeadApplication(app), hosts, names, shared=shared, dashboards=dashboards)
    config = _configured(checked)
    certificates = connections.ServerCertificates(tls) if tls else None
    listener = connections.listening(host, port, section, option)
    bound(listener.getsockname()[1])
    server = _Server(config, certificates)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        # Shielded, so that the server closes its connections even if the caller is cancelled.
        await asyncio.shield(serving)
        listener.close()


def _configured(app: Any) -> uvicorn.Config:  # ASGI
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=WEBSOCKET_MESSAGE_MAX_BYTES,
        # Otherwise peers could claim any address in a header and evade the limits per peer.
        proxy_headers=False,
        server_header=False,
        # The default replaces the handlers of the process, and writes lines of another format.
        log_config=None,
        log_level="warning",
        timeout_keep_alive=connections.IDLE_MAX_S,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    config.load()
    return config
