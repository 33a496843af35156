"""Send requests to whichever etcd server answers, log in if the address has a password, and translate errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from grpc import aio

from headgate.base.certificates import client_context, set_identity
from headgate.base.tasks import end
from headgate.store.etcd.address import EtcdAddress
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import SessionLost, StoreError, TooLarge, Unavailable

M = TypeVar("M", bound=Message)

# A dead server costs two seconds. Each request that times out doubles the limit, up to LONG_S, in case the store is
# only slow.
SHORT_S = 2.0
LONG_S = 10.0
SLOW_FOR_S = 60.0
"""Time for which a store that did not answer counts as slow."""
SLOWEST_BYTES_PER_S = 100_000
"""Lowest assumed speed of a connection, by which large requests get more time."""
CONNECT_S = 5.0
"""Time limit for finding a reachable server."""
ELSEWHERE_S = 1.0
"""Time limit for finding a server other than the one that did not answer."""
AGAIN, AGAIN_AFTER_S = 2, 0.05
"""The first: minimum number of attempts at a request beyond one per server, because a broken connection looks healthy
until it is used. If connections break immediately one after the other, attempts continue for CONNECT_S. The second:
pause between attempts."""
MESSAGE_MAX_BYTES = 512 * 1024 * 1024
"""Size limit of one answer, which may be a complete tree."""
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    # gRPC must not retry automatically, because only the caller knows which requests may be sent again.
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),  # servers treat such keep-alives as an attack
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_SERVICE = "/etcdserverpb."
KEEP_ALIVE = "Lease/LeaseKeepAlive"
"""Method that keeps leases alive; its requests are counted separately."""
_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
_AWAY = (
    grpc.StatusCode.UNAVAILABLE,
    _LATE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
)
_SHUT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
PROBE_S = 3.0
"""Time limit for the diagnosis of a server that cannot be used."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""First bytes of an HTTP/2 client, followed by an empty settings frame; a server answers with its own settings."""
SETTINGS = 4
"""Type of a settings frame."""


class Patience:
    def __init__(self) -> None:
        self._limit_s = SHORT_S
        self._until_s = 0.0

    def limit_s(self, size_bytes: int, now_s: float) -> float:
        """Return the time to wait for the answer to a request of this size, in seconds."""
        if now_s > self._until_s:
            self._limit_s = SHORT_S
        return min(self._limit_s + size_bytes / SLOWEST_BYTES_PER_S, LONG_S)

    def missed(self, limit_s: float, now_s: float) -> None:
        """Record that no answer came within this time. Several requests that time out together count once."""
        self._limit_s = max(self._limit_s, min(2 * limit_s, LONG_S))
        self._until_s = now_s + SLOW_FOR_S


