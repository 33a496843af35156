"""Describe machines of the inventory that could be given to a build."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headgate.config.operator.model import Tenant


@dataclass(frozen=True, slots=True)
class PooledMachine:
    """Describe one machine to people who may know only that it exists."""

    uuid: str
    name: str
    labels: tuple[str, ...]
    provider: str
    local: bool
    """Whether the machine is a slot of an executor's host."""
    state: str = "ready"
    """ready | in-use (leased by a person) | failed (given to nobody)"""
    why: str = ""


Pooled = Callable[[Tenant], Awaitable[Sequence[PooledMachine]]]
"""Returns the machines that labels of a tenant match."""
