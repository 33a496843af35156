"""Tell how this process is: whoever starts it anew, sends it traffic, or draws its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headgate.ports.history import time_text
from headgate.services.membership import Membership


class StoreAvailability(Protocol):
    """Tell whether the store can be reached."""

    @property
    def away_since_ms(self) -> int | None: ...
    @property
    def away_why(self) -> str: ...


class StoreHealth(msgspec.Struct, frozen=True):
    reachable: bool
    since: str | None = None
    """When it was lost, UTC."""
    error: str = ""


class ComponentHealth(msgspec.Struct, frozen=True):
    kind: str
    state: str
    """initializing | running | paused | stopping"""
    problem: str = msgspec.field(name="trouble", default="")
    """Why it is not a member just now."""


class ProcessHealth(msgspec.Struct, frozen=True):
    ready: bool
    store: StoreHealth
    components: tuple[ComponentHealth, ...]


@dataclass(frozen=True, slots=True)
class Vitals:
    """Describe the health of this process; `members` are its components."""

    availability: StoreAvailability
    figures: Callable[[], bytes]
    members: Sequence[Membership] = field(default_factory=list)

    @property
    def store(self) -> StoreHealth:
        since_ms = self.availability.away_since_ms
        if since_ms is None:
            return StoreHealth(True)
        return StoreHealth(False, time_text(since_ms), self.availability.away_why)

    @property
    def health(self) -> ProcessHealth:
        """Return the health. The process is ready if the store can be reached and every component is a member and
        takes part."""
        components = tuple(ComponentHealth(m.kind, m.state, m.problem) for m in self.members)
        # A process whose components have not joined yet is not ready, although none of them has a problem.
        ready = self.store.reachable and bool(components) and all(c.state == "running" for c in components)
        return ProcessHealth(ready, self.store, components)
