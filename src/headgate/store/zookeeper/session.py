"""Keep sessions over any number of connections: one for the store, and one for each lease."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from headgate.base.tasks import end
from headgate.store.types import Lease, SessionLost, StoreError, Unavailable
from headgate.store.zookeeper.address import ZooKeeperAddress
from headgate.store.zookeeper.nodes import lease_of
from headgate.store.zookeeper.wire import connection
from headgate.store.zookeeper.wire.jute import Do, ZooKeeperOperation, text

log = logging.getLogger("headgate.store.zookeeper")

PATIENCE_S = 5.0
"""Time that a request waits for a connection before it fails with Unavailable."""
START_S = 15.0
"""Time limit for the first connection."""
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 2.0
LOG_EVERY_S = 60.0
"""Interval at which the log repeats that there is no connection, with the reason."""
ANSWER_S = 10.0
"""Time limit for an answer."""


async def attach(
    address: ZooKeeperAddress,
    identity: connection.ZooKeeperSessionIdentity,
    traffic: connection.ZooKeeperTraffic,
    on_event: connection.EventHandler,
) -> connection.ZooKeeperLink:
    """Return a connection to the first server that answers.  Raise ZooKeeperConnectionLost with the reasons if none
    does; ZooKeeperSessionExpired; ZooKeeperRefused."""
    tls = address.tls()
    reasons: list[str] = []
    hosts = list(address.hosts)
    # Shuffled, so that clients spread over the servers, and do not always try the same dead server first.
    random.shuffle(hosts)
    # Short enough to try several servers before the session expires.
    try_s = max(1.0, min(address.session_s / 3, 3.0))
    for host, port in hosts:
        try:
            async with asyncio.timeout(try_s):
                link = await connection.ZooKeeperLink.open(host, port, tls, identity, traffic, on_event)
                await _logged_in(link, address)
                return link
        except TimeoutError:
            reasons.append(f"{host}:{port} does not answer")
        except ssl.SSLCertVerificationError as error:
            raise connection.ZooKeeperRefused(
                f"the certificate of {host}:{port} is not valid: {error.verify_message}"
            ) from error
        except (OSError, connection.ZooKeeperConnectionLost) as error:
            reasons.append(f"{host}:{port}: {_hint(error, tls, met=identity.session != 0)}")
    raise connection.ZooKeeperConnectionLost("; ".join(sorted(reasons)))


async def _logged_in(link: connection.ZooKeeperLink, address: ZooKeeperAddress) -> None:
    try:
        if address.user:
            await link.login(address.user, address.password)
    except BaseException:
        link.close()
        raise


def _hint(error: Exception, tls: ssl.SSLContext | None, *, met: bool) -> str:
    """Return a message about what went wrong and what to check. `met`: whether the servers have accepted this client
    before."""
    if isinstance(error, ssl.SSLError):
        certain = "does it speak TLS on this port?" if "WRONG_VERSION" in str(error) else "does it accept tls_cert?"
        return f"{error.reason or error}; {certain}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, connection.ZooKeeperConnectionLost | ConnectionError):
        if met:
            return f"{error or 'closed by the server'}"
        if tls is None:
            return f"{error or 'closed by the server'}; does it require TLS (tls_ca=…) there?"
        return f"{error or 'closed by the server'}; does it speak TLS there, and does it accept tls_cert=…?"
    return str(error)


class ZooKeeperSession:
    """Keep one session over any number of connections. Call `start`, then `link`. `attached` is awaited with every new
    connection, before any other code may use it; `detached` is called when it is lost."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        traffic: connection.ZooKeeperTraffic,
        on_event: connection.EventHandler,
        attached: Callable[[connection.ZooKeeperLink], Awaitable[None]],
        detached: Callable[[], None],
    ) -> None:
        self.address = address
        self.identity = connection.ZooKeeperSessionIdentity(int(address.session_s * 1000))
        self._traffic, self._on_event, self._attached, self._detached = traffic, on_event, attached, detached
        self._link: connection.ZooKeeperLink | None = None
        self._ready = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._why = "not yet connected"

    async def start(self) -> None:
        """Connect for the first time. Raise ZooKeeperRefused, or Unavailable if no server answers within START_S."""
        loop = asyncio.get_running_loop()
        end_s, wait_s = loop.time() + START_S, WAIT_FIRST_S
        while True:
            try:
                link = await self._attach()
                break
            except connection.ZooKeeperConnectionLost as lost:
                if loop.time() > end_s:
                    raise Unavailable(f"{self.address}: no server can be used: {lost}") from lost
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, WAIT_MAX_S)
            except connection.ZooKeeperRefused as refused:
                raise connection.ZooKeeperRefused(f"{self.address}: {refused}") from refused
        self._runner = asyncio.ensure_future(self._run(link))

    async def close(self) -> None:
        if self._runner is not None:
            await end(self._runner)
        if self._link is not None and not self._link.lost.done():
            with suppress(connection.ZooKeeperConnectionLost, TimeoutError):
                async with asyncio.timeout(1):
                    await self._link.call(Do.CLOSE)
            self._link.close()
        self._ready.clear()

    @property
    def present(self) -> connection.ZooKeeperLink | None:
        """Return the current connection, or None if there is none."""
        # The runner has perhaps not noticed yet that this connection is lost, but no request may be sent on it.
        if self._link is not None and self._link.lost.done():
            self._ready.clear()
        return self._link if self._ready.is_set() else None

    async def connected(self) -> connection.ZooKeeperLink:
        """Return a connection; wait for one without a time limit."""
        while (link := self.present) is None:
            await self._ready.wait()
        return link

    async def link(self) -> connection.ZooKeeperLink:
        """Return the connection. Raise Unavailable when there is none for PATIENCE_S; then nothing was sent."""
        if self.present is None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._ready.wait()
            except TimeoutError:
                raise Unavailable(f"{self.address}: not connected: {self._why}") from None
        assert self._link is not None, "ready means connected"
        return self._link

    async def _attach(self) -> connection.ZooKeeperLink:
        """Return a connection on which `attached` has restored everything. If the session has expired, prepare a new
        one and raise ZooKeeperConnectionLost, so that the caller tries again."""
        try:
            link = await attach(self.address, self.identity, self._traffic, self._on_event)
        except connection.ZooKeeperSessionExpired:
            # Only watches are lost with this session, and `attached` sets them again: leases have their own sessions.
            self.identity.forget(int(self.address.session_s * 1000))
            raise connection.ZooKeeperConnectionLost(
                "the session has expired; the next attempt begins a new one"
            ) from None
        try:
            async with self._alive(link):
                # Pings continue in the meantime, because loading the views may take longer than the session timeout.
                await self._attached(link)
        except BaseException:
            link.close()
            self._detached()
            raise
        self._link = link
        self._ready.set()
        return link

    def _alive(self, link: connection.ZooKeeperLink) -> _Pings:
        return _Pings(link, self.identity.timeout_ms / 1000)

    async def _run(self, link: connection.ZooKeeperLink) -> None:
        """Serve the connection until cancelled."""
        loop, wait_s = asyncio.get_running_loop(), WAIT_FIRST_S
        while True:
            async with self._alive(link):
                await asyncio.wait({link.lost})
            lost_s, logged_s = loop.time(), -LOG_EVERY_S
            self._ready.clear()
            self._detached()
            self._why = link.lost.result()
            log.warning("%s: connection lost: %s", self.address, self._why)
            while True:
                try:
                    link = await self._attach()
                    log.info("%s: reconnected after %.1f s", self.address, loop.time() - lost_s)
                    wait_s = WAIT_FIRST_S
                    break
                except (connection.ZooKeeperConnectionLost, StoreError) as error:
                    self._why = str(error)
                    if loop.time() - logged_s >= LOG_EVERY_S:
                        log.warning("%s: not connected: %s", self.address, self._why)
                        logged_s = loop.time()
                # Random, so that the processes that lost the same server do not all return at the same moment.
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, WAIT_MAX_S)


