"""Making a machine ready for a build, and clean after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

HOST_KEY_VARIABLE = "headgate_host_key"
"""Of a host: the public keys by which it is known, one a line."""


class MachineUnusable(Exception):
    """The machine cannot be used now; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, taken for one request."""

    name: str
    reach: Mapping[str, str]
    """Its properties."""
    provider: Mapping[str, str]
    """Its provider's."""
    request: str


class Provider(Protocol):
    """Of one kind of machines.  Both may be called again for the same machine and request."""

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """How a build reaches it, in Ansible's variables (JSON).  Raises MachineUnusable.

        With HOST_KEY_VARIABLE, also when it was not known before, the machine is held to that key from then on.
        """
        ...

    async def clean(self, machine: Machine) -> None:
        """Nothing of the request is left on it.  Raises MachineUnusable."""
        ...

    async def probe(self, machine: Machine) -> None:
        """Return when the machine is well, as its property `probe` or its provider's says; nobody has it meanwhile.

        Raise MachineUnusable.
        """
        ...
