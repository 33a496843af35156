"""Manage one connection to one server: send frames, and receive answers and events in order."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5
from secrets import token_hex

from headgate.base.errors import HeadgateError
from headgate.store.types import StoreError, TooLarge
from headgate.store.zookeeper.wire import jute

EventHandler = Callable[[int, str, int], None]
"""Takes the kind, the full path and the number of an event."""

URI = "zookeeper/zk-sasl-md5"
"""Service name in answers to SASL challenges."""
_FIELD = re.compile(rb'([a-z-]+)=(?:"([^"]*)"|([^,]*))')


class ZooKeeperConnectionLost(HeadgateError):
    """Report that the connection broke; requests in flight may or may not have taken effect."""


class ZooKeeperSessionExpired(HeadgateError):
    """Report that the server has ended the session."""


class ZooKeeperRefused(StoreError):
    """Report that the server rejects this client until a person changes the configuration."""


@dataclass(slots=True)
class ZooKeeperTraffic:
    """Count the traffic of all connections of a backend; pings are counted separately."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    pings: int = 0
    events: int = 0


@dataclass(slots=True)
class ZooKeeperSessionIdentity:
    """Identify a session to the servers."""

    timeout_ms: int
    """Requested timeout; after the first connection, the granted one."""
    session: int = 0
    password: bytes = b"\x00" * 16
    zxid: int = 0
    """Newest state that was seen; a server that is behind it refuses the connection."""

    def forget(self, timeout_ms: int) -> None:
        """Forget the session, which has expired, so that the next connection begins one with this timeout."""
        self.timeout_ms, self.session, self.password = timeout_ms, 0, b"\x00" * 16


@dataclass(frozen=True, slots=True)
class Reply:
    zxid: int
    code: int
    body: jute.ZooKeeperReader
    events: int
    """Number of events that preceded the answer."""


@dataclass(frozen=True, slots=True)
class ZooKeeperMultiResult:
    """Hold the result of a multi: one answer per part, or only error codes if it failed."""

    zxid: int
    answers: list[jute.Answer]
    events: int