@dataclass(slots=True)
class EtcdTraffic:
    """Count requests and bytes; keep-alives of leases are counted separately."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    pings: int = 0

    def pinged(self) -> None:
        """Count a keep-alive."""
        self.pings += 1

    def received(self, size_bytes: int) -> None:
        """Count an answer or a piece of a stream."""
        self.received_bytes += size_bytes


class EtcdLink:
    """Keep connections to all servers, and use one of them while it answers."""

    def __init__(self, address: EtcdAddress, traffic: EtcdTraffic) -> None:
        self.address, self.traffic = address, traffic
        tls = address.tls()
        self._channels = [
            aio.secure_channel(host, tls, OPTIONS) if tls else aio.insecure_channel(host, OPTIONS)
            for host in address.hosts
        ]
        self._used, self._silent = 0, -1
        """Index of the server in use, and of the last server that did not answer; -1: none."""
        self._patience = Patience()
        self._token = ""

    async def close(self) -> None:
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    async def ask(
        self, method: str, request: Message, response_type: type[M], *, once: bool = False, large: bool = False
    ) -> M:
        """Send a request to the current server and return its answer. With `once`, the request is not sent again if its
        outcome is unknown, because it may have changed something. With `large`, the answer may have any size.

        Raise Unavailable, SessionLost, TooLarge or StoreError.
        """
        self.traffic.requests += 1
        size_bytes = request.ByteSize()
        self.traffic.sent_bytes += size_bytes
        attempts = len(self._channels) + AGAIN
        until_s = asyncio.get_running_loop().time() + CONNECT_S
        while True:
            attempts -= 1
            channel = await self.ready()
            limit_s = LONG_S if large else self.limit_s(size_bytes)
            try:
                response = await self._authenticated(
                    channel,
                    lambda c: self._call(c, method, request, response_type, limit_s),  # noqa: B023 - done with by then
                )
            except aio.AioRpcError as error:
                if _away(error):
                    # A connection that breaks immediately says nothing about how slow the store is.
                    self.unanswered(channel, limit_s if error.code() is _LATE else 0.0)
                    if not once and (attempts > 0 or asyncio.get_running_loop().time() < until_s):
                        await asyncio.sleep(AGAIN_AFTER_S)
                        continue
                raise self.translated(error) from error
            self.traffic.received(response.ByteSize())
            self.answered(channel)
            return response

    def limit_s(self, size_bytes: int = 0) -> float:
        """Return the time limit for the answer to a request of this size."""
        return self._patience.limit_s(size_bytes, asyncio.get_running_loop().time())

    def unanswered(self, channel: aio.Channel, waited_s: float = 0.0) -> None:
        """Switch to the next server, but only once if several callers report this one at the same time. `waited_s` is
        the time that the caller waited without an answer; the next servers get more time."""
        number = self._channels.index(channel)
        if waited_s:
            self._silent = number
            self._patience.missed(waited_s, asyncio.get_running_loop().time())
        # Of several callers that waited for the same server, only the first moves on; the others find the new one.
        if self._used == number:
            self._used = (number + 1) % len(self._channels)

    def answered(self, channel: aio.Channel) -> None:
        if self._silent == self._channels.index(channel):
            self._silent = -1

    async def stream(
        self, channel: aio.Channel, method: str, response_type: type[M]
    ) -> aio.StreamStreamCall[Message, M]:
        """Begin a stream on an established connection, and return the call. Raise StoreError or AioRpcError."""
        self.traffic.requests += method != KEEP_ALIVE
        await self._authenticated(channel, lambda c: _nothing())
        call = channel.stream_stream(
            _SERVICE + method, request_serializer=_bytes, response_deserializer=response_type.FromString
        )
        # With `hasleader`, a server that is cut off from the majority ends the stream instead of falling silent.
        begun: aio.StreamStreamCall[Message, M] = call(metadata=(*self._metadata, ("hasleader", "true")))
        return begun

    async def ready(self) -> aio.Channel:
        """Return an established connection. Raise Unavailable."""
        channel = self._channels[self._used]
        if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return channel
        waits = {asyncio.ensure_future(one.channel_ready()): n for n, one in enumerate(self._channels)}
        others = [wait for wait, n in waits.items() if n != self._silent]
        done = set[asyncio.Task[None]]()
        try:
            # The server that did not answer may still accept connections, and often accepts one first.
            if others and len(others) < len(waits):
                done, _ = await asyncio.wait(others, timeout=ELSEWHERE_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                done, _ = await asyncio.wait(waits, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)
        if not done:
            raise Unavailable(f"{self.address}: no server can be reached: {await reasons(self.address)}")
        self._used = min(waits[one] for one in done)
        return self._channels[self._used]

    async def _call(
        self, channel: aio.Channel, method: str, request: Message, response_type: type[M], limit_s: float = LONG_S
    ) -> M:
        call = channel.unary_unary(
            _SERVICE + method, request_serializer=_bytes, response_deserializer=response_type.FromString
        )
        return await call(request, timeout=limit_s, metadata=self._metadata)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    async def _authenticated(self, channel: aio.Channel, work: Callable[[aio.Channel], Awaitable[M]]) -> M:
        """Run `work` with a token, and again with a fresh one if the token has expired."""
        if self.address.user and not self._token:
            await self._login(channel)
        try:
            return await work(channel)
        except aio.AioRpcError as error:
            # In etcd, an expired token has no error code of its own.
            if not self.address.user or "invalid auth token" not in (error.details() or ""):
                raise
        await self._login(channel)
        return await work(channel)

    async def _login(self, channel: aio.Channel) -> None:
        self._token = ""
        who = pb.AuthenticateRequest(name=self.address.user, password=self.address.password)
        try:
            self._token = (await self._call(channel, "Auth/Authenticate", who, pb.AuthenticateResponse)).token
        except aio.AioRpcError as error:
            if _away(error):
                raise
            raise StoreError(
                f"{self.address}: the user {self.address.user!r} or the password is wrong ({error.details()})"
            ) from error

    def translated(self, error: aio.AioRpcError) -> StoreError:
        """Translate an error of etcd into one of the store."""
        text = f"{self.address}: {(error.details() or '').removeprefix('etcdserver: ') or error.code().name}"
        if error.code() is _LATE:
            return Unavailable(f"{self.address}: no answer in time")
        if _away(error):
            return Unavailable(text)
        if error.code() is grpc.StatusCode.NOT_FOUND and "lease" in text:
            return SessionLost(f"{self.address}: the lease has expired")
        if error.code() in _SHUT or "user name is empty" in text:
            return StoreError(f"{text}; use a user with access to the keys below {self.address.root or '/'}")
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in text:
            return Unavailable(f"{text}; compact and defragment it, then disarm its alarm (etcdctl alarm disarm)")
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED or "too large" in text:
            return TooLarge(text)
        return StoreError(text)


def _away(error: aio.AioRpcError) -> bool:
    """Return whether the error means that the server cannot be used now. A server reports dropped proposals while the
    cluster elects a new leader."""
    return error.code() in _AWAY or "proposal dropped" in (error.details() or "")


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


async def _nothing() -> pb.Header:
    return pb.Header()


async def reasons(address: EtcdAddress) -> str:
    """Return a message about why each server cannot be used."""
    return "; ".join(await asyncio.gather(*(_of(host, address) for host in address.hosts)))


async def _of(host: str, address: EtcdAddress) -> str:
    try:
        async with asyncio.timeout(PROBE_S):
            head = await _first_bytes(host, address)
    except TimeoutError:
        return f"{host} does not answer"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {host} is not valid: {error.verify_message}"
    except ssl.SSLError as error:
        plain = "WRONG_VERSION" in str(error)
        return f"{host}: {error.reason}; " + ("does it speak TLS?" if plain else "does it accept tls_cert?")
    except ConnectionRefusedError:
        return f"{host}: connection refused"
    except OSError as error:
        return f"{host}: {str(error) or 'closed by the server'}; {_hint(address)}"
    # A frame begins with three bytes of length; the fourth is its type.
    if head[3:4] == bytes([SETTINGS]):
        return f"{host} accepts connections, but does not answer requests"
    return f"{host} does not speak etcd's protocol; {_hint(address)}"


def _hint(address: EtcdAddress) -> str:
    return "does it speak TLS and accept tls_cert?" if address.tls_ca else "does it require TLS (tls_ca=…)?"


async def _first_bytes(host: str, address: EtcdAddress) -> bytes:
    """Return the header of the first frame of the answer, or whatever else the server sends."""
    name, _, port = host.rpartition(":")
    reader, writer = await asyncio.open_connection(name.strip("[]"), int(port), ssl=_context(address))
    try:
        writer.write(PREFACE)
        return await reader.read(9)
    finally:
        writer.transport.abort()


def _context(address: EtcdAddress) -> ssl.SSLContext | None:
    if not address.tls_ca:
        return None
    context = client_context(address.tls_ca)
    # gRPC servers may close a TLS connection that has not negotiated HTTP/2.
    context.set_alpn_protocols(["h2"])
    if address.tls_cert:
        set_identity(context, address.tls_cert, address.tls_key or None)
    return context
