"""Hold the definitions of a tenant's configuration as data; other modules assemble, link, freeze and explain them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.files.document import Table
from headgate.config.files.source import Source
from headgate.config.model import ConfigError, Pipeline
from headgate.config.operator.model import Tenant, TenantProject
from headgate.config.parse import ParsedBranch, Stanza
from headgate.config.patterns import any_fullmatch

Key = tuple[str, str]
"""(kind, name) that a stanza defines. For a project stanza, the name is canonical, or the key is PATTERNS."""
PATTERNS = ("project", "^")
"""Key of all project stanzas whose name is a regular expression."""
SINGLE = ("nodeset", "secret", "image", "flavor", "label", "semaphore", "section", "provider", "queue")
"""Kinds of which each name has one definition; an equal one on another branch is accepted."""

Branches = Mapping[str, Mapping[str, ParsedBranch]]
"""Project -> branch -> its parsed files; the default branch is first."""
Place = tuple[str, str]
"""(project, branch)"""

_UNKNOWN = TenantProject("", "", "", trusted=True)
"""Project of built-in definitions."""


def _noop() -> list[Stanza]:
    body = Table(0)
    # Without a parent, noop also exists in a tenant that has no base job.
    body.update({"name": "noop", "parent": None, "final": True, "deduplicate": True})
    return [Stanza("job", body, Source("", "", "", "", True, ""), 0)]


@dataclass(slots=True)
class Index:
    """Hold the data that is needed to derive another layout from a layout."""

    claims: dict[Key, tuple[Stanza, ...]] = field(default_factory=dict)
    """Stanzas that define each key, in the order that decides which comes first."""
    readers: dict[Key, frozenset[Stanza]] = field(default_factory=dict)
    """Key -> stanzas that refer to it."""
    reads: dict[Stanza, frozenset[Key]] = field(default_factory=dict)
    parsed: dict[Place, ParsedBranch] = field(default_factory=dict)


@dataclass(slots=True)
class LinkErrors:
    """Hold the errors of a layout, grouped by where they were found."""

    files: dict[Place, tuple[ConfigError, ...]] = field(default_factory=dict)
    refused: dict[Stanza, tuple[ConfigError, ...]] = field(default_factory=dict)
    references: dict[Stanza, tuple[ConfigError, ...]] = field(default_factory=dict)

    def copy(self) -> LinkErrors:
        return LinkErrors(dict(self.files), dict(self.refused), dict(self.references))


@dataclass(slots=True)
class LayoutDefinitions:
    """Hold all definitions of a tenant's configuration."""

    tenant: Tenant
    branches: dict[str, tuple[str, ...]]
    """Project -> branches whose configuration is read, the default branch first."""
    budgets: Budgets = DEFAULTS
    """Limits on the size of an item."""
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    """Name -> pipeline, in the order of definition."""
    pipeline_stanzas: dict[str, list[Stanza]] = field(default_factory=dict)
    jobs: dict[str, list[Stanza]] = field(default_factory=dict)
    """Name -> variants, without the built-in noop."""
    projects: dict[str, list[Stanza]] = field(default_factory=dict)
    """Canonical name -> stanzas that configure it."""
    patterns: list[Stanza] = field(default_factory=list)
    """Project stanzas whose name is a regular expression."""
    templates: dict[str, list[Stanza]] = field(default_factory=dict)
    singles: dict[str, dict[str, Stanza]] = field(default_factory=lambda: {kind: {} for kind in SINGLE})
    """Kind -> name -> definition, for the kinds in SINGLE."""
    errors: tuple[ConfigError, ...] = ()
    findings: LinkErrors = field(default_factory=LinkErrors)
    """Findings that `errors` combines."""
    index: Index | None = None
    """Index to derive other layouts with; None if no layout can be derived from this one."""
    remembered: dict[str, list[Stanza]] = field(default_factory=dict)
    """Cached answers of `stanzas`: canonical name -> stanzas."""
    _noop: list[Stanza] = field(default_factory=_noop)

    @property
    def semaphores(self) -> Mapping[str, int]:
        """Return the maximum number of concurrent builds for each declared semaphore. An undeclared one admits one."""
        own = {name: stanza.body.get("max", 1) for name, stanza in self.singles["semaphore"].items()}
        # The operator's number takes precedence: a tenant must not raise the limit of a shared semaphore.
        return {**own, **self.tenant.semaphores}

    @property
    def shared(self) -> Collection[str]:
        """Return the names of the global semaphores, which other tenants may use, too."""
        return self.tenant.semaphores

    def source(self, project: str) -> TenantProject:
        """Return the tenant file's settings of a project, by canonical name."""
        return self.tenant.by_canonical.get(project, _UNKNOWN)

    def admitted(self, key: Key) -> Sequence[Stanza]:
        """Return the stanzas in force for the key, in order."""
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
        """Return the variants of a job in the order of their definition."""
        # No stanza can add variants: admission rejects a job of this name.
        return self._noop if job == "noop" else self.jobs.get(job, [])

    def stanzas(self, project: str) -> list[Stanza]:
        """Return the stanzas that configure a project: those by name first, then those by pattern."""
        known = self.remembered.get(project)
        if known is None:
            source = self.source(project)
            # Cache the result: every freeze needs it, and there may be many patterns.
            fits = [s for s in self.patterns if self.configures(s, source)]
            known = self.remembered[project] = self.projects.get(project, []) + fits
        return known

    def configures(self, stanza: Stanza, project: TenantProject) -> bool:
        """Return whether a project stanza applies to this project."""
        if not stanza.name.startswith("^"):
            target = self.tenant.find(stanza.name or stanza.source.project)
            return target is not None and target.project == project.project
        # A pattern has no effect on projects that its own project may not configure, even if it matches their names.
        named = any(any_fullmatch([stanza.name], name) for name in (project.name, project.project))
        return named and self.source(stanza.source.project).configures(project)

    def merge_mode(self, project: str, branch: str) -> str:
        """Return the merge mode: merge, cherry-pick, squash-merge or rebase."""
        found = (s.body.get("merge-mode") for s in self.stanzas(project))
        mode: str = next((mode for mode in found if mode), "merge")
        # Headgate has one merge algorithm, whichever of git's strategies the name adds, and always rebases along first
        # parents.
        return "merge" if mode.startswith("merge") else mode.removesuffix("-first-parent")

    def default_branch(self, project: str) -> str:
        """Return the default branch that its stanzas name, or an empty string for the repository's own."""
        return next((s.body["default-branch"] for s in self.stanzas(project) if "default-branch" in s.body), "")

    def has(self, project: str) -> bool:
        """Return whether the tenant has the project."""
        return project in self.tenant.by_canonical

    def touches_config(self, project: str, files: tuple[str, ...] | None, branch: str = "") -> bool:
        """Return whether a change of these files (None: unknown) proposes different configuration."""
        known = self.tenant.by_canonical.get(project)
        return known is not None and known.touches_config(files, branch)

    def config_paths(self, project: str) -> tuple[str, ...]:
        known = self.tenant.by_canonical.get(project)
        return known.config_paths if known is not None else ()
