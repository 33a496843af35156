"""Provide existing machines that the configuration lists and the operator permits.

The driver makes and deletes nothing: the launcher records each machine, and gives it to builds once it answers.
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
"""Properties that a machine may set itself; in other clouds, only images have them."""
_NAME = re.compile(r"[a-z0-9_*]([a-z0-9_*.-]*[a-z0-9_*])?")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
"""Last label of a name that programs interpret as part of an address: `10.7` is 10.0.0.7."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def connect(given: CloudDriverOptions) -> StaticHosts:
    """Return the driver, which sends no requests. Raise UserError."""
    return StaticHosts(StaticPermits.read(given.name, given.options))


class StaticHosts:
    """Provide listed machines; see `ports.clouds.Cloud` and `ports.clouds.MachineListing`."""

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
        """Return the machine, which already exists. Raise LaunchFailed if the provider does not list it."""
        node = wanted.provider.get("node")
        if not isinstance(node, Mapping) or not node.get("name"):
            raise LaunchFailed("its provider does not list this machine")
        own = {key: node[key] for key in _OWN if node.get(key) is not None}
        # The image's port belongs to the image's connection type: a machine with winrm must not get the ssh port.
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
        """Return True, because nothing was made: the machine stays."""
        return True

    async def resources(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return no resources: no account pays for the machines."""
        return []

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Do nothing: there is nothing to delete."""

    async def limits(self, provider: Mapping[str, Any]) -> Amounts:
        """Return no limits: the provider has `resource-limits`."""
        return {}

    async def close(self) -> None:
        """Do nothing: there are no connections."""


@dataclass(frozen=True, slots=True)
class StaticPermits:
    """Permit machines by host and by project. Without hosts, all hosts are permitted; without projects, all
    projects."""

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
        # A provider may have sections of several projects, and any of them may have named the machine, so all of them
        # need permission.
        for project in sorted(projects) or [""]:
            if self.projects and not any(fnmatchcase(project, pattern) for pattern in self.projects):
                lister = f"project {project}" if project else "whoever lists it"
                return f"machine {name}: {lister} is not among `projects` of {setting} in the launcher's settings"
        where = str(host.get("host") or name)
        if (self.names or self.networks) and not self._has(where):
            return f"machine {name}: {where} is not among `hosts` of {setting} in the launcher's settings"
        return ""

    def _has(self, where: str) -> bool:
        """Return whether a machine is one of the hosts. Addresses match only networks, and names match only names,
        because the owner of a name chooses its address."""
        address = _address(where)
        if address is not None:
            return any(address in network for network in self.networks)
        name = where.lower().removesuffix(".")
        # Resolvers read names with a numeric last label as addresses, which must not be checked as names. A `*` in a
        # name would match a pattern literally.
        if _NUMBER.fullmatch(name.rpartition(".")[2]) or "*" in name or not _NAME.fullmatch(name):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.names)


def _address(text: str) -> Address | None:
    """Parse an address; return the IPv4 address for one in IPv6 notation, and None for a name."""
    try:
        found = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    # ::ffff:10.0.0.7 is the same machine as 10.0.0.7.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _network(word: str) -> Network | None:
    """Parse a network or an address; return None for a name. Raise UserError for an invalid network."""
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
        text = f"hosts: {word!r} is not a name such as *.lab.example.com, an address or a network"
        raise UserError(f"{text}; ports are not allowed")
    return name
