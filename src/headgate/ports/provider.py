"""Making a machine ready for a build, and clean after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

HOST_KEY_VARIABLE = "headgate_host_key"
"""Variable of a host: its public host keys, one on each line."""


class MachineUnusable(Exception):
    """Report that the machine cannot be used now; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Describe one machine, taken for one request."""

    name: str
    properties: Mapping[str, str]
    """Properties of the machine."""
    provider: Mapping[str, str]
    """Properties of its provider."""
    request: str


class Provider(Protocol):
    """Prepare and clean machines of one kind. Both may be called again for the same machine and request."""

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """Prepare the machine and return the Ansible variables (JSON) with which a build reaches it. Raise
        MachineUnusable.

        If they contain HOST_KEY_VARIABLE, the machine must show that key from then on, even if the key was unknown
        before.
        """
        ...

    async def clean(self, machine: Machine) -> None:
        """Remove everything of the request from the machine. Raise MachineUnusable."""
        ...

    async def probe(self, machine: Machine) -> None:
        """Return once the machine proves to be well, as the property `probe` of the machine or its provider says;
        nobody uses it meanwhile.

        Raise MachineUnusable.
        """
        ...
