"""Accept connections, with limits on their number, on the number per peer, and on the time without progress."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headgate.base.certificates import add_authorities, set_identity
from headgate.base.errors import UserError
from headgate.base.tasks import end

log = logging.getLogger("headgate.web")

CONNECTIONS_MAX = 1_000
DESCRIPTORS_SHARE = 3
"""A server uses at most one third of the file descriptors that the process may open."""
PEER_SHARE = 2
"""One peer may have at most half of a server's connections."""
HEAD_MAX_S = 10.0
"""Limit on the time for the headers to arrive, from the connection or from their first byte."""
BODY_MAX_S = 60.0
STALL_MAX_S = 30.0
"""Limit on the time for which a peer does not read what is sent to it."""
IDLE_MAX_S = 75
"""Time after which an idle connection is closed. Common proxies, load balancers and clients reuse idle connections for
at most 60 s; a request that arrives as the server closes its connection is lost, and its sender does not know whether
it had an effect."""
CLOSE_MAX_S = 5.0
EXPIRED_MAX_S = 5.0
"""Time after which a connection whose certificate has expired is closed; until then, a handler may end it with a
reason."""
UNREAD_MAX_S = 5.0
"""Limit on the time for the rest of a body to arrive after the response was sent."""
FOREVER = math.inf
LOOPBACK = "loopback"
"""Name of the peer that stands for all programs of this machine."""

BACKLOG = 256
HANDSHAKE_MAX_S = 10.0
HANDSHAKES_MAX = 100
"""Limit on simultaneous TLS handshakes; one more ends the oldest."""
RETRY_S = 0.1
"""Pause after a connection could not be accepted because no descriptors are left."""


@dataclass(slots=True)
class AdmittedConnection:
    """Represent one connection."""

    transport: asyncio.Transport
    peer: str
    now: Callable[[], float]
    """Returns seconds of the loop's clock."""
    until_s: float
    """Deadline of the connection's present stage, by that clock."""
    unread_until_s: float = FOREVER
    """Deadline for the peer to read what is sent to it. It is separate, as a peer that reads may still send too
    slowly."""
    valid_until_s: float = FOREVER
    """End of the validity of the client's certificate, if it has one: TLS checks that only when the connection is made,
    and a stream may last for months."""
    busy: bool = False
    """Whether one of its requests is being processed."""

    def receives(self) -> None:
        """Limit the time for a head, from its first byte. Later bytes do not extend it, so that a client cannot stall
        by sending slowly."""
        if not self.busy and self.until_s == FOREVER:
            self.until_s = self.now() + HEAD_MAX_S

    def expects_body(self) -> None:
        """Limit the time for the body of a request, whose head is complete."""
        self.busy, self.until_s = True, self.now() + BODY_MAX_S

    def arrived(self) -> None:
        """End the limit on the time for a request."""
        self.until_s = FOREVER

    def works(self) -> None:
        """Process a request, which may take any time."""
        self.busy, self.until_s = True, FOREVER

    def rests(self, *, unread: bool) -> None:
        """Wait for the next request; limit the time for the rest of the last one, if it is `unread`."""
        self.busy, self.until_s = False, self.now() + UNREAD_MAX_S if unread else FOREVER

    def sends(self) -> None:
        """Limit the time in which the peer has to read what was sent to it."""
        self.unread_until_s = self.now() + STALL_MAX_S

    def sent(self) -> None:
        """End that limit: the peer has read enough."""
        self.unread_until_s = FOREVER

    def closes(self) -> None:
        """Limit the time in which the peer has to read the rest, as its connection closes."""
        self.until_s = min(self.until_s, self.now() + CLOSE_MAX_S)