class _Pings:
    """Keep a connection alive while the block runs, and end it if the server has been silent for two thirds of the
    session timeout."""

    def __init__(self, link: connection.ZooKeeperLink, timeout_s: float) -> None:
        self._link, self._timeout_s = link, timeout_s
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "it was entered"
        await end(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._link.lost.done():
            # A dead server is given up while a third of the session timeout remains to reach another one.
            await asyncio.sleep(self._timeout_s / 3)
            if loop.time() - self._link.received_s >= self._timeout_s * 2 / 3:
                self._link.abort(f"no answer for {self._timeout_s * 2 / 3:.1f} s")
                return
            self._link.call(Do.PING)


class ZooKeeperLeaseTerm:
    """Represent one lease."""

    def __init__(
        self, address: ZooKeeperAddress, traffic: connection.ZooKeeperTraffic, ttl_s: float, saw: Callable[[int], None]
    ) -> None:
        self.identity = connection.ZooKeeperSessionIdentity(int(ttl_s * 1000))
        self._address, self._traffic, self._ttl_s, self._saw = address, traffic, ttl_s, saw
        self._link: connection.ZooKeeperLink | None = None
        self._connecting = asyncio.Lock()
        self._renewed_s = asyncio.get_running_loop().time()
        self._pinger: asyncio.Task[None] | None = None
        self.unsettled = False
        """Whether a commit is unanswered, so the servers may still apply it."""

    @property
    def lease(self) -> Lease:
        return lease_of(self.identity.session)

    async def begin(self) -> None:
        """Open the session of the lease. Raise Unavailable."""
        await self._connected()
        # By default, servers grant at most 20 of their ticks, even if more was requested.
        if self.identity.timeout_ms / 1000 < self._ttl_s:
            self._pinger = asyncio.ensure_future(self._ping())

    async def keep_alive(self) -> None:
        """Renew the lease. Raise SessionLost or Unavailable."""
        # Shorter than a third of the lease, so that there is time for another server before `Store` counts the lease as
        # lost.
        await self._request(Do.PING, answer_s=min(ANSWER_S, max(self._ttl_s / 5, 0.2)))
        self._renewed_s = asyncio.get_running_loop().time()

    async def multi(self, parts: Sequence[ZooKeeperOperation]) -> connection.ZooKeeperMultiResult:
        """Send a multi on the lease's connection, and return its result. Raise SessionLost; Unavailable if nothing was
        sent; ZooKeeperConnectionLost if the outcome is unknown. In the last case, everything in flight has been applied
        or dropped by then, provided that the servers are reachable."""
        link = await self._connected()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await link.multi(Do.MULTI, parts)
        except (connection.ZooKeeperConnectionLost, TimeoutError) as error:
            self.unsettled = True
            # `settle` moves the session to a new connection, after which the servers refuse requests from the old one.
            link.abort("the server did not answer in time")
            with suppress(Unavailable, SessionLost):
                await self.settle()
            raise connection.ZooKeeperConnectionLost(str(error)) from error

    async def settle(self) -> None:
        """Make sure that no commit of this lease can take effect after this returns. Raise Unavailable or
        SessionLost."""
        try:
            # The session has moved to a new connection: requests of the old one are either ordered before this sync or
            # refused.
            await self._request(Do.SYNC, text(self._address.chroot or "/"))
        except SessionLost:
            self.unsettled = False
            raise
        self.unsettled = False

    async def end(self) -> None:
        """Close the session of the lease. Raise Unavailable."""
        self._stop_pings()
        try:
            await self._request(Do.CLOSE)
        except SessionLost:
            return
        finally:
            self.drop()

    def drop(self) -> None:
        self._stop_pings()
        if self._link is not None:
            self._link.close()

    async def _request(self, kind: Do, body: bytes = b"", *, answer_s: float = ANSWER_S) -> None:
        link = await self._connected()
        try:
            async with asyncio.timeout(answer_s):
                reply = await link.call(kind, body)
        except TimeoutError as error:
            link.abort("the server did not answer in time")
            raise Unavailable(f"{self._address}: no answer for {answer_s:.1f} s") from error
        except connection.ZooKeeperConnectionLost as error:
            raise Unavailable(f"{self._address}: {error}") from error
        self._saw(reply.zxid)

    async def _connected(self) -> connection.ZooKeeperLink:
        # Locked, because a second connection would take the session away from the first and its requests in flight.
        async with self._connecting:
            if self._link is not None and not self._link.lost.done():
                return self._link
            try:
                self._link = await attach(self._address, self.identity, self._traffic, lambda kind, path, number: None)
            except connection.ZooKeeperSessionExpired:
                raise SessionLost(f"the lease {self.lease} has expired") from None
            except connection.ZooKeeperRefused as error:
                raise connection.ZooKeeperRefused(f"{self._address}: {error}") from error
            except connection.ZooKeeperConnectionLost as error:
                raise Unavailable(f"{self._address}: no server can be used: {error}") from error
            return self._link

    async def _ping(self) -> None:
        """Keep the lease alive between the owner's renewals, because the servers granted less time than requested."""
        loop = asyncio.get_running_loop()
        while (left_s := self._renewed_s + self._ttl_s - loop.time()) > 0:
            await asyncio.sleep(min(self.identity.timeout_ms / 3000, left_s))
            with suppress(Unavailable, SessionLost):
                await self._request(Do.PING)

    def _stop_pings(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
