"""Define the gate's inputs besides its own state.

They are the clock, the tenant's layout, the change states of the connections, closed queues, waiters for semaphores,
other pipelines, and past results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headgate.config.model import FrozenGraph, Pipeline
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import Build, BuildSet

if TYPE_CHECKING:
    from headgate.config.dynamic import Judgement, LayoutRequest

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


class LayoutView(Protocol):
    """Declare the gate's interface to a configuration (`config.layout.Layout` implements it)."""

    @property
    def semaphores(self) -> Mapping[str, int]: ...
    @property
    def shared(self) -> Collection[str]:
        """Return the semaphores that other tenants also use."""

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: Any = None,  # a layout of the same kind
    ) -> FrozenGraph: ...
    def queue_of(self, project: str, branch: str, pipeline: str) -> str: ...
    def queue_says(self, project: str, branch: str, key: str) -> bool: ...
    def merge_mode(self, project: str, branch: str) -> str: ...
    def has(self, project: str) -> bool:
        """Return whether the tenant has the project."""

    def takes_part(self, pipeline: str, project: str, branch: str, ref: str = "") -> bool: ...
    def touches_config(self, project: str, files: tuple[str, ...] | None, branch: str = "") -> bool: ...
    def config_paths(self, project: str) -> tuple[str, ...]: ...


class Layouts(Protocol):
    """Provide the tenant's layout and the layout that would result from a proposed configuration."""

    @property
    def landed(self) -> LayoutView: ...
    def content(self, project: str) -> Mapping[str, str]:
        """Return branch -> digest of the landed configuration files of a project."""

    def reuses(self, pipeline: str, project: str, branch: str) -> bool:
        """Return whether a job of such a change may have `reuse` set in the landed configuration."""

    def judged(self, request: LayoutRequest) -> Judgement | None:
        """Return the judgement on a proposal; None while it is being made: a later turn then calls this again."""


@dataclass(frozen=True, slots=True)
class World:
    """Hold the gate's inputs besides its own state: the clock and all outside facts."""

    tenant: str
    pipeline: Pipeline
    layouts: Layouts
    change_states: Mapping[str, ChangeState]
    """Change key -> its state as its connection knows it."""
    now_ms: int
    root_url: str = ""
    """The address of the web pages, without a trailing slash, for links in reports."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Semaphore -> number of places that other pipelines, playbooks and cancelled builds hold."""
    disabled: bool = False
    """Whether too many consecutive failures occurred: only the pipeline's `disabled` reporters receive results."""
    dependencies_max: int | None = None
    """Limit on the changes that a change may need; a change that needs more is not enqueued. None: no limit."""
    changes_max: int | None = None
    """Limit on the changes in the pipeline, including those that are there only as dependencies."""
    waiters: Mapping[str, tuple[Waiter, ...]] = field(default_factory=dict)
    """Semaphore -> waiters for a place, in this pipeline and in others; earlier tickets go first."""
    closings: tuple[Closing, ...] = ()
    """Closings of pipelines and queues, from which nothing lands."""
    merging: Collection[str] = ()
    """Connections whose forges make the merges themselves; each of their changes is landed by a separate request."""
    beside: Beside = field(default_factory=Beside)
    """The pipelines of the tenant, and functions that look up past results."""
    dependants: Mapping[str, Collection[str]] | None = None
    """Change key -> keys of the changes that may need it; None: search `change_states` for them."""
    taken_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Build that runs at the beginning of the turn -> the semaphores that it holds."""

    @property
    def dependent(self) -> bool:
        return self.pipeline.manager == "dependent"