@dataclass(slots=True)
class ConnectionAdmission:
    """Admit connections. `now` returns seconds of the loop's clock, and `wall` those since 1970."""

    now: Callable[[], float]
    connections_max: int = CONNECTIONS_MAX
    wall: Callable[[], float] = time.time
    _places: dict[int, AdmittedConnection] = field(default_factory=dict)
    """Identity of the transport -> its connection, oldest first."""
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_process(cls, now: Callable[[], float], most: int = CONNECTIONS_MAX) -> ConnectionAdmission:
        """Return an admission of at most so many connections, and no more than the process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft // DESCRIPTORS_SHARE
        return cls(now, min(most, max(10, min(CONNECTIONS_MAX, allowed))))

    def enter(self, transport: asyncio.Transport, host: str) -> AdmittedConnection:
        """Admit a connection, and return its record. If that exceeds a limit, close one first: the oldest idle one of
        this peer if it has too many, otherwise of the peer with the most."""
        # An upgrade to a websocket admits the same transport a second time, with another protocol.
        known = self._places.pop(id(transport), None)
        if known is not None:
            self._count(known.peer, -1)
        peer = peer_of(host)
        # A peer with too many connections loses one of its own; only a full server takes from the peer with the most.
        if self._counts.get(peer, 0) >= max(1, self.connections_max // PEER_SHARE):
            self._evict(peer)
        elif len(self._places) >= self.connections_max:
            self._evict(max(self._counts, key=lambda one: self._counts[one]))
        place = self._places[id(transport)] = AdmittedConnection(
            transport, peer, self.now, self.now() + HEAD_MAX_S, valid_until_s=_expiry_s(transport)
        )
        self._count(peer, 1)
        return place

    def leave(self, transport: asyncio.Transport) -> None:
        place = self._places.pop(id(transport), None)
        if place is not None:
            self._count(place.peer, -1)

    def sweep(self) -> None:
        """End connections that have made no progress, or whose certificate has expired."""
        now, wall = self.now(), self.wall()
        for place in list(self._places.values()):
            if place.transport.is_closing():
                # A closing transport waits until its peer has read the rest; a hostile peer never does.
                place.closes()
            expired = place.valid_until_s + EXPIRED_MAX_S <= wall
            if expired or min(place.until_s, place.unread_until_s) <= now:
                place.transport.abort()

    def __len__(self) -> int:
        return len(self._places)

    def _evict(self, peer: str) -> None:
        mine = [place for place in self._places.values() if place.peer == peer]
        # Idle connections go first, as closing them loses no response.
        gone = next((place for place in mine if not place.busy), mine[0])
        self.leave(gone.transport)
        gone.transport.abort()

    def _count(self, peer: str, more: int) -> None:
        self._counts[peer] = self._counts.get(peer, 0) + more
        if not self._counts[peer]:
            del self._counts[peer]


def _expiry_s(transport: asyncio.Transport) -> float:
    """Return when the certificate of the client expires, in seconds since 1970."""
    tls = transport.get_extra_info("ssl_object")
    until = (tls.getpeercert() or {}).get("notAfter") if tls is not None else None
    return ssl.cert_time_to_seconds(until) if until else FOREVER


def peer_of(host: str) -> str:
    """Return the peer that an address counts for: `LOOPBACK` for this machine, the /64 network for IPv6, otherwise the
    address itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    # A dual-stack socket shows IPv4 peers as `::ffff:a.b.c.d`; as IPv6 they would all share one network.
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return LOOPBACK
    if isinstance(address, ipaddress.IPv6Address):
        # One host usually owns an entire /64: counted by address, it could pose as any number of peers.
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


@dataclass(frozen=True, slots=True)
class Tls:
    """Name PEM files. With `client_ca`, clients must present a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return a server's context with these files. Raise OSError, also for malformed ones."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    set_identity(made, tls.certificate, tls.key)
    if tls.client_ca is not None:
        add_authorities(made, tls.client_ca)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


class ServerCertificates:
    """Load a server's TLS files, and load them again at the next connection after they have changed."""

    def __init__(self, tls: Tls) -> None:
        """Load the files. Raise UserError."""
        self._tls = tls
        self._stamps = self._now()
        try:
            self._context = server_context(self._tls)
        except OSError as error:  # also the SSLError of a malformed file
            raise UserError(f"certificate, key or client authority cannot be used: {error}") from error

    def context(self) -> ssl.SSLContext:
        if (stamps := self._now()) != self._stamps:
            # Stored even if loading fails: a certificate that was written before
            # its key does not match yet, and the key's change triggers a retry.
            self._stamps = stamps
            try:
                self._context = server_context(self._tls)
                log.info("%s has changed and is in use from now on", self._tls.certificate)
            except OSError as error:
                log.error(
                    "%s has changed but cannot be used, so the previous one stays in use: %s",
                    self._tls.certificate,
                    error,
                )
        return self._context

    def _now(self) -> tuple[object, ...]:
        """Return a value that differs once the files have changed."""
        found = []
        for file in (self._tls.certificate, self._tls.key, self._tls.client_ca):
            with contextlib.suppress(OSError):
                facts = file.stat() if file is not None else None
                found.append((facts.st_mtime_ns, facts.st_ino, facts.st_size) if facts else None)
        return tuple(found)


def listening(host: str, port: int, section: str, option: str) -> socket.socket:
    """Return a listening socket; the error names `section` and `option`, which set the address.  Raise UserError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, responses wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = f"{section}: cannot listen on {host}:{port}: {error.strerror}; set {option} to another value"
        raise UserError(why) from error
    listener.listen(BACKLOG)
    return listener


class Acceptor:
    """Accept connections on any number of sockets, each with a protocol of its own."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], certificates: ServerCertificates | None) -> None:
        self._protocol, self._certificates = protocol, certificates
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: dict[asyncio.Task[None], None] = {}

    def begin(self, listener: socket.socket) -> None:
        """Accept connections on this socket, too."""
        listener.setblocking(False)
        self._accepting.append(asyncio.get_running_loop().create_task(self._accept(listener)))

    async def close(self) -> None:
        """Stop accepting; connections that were accepted stay open."""
        await end(*self._accepting, *self._entering)

    async def _accept(self, listener: socket.socket) -> None:
        loop, failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if not failing:
                    log.error("cannot accept connections at the moment: %s", error.strerror)
                failing = True
                # The waiting connection keeps the socket readable, so without a pause this loop would spin.
                await asyncio.sleep(RETRY_S)
                continue
            failing = False
            # A silent peer's handshake lasts up to 10 s; the oldest is the least likely to complete.
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
