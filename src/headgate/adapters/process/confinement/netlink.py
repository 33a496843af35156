"""Make and remove network interfaces through netlink, see rtnetlink(7): standard library only, see `errands`.

A message to the kernel costs microseconds, a call of the program `ip` milliseconds, and each build needs a dozen.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

_NEW_LINK, _DELETE_LINK, _GET_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 17, 18, 20, 24
_REQUEST, _ACKNOWLEDGE, _MAKE = 0x1, 0x4, 0x600
"""Flags of a message; `_MAKE` creates an object, and fails if it exists."""
_ERROR = 2
_LINK_NAME, _LINK_INFO, _LINK_NAMESPACE = 3, 18, 28
_INFO_KIND, _INFO_DATA, _PEER = 1, 2, 1
_ADDRESS, _LOCAL = 1, 2
_ROUTE_INTERFACE, _ROUTE_GATEWAY = 4, 5
_UP = 0x1
_WITHOUT_DETECTION = 0x2
"""Flag that skips duplicate address detection, which keeps an address unusable for more than a second."""
_MAIN_TABLE, _BOOT, _UNICAST = 254, 3, 1
_MESSAGE_MAX_BYTES = 65_536
_HEAD = struct.Struct("=IHHII")
_LINK, _ADDRESSED, _ROUTE = struct.Struct("=BxHiII"), struct.Struct("=BBBBI"), struct.Struct("=8BI")
INNER = "eth0"
"""Name of the interface in the network of a build."""


class Link(NamedTuple):
    """Describe how the two interfaces of a pair are connected in one IP version."""

    outer: str
    inner: str
    length: int
    """Length of the prefix that both addresses share."""


class Netlink:
    """Send requests to the network namespace in which this process is when the object is made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def add_pair(self, name: str, net: int) -> None:
        """Make an interface here, and its peer in the network namespace `net`.  Raise OSError."""
        peer = _LINK.pack(0, 0, 0, 0, 0) + _name(INNER) + _part(_LINK_NAMESPACE, struct.pack("=I", net))
        info = _part(_INFO_KIND, b"veth") + _part(_INFO_DATA, _part(_PEER, peer))
        self._ask(_NEW_LINK, _MAKE, _LINK.pack(0, 0, 0, 0, 0) + _name(name) + _part(_LINK_INFO, info))

    def set_up(self, name: str, addresses: Sequence[tuple[str, int]]) -> None:
        """Give an interface its addresses, each with the length of its prefix, and set it up. Raise OSError."""
        index = self._index(name)
        for address, length in addresses:
            family, packed = _packed(address)
            flags = _WITHOUT_DETECTION if family == socket.AF_INET6 else 0
            parts = _part(_LOCAL, packed) + _part(_ADDRESS, packed)
            self._ask(_NEW_ADDRESS, _MAKE, _ADDRESSED.pack(family, length, flags, 0, index) + parts)
        self._ask(_NEW_LINK, 0, _LINK.pack(0, 0, index, _UP, _UP))

    def add_default_route(self, name: str, gateway: str) -> None:
        """Add a default route through a gateway. Raise OSError."""
        family, packed = _packed(gateway)
        head = _ROUTE.pack(family, 0, 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, 0)
        parts = _part(_ROUTE_INTERFACE, struct.pack("=I", self._index(name))) + _part(_ROUTE_GATEWAY, packed)
        self._ask(_NEW_ROUTE, _MAKE, head + parts)

    def remove(self, name: str) -> None:
        """Remove an interface, and with it its peer.  Raise OSError."""
        self._ask(_DELETE_LINK, 0, _LINK.pack(0, 0, 0, 0, 0) + _name(name))

    def _index(self, name: str) -> int:
        found: int = _LINK.unpack_from(self._ask(_GET_LINK, 0, _LINK.pack(0, 0, 0, 0, 0) + _name(name)))[2]
        return found

    def _ask(self, kind: int, flags: int, body: bytes) -> bytes:
        """Return the body of the kernel's answer.  Raise OSError."""
        flags |= _REQUEST | (0 if kind == _GET_LINK else _ACKNOWLEDGE)
        self._socket.send(_HEAD.pack(_HEAD.size + len(body), kind, flags, 0, 0) + body)
        answer = self._socket.recv(_MESSAGE_MAX_BYTES)
        if _HEAD.unpack_from(answer)[1] == _ERROR:
            number = -struct.unpack_from("=i", answer, _HEAD.size)[0]
            if number:
                raise OSError(number, f"the network cannot be changed: {os.strerror(number)}")
        return answer[_HEAD.size :]


def connect(outside: Netlink, inside: Netlink, name: str, net: int, links: Sequence[Link]) -> None:
    """Give the network namespace `net`, in which `inside` was made, a way out through the interface `name`. Raise
    OSError."""
    outside.add_pair(name, net)
    inside.set_up(INNER, [(link.inner, link.length) for link in links])
    outside.set_up(name, [(link.outer, link.length) for link in links])
    # A route can only be added once both ends are up.
    for link in links:
        inside.add_default_route(INNER, link.outer)


def remove(name: str) -> None:
    """Remove an interface of the network of this process. Raise OSError if there is none."""
    with Netlink() as here:
        here.remove(name)


def _packed(address: str) -> tuple[int, bytes]:
    found = ipaddress.ip_address(address)
    return socket.AF_INET if found.version == 4 else socket.AF_INET6, found.packed


def _name(name: str) -> bytes:
    return _part(_LINK_NAME, name.encode() + b"\0")


def _part(kind: int, value: bytes) -> bytes:
    """Return an attribute of a message, padded to the kernel's alignment."""
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
