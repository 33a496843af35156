"""Provide existing machines, as the configuration lists them and the operator permits.

Nothing is made and nothing is deleted: the launcher records each machine, and gives it to builds once it answers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from headgate.adapters.nodes.clouds.description import host
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports.clouds import HOST_KEY_VARIABLE, Amounts, LaunchFailed, MachineSpec, Made, Resource, State

_OWN = ("connection-type", "connection-port", "username", "python-path", "shell-type")
"""Properties that a machine may have itself, which an image has in other clouds."""
_NAME = re.compile(r"[a-z0-9_*]([a-z0-9_*.-]*[a-z0-9_*])?")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
"""A last label that programs interpret as part of an address: `10.7` is 10.0.0.7."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def connect(given: CloudDriverOptions) -> StaticHosts:
    """Return the driver, which sends nothing. Raise UserError."""
    return StaticHosts(StaticPermits.read(given.name, given.options))


class StaticHosts:
    """See `ports.clouds.Cloud` and `ports.clouds.Listing`."""

    def __init__(self, permits: StaticPermits | None = None) -> None:
        """Use the machines that `permits` allows; None: all listed ones."""
        self.permits = permits or StaticPermits("")

    def refusal(self, projects: Collection[str], host: Mapping[str, Any]) -> str:
        """Return why a machine that these projects list is not used; empty if it is."""
        return self.permits.refusal(projects, host)

    async def uses(self, wanted: MachineSpec) -> Amounts:
        """Return that a machine uses no resources of an account."""
        return {}

    async def advance(self, wanted: MachineSpec, state: State) -> Made:
        """Return the address of the machine. Raise LaunchFailed if none is configured."""
        node = wanted.provider.get("node")
        if not isinstance(node, Mapping) or not node.get("name"):
            raise LaunchFailed("its provider does not list this machine")
        own = {key: node[key] for key in _OWN if node.get(key) is not None}
        # The image's port belongs to the image's connection type: a machine with winrm must not get the port of ssh.
        if "connection-type" in own and "connection-port" not in own:
            own["connection-port"] = None
        image = {**wanted.image, **own}
        address = str(node.get("host") or node["name"])
        found = host(image, address)
        if image.get("python-path"):
            found["ansible_python_interpreter"] = image["python-path"]
        if node.get("host-key"):
            keys = (line.strip() for line in str(node["host-key"]).splitlines())
            found[HOST_KEY_VARIABLE] = "\n".join(key for key in keys if key)
        about = {"interface_ip": address, "host_id": str(node["name"]), "node_properties": node.get("attributes") or {}}
        return Made(str(node["name"]), {"host": address}, found, about)

    async def remove(self, wanted: MachineSpec, state: State) -> bool:
        """Return that there is nothing to do: the machine stays."""
        return True

    async def resources(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return nothing: no account pays for it."""
        return []

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Do nothing: there is nothing to delete."""

    async def limits(self, provider: Mapping[str, Any]) -> Amounts:
        """Return none: `resource-limits` are the provider's own."""
        return {}

    async def close(self) -> None:
        """Do nothing: nothing is kept open."""


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
    """Return the normalised name. Raise UserError."""
    name = word.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        text = f"hosts: {word!r} is neither a name, as *.lab.example.com, nor an address, nor a network"
        raise UserError(f"{text}; a port does not belong there")
    return name
