"""Hold what a pipeline may know beside its state: who waits for the same semaphores, who hears of it, what ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from headgate.config.model import Pipeline
from headgate.gate.change import Change

if TYPE_CHECKING:
    from headgate.gate.model import Build, BuildSet

PATIENCE_MS = 5_000
"""How long a free place is kept for a waiter: a pipeline that nobody runs any more would keep it for ever, and one that
waits for a second semaphore must not keep the first idle."""


class Waiter(msgspec.Struct, frozen=True, order=True):
    """Represent a project of a pipeline that waits for a place in a semaphore; the smallest goes first."""

    ticket: int
    """Greater than every ticket there was when it began to wait, or last took a place."""
    tenant: str
    pipeline: str
    project: str


class Sought(msgspec.Struct, frozen=True):
    """Represent a build that could stand for another one."""

    inputs: str
    """The digest of what both are given."""
    keys: tuple[tuple[str, str], ...] = ()
    """(connection, project) of those whose keys open secrets of the job: it is older than none of them."""


@dataclass(frozen=True, slots=True)
class Beside:
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)
    """The tenant's, which may be triggered by what happens in this one."""
    past: Callable[[Change], BuildSet | None] | None = None
    """What a patchset that is tested nowhere here came to when it was, last; it answers None while that is looked up.
    Without it nothing was ever tested."""
    passed: Callable[[Sought], Build | None] | None = None
    """Which build succeeded on the same inputs; it answers None while that is looked up, and one without an id where
    none did.  Without it none ever did."""
    away: bool = False
    """Whether the history cannot be searched just now."""
    trusted: Mapping[str, str] = field(default_factory=dict)
    """Config-projects of the tenant -> connection."""
