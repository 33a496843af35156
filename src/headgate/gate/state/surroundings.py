"""Define the surroundings of a pipeline: closed queues, waiters for semaphores, other pipelines, past results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.config.model import Pipeline
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet

PATIENCE_MS = 5_000
"""Time for which a free place is reserved for a waiter. Without a limit, a pipeline that no process runs would reserve
it forever, and one that waits for a second semaphore would keep the first idle."""


class Closing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one request that nothing may land."""

    pipeline: str
    """Name of the closed pipeline; empty for every pipeline of the tenant."""
    queue: str = ""
    """Name of the closed queue; empty for every queue of the pipeline."""
    reason: str = ""
    """The reason that the person who closed it gave."""
    who: str = ""
    # Not 0, which means no closing in `Item.held_ms`.
    since_ms: int = 1
    """Time of the request, milliseconds since the epoch, UTC."""

    @property
    def what(self) -> str:
        """Describe what is closed."""
        pipeline = f"the pipeline {self.pipeline}" if self.pipeline else "every pipeline"
        return f"queue {self.queue} of {self.pipeline}" if self.queue else pipeline

    @property
    def why(self) -> str:
        """Describe in one line who closed it and why."""
        by = f" by {self.who}" if self.who else ""
        return f"{self.what} was closed{by}{f': {self.reason}' if self.reason else ''}"


def closing_of(closings: Iterable[Closing], pipeline: str, queue: str) -> Closing | None:
    """Return the closing that keeps this queue from landing, preferably one of the entire pipeline; None if there is
    none."""
    found = [one for one in closings if one.pipeline in ("", pipeline) and one.queue in ("", queue)]
    # An empty name, which means every queue, sorts before all others.
    return min(found, key=lambda one: one.queue, default=None)


class Waiter(msgspec.Struct, frozen=True, order=True):
    """Represent a project of a pipeline that waits for a place in a semaphore; the smallest goes first."""

    ticket: int
    """Number greater than every ticket that existed when the project began to wait, or last took a place."""
    tenant: str
    pipeline: str
    project: str


class Sought(msgspec.Struct, frozen=True):
    """Describe a past build whose result could be reused."""

    inputs: str
    """Digest of the inputs of both builds."""
    keys: tuple[tuple[str, str], ...] = ()
    """(connection, project) of the projects whose keys decrypt secrets of the job. A build counts only if it began
    after all of these keys were made."""


@dataclass(frozen=True, slots=True)
class Beside:
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)
    """Name -> the tenant's pipelines, which events in this one may trigger."""
    past: Callable[[Change], BuildSet | None] | None = None
    """Returns the buildset with which a patchset was last tested in this pipeline; None while it is being looked up.
    Without this function, every patchset counts as untested."""
    passed: Callable[[Sought], Build | None] | None = None
    """Returns a build that succeeded on the same inputs; None while it is being looked up, a build without an id if
    there is none. Without this function, no build is reused."""
    away: bool = False
    """Whether the history cannot be searched at the moment."""
    trusted: Mapping[str, str] = field(default_factory=dict)
    """Config-project of the tenant -> its connection."""