class ZooKeeperLink(asyncio.Protocol):
    """Represent a connection; open it with `await ZooKeeperLink.open(…)`. `lost` is done once the connection is
    lost."""

    def __init__(self, identity: ZooKeeperSessionIdentity, traffic: ZooKeeperTraffic, on_event: EventHandler) -> None:
        self.identity, self._traffic, self._on_event = identity, traffic, on_event
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.received_s = self._loop.time()
        """Time at which the server last sent something."""
        self._hello: asyncio.Future[jute.ZooKeeperReader] = self._loop.create_future()
        self._waiting: deque[tuple[int, asyncio.Future[Reply]]] = deque()
        self._xid = 0
        self._data = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        identity: ZooKeeperSessionIdentity,
        traffic: ZooKeeperTraffic,
        on_event: EventHandler,
    ) -> ZooKeeperLink:
        """Connect and attach the session. Raise ZooKeeperConnectionLost, ZooKeeperSessionExpired or OSError."""
        link = cls(identity, traffic, on_event)
        await link._loop.create_connection(lambda: link, host, port, ssl=tls, server_hostname=host if tls else None)
        try:
            link._write(jute.connect(identity.zxid, identity.timeout_ms, identity.session, identity.password))
            timeout_ms, session, password = (await link._hello).connected()
            if timeout_ms <= 0:
                raise ZooKeeperSessionExpired
            identity.timeout_ms, identity.session, identity.password = timeout_ms, session, password
        except BaseException:
            link.close()
            raise
        return link

    async def login(self, user: str, password: str) -> None:
        """Log in with SASL DIGEST-MD5. Raise ZooKeeperRefused."""
        try:
            first = await self.call(jute.Do.SASL, jute.buffer(b""))
            challenge = first.body.buffer() or b""
            last = await self.call(jute.Do.SASL, jute.buffer(digest_answer(challenge, user, password)))
            code = first.code or last.code
        # Servers give no reason when they close the connection of a client with a wrong password.
        except (ZooKeeperConnectionLost, ZooKeeperRefused, ValueError) as error:
            raise ZooKeeperRefused(
                f"user {user!r} was refused: unknown to the servers, or the password is wrong"
            ) from error
        if code:
            raise ZooKeeperRefused(f"user {user!r} was refused: unknown to the servers, or the password is wrong")

    def call(self, kind: jute.Do, body: bytes = b"") -> asyncio.Future[Reply]:
        """Send a request immediately, and return the future of its reply, which fails with ZooKeeperConnectionLost if
        the connection ends first, and with ZooKeeperRefused if the server requires a login before."""
        found: asyncio.Future[Reply] = self._loop.create_future()
        frame_bytes = len(body) + 12
        # The server would close the connection instead of answering, and all other requests would fail with it.
        if frame_bytes > jute.FRAME_MAX_BYTES:
            raise TooLarge(
                f"with its parent nodes, this commit takes {frame_bytes} bytes, more than {jute.FRAME_MAX_BYTES}"
            )
        if self.lost.done():
            found.set_exception(ZooKeeperConnectionLost(self.lost.result()))
            found.exception()  # marks it as retrieved: a cancelled caller never reads it
            return found
        if kind is jute.Do.PING:
            xid = jute.PING_XID
            self._traffic.pings += 1
        else:
            # Negative numbers are reserved for events, pings and logins.
            self._xid = xid = self._xid % 0x7FFFFFFF + 1
            self._traffic.requests += 1
        self._waiting.append((xid, found))
        self._write(jute.request(xid, kind, body))
        return found

    async def multi(self, kind: jute.Do, parts: Sequence[jute.ZooKeeperOperation]) -> ZooKeeperMultiResult:
        reply = await self.call(kind, jute.multi(parts))
        answers: list[jute.Answer] = reply.body.multi() if reply.body.left else [reply.code for _ in parts]
        return ZooKeeperMultiResult(reply.zxid, answers, reply.events)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._end("closed")

    def abort(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport), "TCP and TLS can be written to"
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "closed by the server")

    def data_received(self, data: bytes) -> None:
        self.received_s = self._loop.time()
        self._traffic.received_bytes += len(data)
        self._data += data
        # Frames are removed from the buffer together at the end; one by one, each removal would move the rest.
        at = 0
        while len(self._data) - at >= 4:
            end = at + 4 + int.from_bytes(self._data[at : at + 4], "big")
            if len(self._data) < end:
                break
            frame, at = bytes(self._data[at + 4 : end]), end
            try:
                self._frame(jute.ZooKeeperReader(frame))
            except ValueError as error:
                # Before `close`, which would give "closed" as the reason of the loss.
                self._end(str(error))
                self.close()
                return
        del self._data[:at]

    def _frame(self, reader: jute.ZooKeeperReader) -> None:
        if not self._hello.done():
            self._hello.set_result(reader)
            return
        xid, zxid, code = reader.reply()
        if xid == jute.WATCH_XID:
            self._traffic.events += 1
            self._on_event(*reader.event(), self._traffic.events)
            return
        if zxid > 0:
            self.identity.zxid = max(self.identity.zxid, zxid)
        if xid == jute.AUTH_XID:
            return
        wanted, found = self._waiting.popleft()
        # Answers come in the order of the requests. After one out of order, no later answer can be trusted.
        if wanted != xid:
            raise ValueError(f"received an answer to request {xid} instead of {wanted}")
        if not found.done():
            if code in (jute.Code.SESSION_EXPIRED, jute.Code.SESSION_MOVED, jute.Code.AUTH_FAILED):
                found.set_exception(ZooKeeperConnectionLost(f"the server answered {jute.Code(code).name}"))
                found.exception()  # marks it as retrieved, see `call`
            elif code == jute.Code.LOGIN_REQUIRED:
                found.set_exception(ZooKeeperRefused("it requires a login: give user:password@ in the URL"))
                found.exception()  # marks it as retrieved, see `call`
            else:
                found.set_result(Reply(zxid, code, reader, self._traffic.events))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.lost.done():
            self._traffic.sent_bytes += len(data)
            self._transport.write(data)

    def _end(self, why: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(why)
        if not self._hello.done():
            self._hello.set_exception(ZooKeeperConnectionLost(why))
            self._hello.exception()  # marks it as retrieved, see `call`
        for _, found in self._waiting:
            if not found.done():
                found.set_exception(ZooKeeperConnectionLost(why))
                found.exception()  # marks it as retrieved, see `call`
        self._waiting.clear()


def digest_answer(challenge: bytes, user: str, password: str, nonce: str = "", *, uri: str = URI) -> bytes:
    """Return the answer to the server's challenge. Raise ValueError for an invalid challenge."""
    fields = {name.decode(): (quoted or plain).decode() for name, quoted, plain in _FIELD.findall(challenge)}
    if "nonce" not in fields:
        raise ValueError(f"not a DIGEST-MD5 challenge: {challenge[:80]!r}")
    realm, theirs, ours = fields.get("realm", ""), fields["nonce"], nonce or token_hex(16)
    secret = md5(f"{user}:{realm}:{password}".encode()).digest() + f":{theirs}:{ours}".encode()
    proof = f"{md5(secret).hexdigest()}:{theirs}:00000001:{ours}:auth:{_hex(f'AUTHENTICATE:{uri}')}"
    return (
        f'charset=utf-8,username="{user}",realm="{realm}",nonce="{theirs}",nc=00000001,cnonce="{ours}",'
        f'digest-uri="{uri}",maxbuf=65536,response={_hex(proof)},qop=auth'
    ).encode()


def _hex(value: str) -> str:
    return md5(value.encode()).hexdigest()
