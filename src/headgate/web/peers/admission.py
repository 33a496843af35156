"""The connections of one server: no peer has all of them, and none is kept that gets nowhere."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import resource
from collections.abc import Callable
from dataclasses import dataclass, field

CONNECTIONS_MAX = 1_000
DESCRIPTORS_SHARE = 3
"""Divisor of the descriptors that the process may have: a server uses at most a third."""
PEER_SHARE = 2
"""Divisor of a server's connections: one peer has at most half of them."""
HEAD_MAX_S = 10.0
"""Time for the headers to arrive, from the connection or from their first byte."""
BODY_MAX_S = 60.0
STALL_MAX_S = 30.0
"""How long a peer may leave unread what is sent to it."""
CLOSE_MAX_S = 5.0
UNREAD_MAX_S = 5.0
"""Time for the rest of a body to arrive after the request was answered."""
FOREVER = math.inf
LOOPBACK = "loopback"
"""Name of the peer that stands for all programs of this machine."""


@dataclass(slots=True)
class AdmittedConnection:
    """Represent one connection."""

    transport: asyncio.Transport
    peer: str
    until_s: float
    """Deadline of the connection's present stage, by the clock of the loop."""
    unread_until_s: float = FOREVER
    """Deadline of the peer to read what is sent to it. It is apart: a peer that reads may still send too slowly."""
    busy: bool = False
    """Whether one of its requests is being answered."""


@dataclass(slots=True)
class ConnectionAdmission:
    """Admit connections. `now` returns seconds of the loop's clock."""

    now: Callable[[], float]
    connections_max: int = CONNECTIONS_MAX
    _places: dict[int, AdmittedConnection] = field(default_factory=dict)
    """Identity of the transport -> its connection, oldest first."""
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_process(cls, now: Callable[[], float]) -> ConnectionAdmission:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft // DESCRIPTORS_SHARE
        return cls(now, max(10, min(CONNECTIONS_MAX, allowed)))

    def enter(self, transport: asyncio.Transport, host: str) -> AdmittedConnection:
        """Admit a connection. If there is no room, the peer with most connections loses one: idle ones first, the
        oldest first."""
        # An upgrade to a websocket admits the same transport a second time, with another protocol.
        known = self._places.pop(id(transport), None)
        if known is not None:
            self._count(known.peer, -1)
        peer = peer_of(host)
        # The peer pays for its own excess first; only a server that is full takes from the peer with the most.
        if self._counts.get(peer, 0) >= max(1, self.connections_max // PEER_SHARE):
            self._evict(peer)
        elif len(self._places) >= self.connections_max:
            self._evict(max(self._counts, key=lambda one: self._counts[one]))
        place = self._places[id(transport)] = AdmittedConnection(transport, peer, self.now() + HEAD_MAX_S)
        self._count(peer, 1)
        return place

    def leave(self, transport: asyncio.Transport) -> None:
        place = self._places.pop(id(transport), None)
        if place is not None:
            self._count(place.peer, -1)

    def sweep(self) -> None:
        """End connections that have made no progress."""
        now = self.now()
        for place in list(self._places.values()):
            if place.transport.is_closing():
                # A closing transport waits for its peer to read the rest, which a hostile peer never does.
                place.until_s = min(place.until_s, now + CLOSE_MAX_S)
            if min(place.until_s, place.unread_until_s) <= now:
                place.transport.abort()

    def __len__(self) -> int:
        return len(self._places)

    def _evict(self, peer: str) -> None:
        mine = [place for place in self._places.values() if place.peer == peer]
        # Idle connections go first, as no answer is lost with them.
        gone = next((place for place in mine if not place.busy), mine[0])
        self.leave(gone.transport)
        gone.transport.abort()

    def _count(self, peer: str, more: int) -> None:
        self._counts[peer] = self._counts.get(peer, 0) + more
        if not self._counts[peer]:
            del self._counts[peer]


def peer_of(host: str) -> str:
    """Return the peer that an address belongs to: a network of IPv6, this machine for its own addresses, otherwise
    the address."""
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
        # One host has a whole /64 at its disposal: counted by address, it would be as many peers as it likes.
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
