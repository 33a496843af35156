"""Hold the gate's inputs besides its own state: its tenant's layout, the connections' change states, the clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.config.dynamic import Judgement, LayoutRequest
from headgate.config.model import FrozenGraph, Pipeline
from headgate.gate.state.change import ChangeState
from headgate.gate.state.surroundings import Beside, Closing, Waiter


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
