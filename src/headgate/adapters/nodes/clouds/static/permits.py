"""Decide by what an operator says of a connection which machines may be listed, and by whom."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from headgate.base.errors import UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAME = re.compile(r"[a-z0-9_*]([a-z0-9_*.-]*[a-z0-9_*])?")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
"""A last label that programs interpret as part of an address: `10.7` is 10.0.0.7."""


@dataclass(frozen=True, slots=True)
class StaticPermits:
    """Permit machines. Without hosts, or without projects, all of them are permitted."""

    connection: str
    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    projects: tuple[str, ...] = ()

    @classmethod
    def read(cls, connection: str, options: Mapping[str, str]) -> StaticPermits:
        """Return the permits of a section of the settings. Raise UserError."""
        names, networks = list[str](), list[Network]()
        for word in options.get("hosts", "").split():
            found = _network(word)
            if found is not None:
                networks.append(found)
            else:
                names.append(_name(word))
        return cls(connection, tuple(names), tuple(networks), tuple(options.get("projects", "").split()))

    def refusal(self, projects: Collection[str], host: Mapping[str, Any]) -> str:
        """Return why a machine that these projects list is not used; empty if it is."""
        setting, name = f"[connection {self.connection}]", str(host.get("name") or "")
        # A provider may have sections of several projects, any of which may have named the machine: all need
        # permission.
        for project in sorted(projects) or [""]:
            if self.projects and not any(fnmatchcase(project, pattern) for pattern in self.projects):
                lister = f"project {project}" if project else "whoever lists it"
                return f"machine {name}: {lister} is not among `projects` of {setting} in the launcher's settings"
        where = str(host.get("host") or name)
        if (self.names or self.networks) and not self._has(where):
            return f"machine {name}: {where} is not among `hosts` of {setting} in the launcher's settings"
        return ""

    def _has(self, where: str) -> bool:
        """Return whether a machine is one of the hosts: addresses match networks only, and names match names only,
        since the owner of a name chooses its address."""
        address = _address(where)
        if address is not None:
            return any(address in network for network in self.networks)
        name = where.lower().removesuffix(".")
        # Resolvers read such names as addresses, which would then be checked as names; `*` would match a pattern
        # literally.
        if _NUMBER.fullmatch(name.rpartition(".")[2]) or "*" in name or not _NAME.fullmatch(name):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.names)


def _address(text: str) -> Address | None:
    """Return the address in a text; for an IPv4 address in IPv6 notation, the IPv4 address; None if it is a name."""
    try:
        found = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    # Without this, ::ffff:10.0.0.7 would be another machine than 10.0.0.7.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _network(word: str) -> Network | None:
    """Return the network in a text; None if it is a name. Raise UserError for an invalid network."""
    try:
        return ipaddress.ip_network(word)
    except ValueError as error:
        if "/" in word:
            raise UserError(f"hosts: {word!r} is not a network: {error}; write it as 10.0.0.0/8") from error
        return None


def _name(word: str) -> str:
    """Raise UserError."""
    name = word.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        text = f"hosts: {word!r} is neither a name, as *.lab.example.com, nor an address, nor a network"
        raise UserError(f"{text}; a port does not belong there")
    return name
