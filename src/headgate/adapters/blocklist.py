"""List the addresses that builds must not reach."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Net = ipaddress.IPv4Network | ipaddress.IPv6Network
Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

ALWAYS = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",  # this machine, link, multicast
        "198.18.0.0/15",  # builds
        # A metadata service gives the machine's cloud credentials to every program on that machine, including builds.
        "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",  # metadata of clouds besides 169.254.169.254
        # Other notations and tunnels, because such an IPv6 address can stand for a denied IPv4 address.
        "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96",  # this machine, and IPv4 addresses in other notations
        "2001::/32", "2002::/16", "64:ff9b:1::/48",  # tunnels to IPv4 addresses
        "fe80::/10", "fec0::/10", "ff00::/8",  # link-local, multicast
        "fd48:6561:6467::/48",  # builds
        "fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128",  # metadata of clouds
    )
)  # fmt: skip
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses of IPv4 hosts in networks with NAT64 (RFC 6052); such an address is denied if its IPv4 address is."""


@dataclass(frozen=True, slots=True)
class DeniedNetworks:
    """Hold disjoint, sorted networks."""

    nets: tuple[Net, ...]

    @staticmethod
    def of(nets: Iterable[Net]) -> DeniedNetworks:
        """Combine these networks with those that no build ever reaches."""
        return _combined(frozenset(nets))

    def __contains__(self, address: Ip) -> bool:
        return any(address in net for net in self.nets)

    def sets(self) -> Iterator[str]:
        """Yield the definitions of nft sets, for a table."""
        for version in (4, 6):
            elements = ", ".join(str(net) for net in self.nets if net.version == version)
            yield f"set denied{version} {{ type ipv{version}_addr; flags interval; elements = {{ {elements} }}; }}"


@functools.lru_cache(maxsize=16)  # each build asks for the same ones, and this takes 2 ms
def _combined(nets: frozenset[Net]) -> DeniedNetworks:
    every = [*ALWAYS, *nets]
    # On a network with NAT64, 64:ff9b::a9fe:a9fe reaches 169.254.169.254, so every denied IPv4 network is also
    # denied in this form.
    every += [_translated(net) for net in every if isinstance(net, ipaddress.IPv4Network)]
    # nft rejects a set if two of its intervals overlap, and operators' networks may be inside the fixed ones.
    four = ipaddress.collapse_addresses(net for net in every if isinstance(net, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(net for net in every if isinstance(net, ipaddress.IPv6Network))
    return DeniedNetworks((*four, *six))


def _translated(net: ipaddress.IPv4Network) -> ipaddress.IPv6Network:
    address = int(TRANSLATED.network_address) + int(net.network_address)
    return ipaddress.IPv6Network((address, TRANSLATED.prefixlen + net.prefixlen))


def read_nets(text: str) -> list[Net]:
    """Parse addresses and networks separated by spaces or commas. Raise ValueError, which names the invalid one."""
    return [ipaddress.ip_network(word) for word in text.replace(",", " ").split()]


def single(address: str) -> Net:
    """Return the network of one address, without the interface after a `%`. Raise ValueError."""
    return ipaddress.ip_network(address.partition("%")[0])
