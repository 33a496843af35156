"""Leases are sessions of their own, and entries under a lease are ephemeral. A lease lives as long as it is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from headgate.store.types import Lease, SessionLost, Unavailable
from headgate.store.zookeeper.address import ZooKeeperAddress
from headgate.store.zookeeper.nodes import lease_of
from headgate.store.zookeeper.session import attach
from headgate.store.zookeeper.wire.jute import Do, ZooKeeperOperation, text
from headgate.store.zookeeper.wire.link import (
    ZooKeeperConnectionLost,
    ZooKeeperLink,
    ZooKeeperMultiResult,
    ZooKeeperRefused,
    ZooKeeperSessionExpired,
    ZooKeeperSessionIdentity,
    ZooKeeperTraffic,
)

ANSWER_S = 10.0
"""Time limit for an answer."""


class ZooKeeperLeaseTerm:
    """Represent one lease."""

    def __init__(
        self, address: ZooKeeperAddress, traffic: ZooKeeperTraffic, ttl_s: float, saw: Callable[[int], None]
    ) -> None:
        self.identity = ZooKeeperSessionIdentity(int(ttl_s * 1000))
        self._address, self._traffic, self._ttl_s, self._saw = address, traffic, ttl_s, saw
        self._link: ZooKeeperLink | None = None
        self._connecting = asyncio.Lock()
        self._renewed_s = asyncio.get_running_loop().time()
        self._pinger: asyncio.Task[None] | None = None
        self.unsettled = False
        """Whether a commit is unanswered, so that the servers may still apply it."""

    @property
    def lease(self) -> Lease:
        return lease_of(self.identity.session)

    async def begin(self) -> None:
        """Open the session of the lease. Raise Unavailable."""
        await self._connected()
        # Servers grant at most 20 of their ticks by default, however long a time is requested.
        if self.identity.timeout_ms / 1000 < self._ttl_s:
            self._pinger = asyncio.ensure_future(self._ping())

    async def keep_alive(self) -> None:
        """Renew the lease. Raise SessionLost or Unavailable."""
        # Shorter than a third of the lease, so that another server can be tried before `Store` counts the lease as
        # lost.
        await self._request(Do.PING, answer_s=min(ANSWER_S, max(self._ttl_s / 5, 0.2)))
        self._renewed_s = asyncio.get_running_loop().time()

    async def multi(self, parts: Sequence[ZooKeeperOperation]) -> ZooKeeperMultiResult:
        """Send a multi on the lease's connection. Raise SessionLost; Unavailable if nothing was sent;
        ZooKeeperConnectionLost if the outcome is unknown. In the last case, and if the servers can be reached,
        everything under way has been applied or dropped by then."""
        link = await self._connected()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await link.multi(Do.MULTI, parts)
        except (ZooKeeperConnectionLost, TimeoutError) as error:
            self.unsettled = True
            # `settle` moves the session to a new connection, which voids what this one may still carry.
            link.abort("an answer did not come")
            with suppress(Unavailable, SessionLost):
                await self.settle()
            raise ZooKeeperConnectionLost(str(error)) from error

    async def settle(self) -> None:
        """Make sure that no commit of this lease can take effect after this returns. Raise Unavailable or
        SessionLost."""
        try:
            # With a new connection, the session has moved: what the old one sent is either ordered before this or
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
            link.abort("an answer did not come")
            raise Unavailable(f"{self._address}: no answer for {answer_s:.1f} s") from error
        except ZooKeeperConnectionLost as error:
            raise Unavailable(f"{self._address}: {error}") from error
        self._saw(reply.zxid)

    async def _connected(self) -> ZooKeeperLink:
        # A second connection would take the session away from the first, and break what is under way there.
        async with self._connecting:
            if self._link is not None and not self._link.lost.done():
                return self._link
            try:
                self._link = await attach(self._address, self.identity, self._traffic, lambda kind, path, number: None)
            except ZooKeeperSessionExpired:
                raise SessionLost(f"the lease {self.lease} has run out") from None
            except ZooKeeperRefused as error:
                raise ZooKeeperRefused(f"{self._address}: {error}") from error
            except ZooKeeperConnectionLost as error:
                raise Unavailable(f"{self._address}: no server can be used: {error}") from error
            return self._link

    async def _ping(self) -> None:
        """Keep the lease alive between its owner's renewals, because the servers grant less time than requested."""
        loop = asyncio.get_running_loop()
        while (left_s := self._renewed_s + self._ttl_s - loop.time()) > 0:
            await asyncio.sleep(min(self.identity.timeout_ms / 3000, left_s))
            with suppress(Unavailable, SessionLost):
                await self._request(Do.PING)

    def _stop_pings(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
