"""Machines that are there anyway: what is told of one is what the configuration says of it.

Nothing is made and nothing goes.  The launcher writes each machine down, and gives it away once it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headgate.adapters.nodes.clouds.description import host
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.adapters.nodes.clouds.static.permits import StaticPermits
from headgate.ports.cloud import Amounts, LaunchFailed, MachineSpec, Made, Resource, State
from headgate.ports.provider import HOST_KEY_VARIABLE

_OWN = ("connection-type", "connection-port", "username", "python-path", "shell-type")
"""Properties that a machine may have itself, which an image has in other clouds."""


def connect(given: CloudDriverOptions) -> StaticHosts:
    """Return the driver, which sends nothing. Raise UserError."""
    return StaticHosts(StaticPermits.read(given.name, given.options))


class StaticHosts:
    """See `ports.cloud.Cloud` and `ports.cloud.Listing`."""

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
