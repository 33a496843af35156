"""A tenant's configuration put together: what is defined, what clashes, what refers to nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.config.assembly.admission import PATTERNS, SINGLE, Key
from headgate.config.assembly.links import Branches, Index, LinkErrors, exchanged
from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.files.check import as_list
from headgate.config.files.document import Table
from headgate.config.files.source import Source
from headgate.config.freeze.freeze import FreezeQuestion, freeze
from headgate.config.freeze.matchers import FreezeTarget, project_applies
from headgate.config.freeze.sections import sections
from headgate.config.model import ConfigError, FrozenGraph, Pipeline
from headgate.config.operator.model import Tenant, TenantProject
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided, any_whole

QUEUE_TYPES = ("all-branches", "per-branch", "branch-assigned")
_UNKNOWN = TenantProject("", "", "", trusted=True)
"""Where built-in things are defined."""


def _noop() -> list[Stanza]:
    body = Table(0)
    body.update({"name": "noop", "parent": None, "final": True, "deduplicate": True})
    return [Stanza("job", body, Source("", "", "", "", True, ""), 0)]


@dataclass(slots=True)
class Layout:
    """Use `build_layout`."""

    tenant: Tenant
    branches: dict[str, tuple[str, ...]]
    """project -> branches whose configuration is read, default branch first."""
    budgets: Budgets = DEFAULTS
    """Of what an item may come to."""
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    """In the order in which they are defined."""
    pipeline_stanzas: dict[str, list[Stanza]] = field(default_factory=dict)
    jobs: dict[str, list[Stanza]] = field(default_factory=dict)
    """Without the built-in noop."""
    projects: dict[str, list[Stanza]] = field(default_factory=dict)
    """Canonical name -> stanzas that configure it."""
    patterns: list[Stanza] = field(default_factory=list)
    """Project stanzas whose name is a regular expression."""
    templates: dict[str, list[Stanza]] = field(default_factory=dict)
    singles: dict[str, dict[str, Stanza]] = field(default_factory=lambda: {kind: {} for kind in SINGLE})
    """kind -> name -> its definition, for kinds of which there is one of a name."""
    errors: tuple[ConfigError, ...] = ()
    findings: LinkErrors = field(default_factory=LinkErrors)
    """What `errors` are made of."""
    index: Index | None = None
    """There when other layouts can be made from this one."""
    remembered: dict[str, list[Stanza]] = field(default_factory=dict)
    """Answers of `stanzas`."""
    _noop: list[Stanza] = field(default_factory=_noop)

    @property
    def semaphores(self) -> Mapping[str, int]:
        """Name -> how many may hold it; of one that is not here, one may."""
        own = {name: stanza.body.get("max", 1) for name, stanza in self.singles["semaphore"].items()}
        return {**own, **self.tenant.semaphores}

    @property
    def shared(self) -> Collection[str]:
        """Semaphores that other tenants use, too."""
        return self.tenant.semaphores

    def source(self, project: str) -> TenantProject:
        """What the tenant file says of a project, by canonical name."""
        return self.tenant.by_canonical.get(project, _UNKNOWN)

    def admitted(self, key: Key) -> Sequence[Stanza]:
        """Stanzas that count, in the order in which they do."""
        kind, name = key
        match kind:
            case "job":
                return self.jobs.get(name, [])
            case "project-template":
                return self.templates.get(name, [])
            case "project":
                return self.patterns if key == PATTERNS else self.projects.get(name, [])
            case "pipeline":
                return self.pipeline_stanzas.get(name, [])
            case _:
                return [found] if (found := self.singles[kind].get(name)) is not None else []

    def variants(self, job: str) -> list[Stanza]:
        """In the order of their definition."""
        return self._noop if job == "noop" else self.jobs.get(job, [])

    def stanzas(self, project: str) -> list[Stanza]:
        """Of a project, by name first, then by pattern."""
        known = self.remembered.get(project)
        if known is None:
            source = self.source(project)
            fits = [s for s in self.patterns if self.configures(s, source)]
            known = self.remembered[project] = self.projects.get(project, []) + fits
        return known

    def configures(self, stanza: Stanza, project: TenantProject) -> bool:
        """Does a project stanza say something of this one?"""
        if not stanza.name.startswith("^"):
            target = self.tenant.find(stanza.name or stanza.source.project)
            return target is not None and target.project == project.project
        named = any(any_whole([stanza.name], name) for name in (project.name, project.project))
        return named and self.source(stanza.source.project).configures(project)

    def takes_part(self, pipeline: str, project: str, branch: str, ref: str = "") -> bool:
        """Also when that cannot be told, as of a tag: whoever is let in hears of it when it is frozen."""
        target = FreezeTarget(branch, ref, anywhere=not branch and ref.startswith("refs/tags/"))
        try:
            return bool(sections(self, pipeline, project, target))
        except Undecided:
            return True

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: Layout | None = None,
        *,
        containing: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> FrozenGraph:
        """The jobs of an item; errors make it a configuration error.

        `files` are those the change touches, None when that is not known; `ahead` is the layout without the change,
        when it changes the configuration; `containing` are the branches that hold the commit of a tag.
        """
        target = FreezeTarget(branch, ref, containing)
        return freeze(self, FreezeQuestion(pipeline, project, target, files, ahead, dict(parameters or {})))

    def queue_of(self, project: str, branch: str, pipeline: str) -> str:
        """Name of the shared queue, or the project's own; of a per-branch queue with the branch."""
        name = self._named_queue(project, branch)
        return f"{name or project}@{branch}" if self._queue_type(name) == "per-branch" else name or project

    def queue_says(self, project: str, branch: str, key: str) -> bool:
        """Is this flag set in the queue of the project?"""
        queue = self.singles["queue"].get(self._named_queue(project, branch))
        return queue is not None and bool(queue.body.get(key))

    def _named_queue(self, project: str, branch: str) -> str:
        """Name of the shared queue; empty: it has one of its own."""
        named = list(self._queues(project))
        name = next((queue for _, queue in named), "")
        if self._queue_type(name) != "branch-assigned":
            return name
        target = FreezeTarget(branch)
        assigned = (queue for s, queue in named if project_applies(self, s, project, target))
        try:
            return next(assigned, name)
        except Undecided:
            return name  # freezing tells of it

    def _queues(self, project: str) -> Iterator[tuple[Stanza, str]]:
        """(stanza, queue it or one of its templates names)"""
        for stanza in self.stanzas(project):
            templates = [t for n in as_list(stanza.body.get("templates")) for t in self.templates.get(n, [])]
            yield from ((stanza, s.body["queue"]) for s in (stanza, *templates) if s.body.get("queue"))

    def _queue_type(self, name: str) -> str:
        """all-branches | per-branch | branch-assigned; all-branches of one that is not defined."""
        queue = self.singles["queue"].get(name)
        if queue is None:
            return QUEUE_TYPES[0]
        kind: str = queue.body.get("type", QUEUE_TYPES[0])
        return QUEUE_TYPES[1] if queue.body.get("per-branch") else kind

    def merge_mode(self, project: str, branch: str) -> str:
        """merge | cherry-pick | squash-merge | rebase"""
        found = (s.body.get("merge-mode") for s in self.stanzas(project))
        mode: str = next((mode for mode in found if mode), "merge")
        return "merge" if mode.startswith("merge") else mode.removesuffix("-first-parent")

    def default_branch(self, project: str) -> str:
        """As its stanzas say; empty: the repository's own."""
        return next((s.body["default-branch"] for s in self.stanzas(project) if "default-branch" in s.body), "")

    def touches_config(self, project: str, files: tuple[str, ...] | None, branch: str = "") -> bool:
        """Does a change of these files (None: not known) propose another configuration?"""
        known = self.tenant.by_canonical.get(project)
        return known is not None and known.touches_config(files, branch)

    def config_paths(self, project: str) -> tuple[str, ...]:
        known = self.tenant.by_canonical.get(project)
        return known.config_paths if known is not None else ()


def build_layout(tenant: Tenant, branches: Branches, budgets: Budgets = DEFAULTS) -> Layout:
    """Everything the files say, in the order that decides who is first: config-projects, then the others; of a project
    its first branch, then the others by name."""
    return exchanged(Layout(tenant, {}, budgets, index=Index()), branches, keep=True)
