"""Slots on the executor's own host: a job runs there in the sandbox, in its work directory, which goes with it."""

from __future__ import annotations

from typing import Any

from headgate.ports.provider import Machine


class LocalProvider:
    """See `ports.provider.Provider`."""

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        return {"ansible_connection": "local"}

    async def clean(self, machine: Machine) -> None:
        """Do nothing: the executor has removed the work directory."""

    async def probe(self, machine: Machine) -> None:
        """Return: a running executor has its slots."""
