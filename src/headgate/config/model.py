"""What the configuration comes to: the records the rest of the program reads.  Pure data."""

from __future__ import annotations

from typing import Any

import msgspec


class Playbook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A playbook, or any executable file, of a repository."""

    project: str
    """Canonical name of the project whose configuration names it."""
    connection: str
    branch: str
    path: str
    trusted: bool = False
    """From a config-project: always run at its landed state, never at a proposed one."""
    nesting: int = 0
    """How many variants had been applied when it was added; outer is smaller."""
    semaphores: tuple[str, ...] = ()
    cleanup: bool = False


class JobDependency(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    soft: bool = False


class RequiredProject(msgspec.Struct, frozen=True, omit_defaults=True):
    project: str
    """Canonical name."""
    connection: str
    override_checkout: str = ""


class JobSemaphore(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    resources_first: bool = False


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    name: tuple[str, ...]
    label: str


class NodeGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    nodes: tuple[str, ...]


class Nodeset(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    nodes: tuple[Node, ...] = ()
    groups: tuple[NodeGroup, ...] = ()


class FrozenJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job as it will be run: all matching variants applied."""

    name: str
    description: str = ""
    voting: bool = True
    dependencies: tuple[JobDependency, ...] = ()
    pre_run: tuple[Playbook, ...] = ()
    run: tuple[Playbook, ...] = ()
    post_run: tuple[Playbook, ...] = ()
    roles: tuple[str, ...] = ()
    """Canonical names of the projects whose roles are offered."""
    nodeset: Nodeset = Nodeset()
    pre_timeout_s: int | None = None
    timeout_s: int | None = None
    post_timeout_s: int | None = None
    attempts_max: int = 3
    semaphores: tuple[JobSemaphore, ...] = ()
    required_projects: tuple[RequiredProject, ...] = ()
    override_checkout: str = ""
    vars: dict[str, Any] = {}
    extra_vars: dict[str, Any] = {}
    host_vars: dict[str, dict[str, Any]] = {}
    group_vars: dict[str, dict[str, Any]] = {}
    tags: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    post_review: bool = False
    success_message: str = ""
    failure_message: str = ""
    noop: bool = False
    """The built-in job: always SUCCESS, never sent to an executor."""
    inheritance: tuple[str, ...] = ()
    """For people: `job project branch file:line` of every variant applied, in order."""


class FrozenGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """The jobs of one item, in order; empty when its project takes no part in the pipeline."""

    jobs: tuple[FrozenJob, ...] = ()
    fail_fast: bool = False
    in_pipeline: bool = True
    """False: no section for this pipeline anywhere (result NO_JOBS, silently)."""
    errors: tuple[ConfigError, ...] = ()
    """Blocking: the item reports a configuration error and runs nothing."""


class ConfigError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing wrong with the configuration, with everything needed to find and mend it."""

    name: str
    """Class of error, e.g. `Pipeline Forbidden`; `Syntax Error` for what cannot be parsed."""
    text: str
    """What is wrong and what to do, one sentence or two."""
    project: str = ""
    branch: str = ""
    path: str = ""
    line: int = 0
    """1-based; 0 when no line applies."""
    snippet: str = ""
    """A few lines around it, as a compiler would show them, the line marked."""
    severity: str = "error"
    """error | warning"""

    def render(self) -> str:
        """`project branch path:line: error: text [name]` and the snippet below it."""
        where = " ".join(x for x in (self.project, self.branch) if x)
        place = f"{self.path}:{self.line}" if self.line else self.path
        head = ": ".join(x for x in (" ".join(x for x in (where, place) if x), self.severity, self.text) if x)
        return f"{head} [{self.name}]" + (f"\n{self.snippet}" if self.snippet else "")


class TriggerFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a pipeline's `trigger`: attributes AND, values of one attribute OR."""

    connection: str
    events: tuple[str, ...]
    branches: tuple[str, ...] = ()
    """Regular expressions, matched at the start."""
    refs: tuple[str, ...] = ()
    ignore_deletes: bool = True


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    size: int = 20
    floor: int = 3
    ceiling: int | None = None
    increase_type: str = "linear"
    increase_factor: int = 1
    decrease_type: str = "exponential"
    decrease_factor: int = 2


class Pipeline(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    manager: str
    """independent | dependent (serial and supercedent are checked names, not yet run)"""
    description: str = ""
    triggers: tuple[TriggerFilter, ...] = ()
    require_approved: tuple[str, ...] = ()
    """Connections for which `require: {approved: true}` is set."""
    reporters: dict[str, tuple[str, ...]] = {}
    """success | failure | start | merge-conflict | config-error | no-jobs | dequeue | enqueue -> connections"""
    lands: tuple[str, ...] = ()
    """Connections whose success reporter says `land: true` (git) — the change is landed."""
    success_message: str = "Build succeeded."
    failure_message: str = "Build failed."
    start_message: str = "Starting {pipeline.name} jobs."
    enqueue_message: str = ""
    merge_conflict_message: str = (
        "Merge Failed.\n\nThis change or one of the changes ahead of it could not be merged "
        "with the current state of its branch. Rebase it and propose it again."
    )
    no_jobs_message: str = ""
    dequeue_message: str = "Build canceled."
    footer_message: str = ""
    precedence: int = 200
    """100 high, 200 normal, 300 low."""
    post_review: bool = False
    dequeue_on_new_patchset: bool = True
    ignore_dependencies: bool = False
    disable_after: int | None = None
    window: Window = Window()
    supercedes: tuple[str, ...] = ()
