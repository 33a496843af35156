"""Connections of one listening socket, accepted by us: they count from their first moment, before TLS is spoken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.base.errors import UserError
from headgate.base.tasks import end

log = logging.getLogger("headgate.web")

BACKLOG = 256
HANDSHAKE_MAX_S = 10.0
HANDSHAKES_MAX = 100
"""Limit on TLS handshakes under way; another one ends the oldest."""
RETRY_S = 0.1
"""Pause after a connection could not be accepted because no descriptors are left."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Name PEM files. With `client_ca`, clients must show a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ServerCertificates:
    """Load the files of a server's TLS, and load them again for the next connection after a change."""

    def __init__(self, tls: Tls) -> None:
        """Raise UserError."""
        self._tls = tls
        self._stamps = self._now()
        try:
            self._context = self._read()
        except OSError as error:  # of a file, or of what is in it
            raise UserError(f"certificate, key or client authority cannot be used: {error}") from error

    def context(self) -> ssl.SSLContext:
        if (stamps := self._now()) != self._stamps:
            # Kept even if loading fails: a certificate written before its key
            # does not match yet, and the key's change retries.
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
        """Return a value that differs once the files have changed."""
        found = []
        for file in (self._tls.certificate, self._tls.key, self._tls.client_ca):
            with contextlib.suppress(OSError):
                facts = file.stat() if file is not None else None
                found.append((facts.st_mtime_ns, facts.st_ino, facts.st_size) if facts else None)
        return tuple(found)


def listening(host: str, port: int, section: str, option: str) -> socket.socket:
    """Return a socket that listens; `section` and `option` of the settings say where.  Raise UserError."""
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
    return listener


class Acceptor:
    """Accept connections on any number of sockets, each with a protocol of its own."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], certificates: ServerCertificates | None) -> None:
        self._protocol, self._certificates = protocol, certificates
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: dict[asyncio.Task[None], None] = {}

    def begin(self, listener: socket.socket) -> None:
        """Accept connections of this one, too."""
        listener.setblocking(False)
        self._accepting.append(asyncio.get_running_loop().create_task(self._accept(listener)))

    async def close(self) -> None:
        """Accept none any more; those that were accepted stay."""
        await end(*self._accepting, *self._entering)

    async def _accept(self, listener: socket.socket) -> None:
        loop, failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if not failing:
                    log.error("connections cannot be accepted just now: %s", error.strerror)
                failing = True
                # The waiting connection keeps the socket readable, so without a pause this loop would spin.
                await asyncio.sleep(RETRY_S)
                continue
            failing = False
            # A handshake takes up to 10 s of a peer that says nothing; the oldest is the least likely to end.
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
