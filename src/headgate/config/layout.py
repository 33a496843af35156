"""A tenant's configuration put together: what is defined, what clashes, what refers to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from headgate.config import freeze
from headgate.config.check import as_list, deep_plain, plain
from headgate.config.marked import Table, Wrong, nearest
from headgate.config.model import ConfigError, FrozenGraph, Pipeline
from headgate.config.parse import ParsedBranch, Stanza
from headgate.config.pipelines import pipeline
from headgate.config.tenants import Tenant, TenantProject

Branches = Mapping[str, Mapping[str, ParsedBranch]]
"""project -> branch -> what its files say"""

_SINGLE = ("nodeset", "semaphore", "queue", "secret")


@dataclass(slots=True)
class Layout:
    """Use `build_layout`."""

    tenant: Tenant
    branches: dict[str, tuple[str, ...]]
    """project -> branches that carry configuration, default branch first."""
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    jobs: dict[str, list[Stanza]] = field(default_factory=dict)
    projects: dict[str, list[Stanza]] = field(default_factory=dict)
    """Canonical name -> stanzas that configure it."""
    patterns: list[Stanza] = field(default_factory=list)
    """Project stanzas whose name is a regular expression."""
    templates: dict[str, list[Stanza]] = field(default_factory=dict)
    singles: dict[str, dict[str, Stanza]] = field(default_factory=lambda: {kind: {} for kind in _SINGLE})
    errors: tuple[ConfigError, ...] = ()
    _stanzas_of: dict[str, list[Stanza]] = field(default_factory=dict)

    @property
    def semaphores(self) -> Mapping[str, int]:
        own = {name: stanza.body.get("max", 1) for name, stanza in self.singles["semaphore"].items()}
        return {**own, **self.tenant.semaphores}

    def source(self, project: str) -> TenantProject | None:
        return next((p for p in self.tenant.projects if p.project == project), None)

    def stanzas(self, project: str) -> list[Stanza]:
        """Of a project, by name first, then by pattern."""
        known = self._stanzas_of.get(project)
        if known is None:
            short = next((p.name for p in self.tenant.projects if p.project == project), project)
            fits = [s for s in self.patterns if re2.fullmatch(s.name, short) or re2.fullmatch(s.name, project)]
            known = self._stanzas_of[project] = self.projects.get(project, []) + fits
        return known

    def takes_part(self, pipeline: str, project: str, branch: str) -> bool:
        return bool(freeze.sections(self, pipeline, project, branch))

    def freeze(
        self, pipeline: str, project: str, branch: str, ref: str = "", files: tuple[str, ...] | None = None
    ) -> FrozenGraph:
        """The jobs of an item; errors make it a configuration error."""
        return freeze.freeze(self, pipeline, project, branch, files)

    def queue_of(self, project: str, branch: str, pipeline: str) -> str:
        """Name of the shared queue, or the project's own; of a per-branch queue with the branch."""
        name = ""
        for stanza in self.stanzas(project):
            templates = [t for n in as_list(stanza.body.get("templates")) for t in self.templates.get(n, [])]
            name = name or next((s.body["queue"] for s in (stanza, *templates) if s.body.get("queue")), "")
        queue = self.singles["queue"].get(name)
        per_branch = queue is not None and (queue.body.get("per-branch") or queue.body.get("type") == "per-branch")
        return (f"{name or project}@{branch}") if per_branch else name or project

    def merge_mode(self, project: str, branch: str) -> str:
        found = (s.body.get("merge-mode") for s in self.stanzas(project))
        mode = next((mode for mode in found if mode), "merge")
        return {"merge-resolve": "merge", "rebase-first-parent": "rebase"}.get(mode, mode)

    def touches_config(self, project: str, files: tuple[str, ...] | None) -> bool:
        source = self.source(project)
        if source is None:
            return False
        if files is None:
            return True
        return any(f == p or (p.endswith("/") and f.startswith(p)) for p in source.config_paths for f in files)

    def config_paths(self, project: str) -> tuple[str, ...]:
        source = self.source(project)
        return source.config_paths if source else ()


def build_layout(tenant: Tenant, branches: Branches) -> Layout:
    """Everything the files say, in the order that decides who is first: config-projects, then the others."""
    carried = {project: tuple(found) for project, found in branches.items()}
    layout = Layout(tenant, carried)
    errors: list[ConfigError] = []
    parsed = [p for project in tenant.projects for p in branches.get(project.project, {}).values()]
    stanzas = [stanza for branch in parsed for stanza in branch.stanzas]
    errors += [error for branch in parsed for error in branch.errors]
    for stanza in stanzas:
        error = _add(layout, stanza)
        if error is not None:
            errors.append(error)
    errors += _dangling(layout, stanzas)
    layout.errors = tuple(errors)
    return layout


def _add(layout: Layout, stanza: Stanza) -> ConfigError | None:
    if stanza.kind == "pipeline":
        return _add_pipeline(layout, stanza)
    if stanza.kind == "job":
        return _add_job(layout, stanza)
    if stanza.kind in _SINGLE:
        return _add_single(layout, stanza)
    if stanza.kind == "project":
        return _add_project(layout, stanza)
    if stanza.kind == "project-template":
        known = layout.templates.setdefault(stanza.name, [])
        if known and known[0].source.project != stanza.source.project:
            text = f"the template {stanza.name} is already defined in {known[0].source.project}"
            return stanza.error("Unknown Configuration Error", text, "name")
        known.append(stanza)
    return None


def _add_pipeline(layout: Layout, stanza: Stanza) -> ConfigError | None:
    if stanza.name in layout.pipelines:
        return stanza.error("Unknown Configuration Error", f"the pipeline {stanza.name} is already defined", "name")
    try:
        layout.pipelines[stanza.name] = pipeline(stanza, layout.tenant)
    except Wrong as wrong:
        return stanza.source.error(wrong.name, wrong.text, wrong.line or stanza.line)
    return None


def _add_job(layout: Layout, stanza: Stanza) -> ConfigError | None:
    known = layout.jobs.setdefault(stanza.name, [])
    if known and known[0].source.project != stanza.source.project:
        text = f"the job {stanza.name} is already defined in {known[0].source.project}"
        return stanza.error("Unknown Configuration Error", text, "name")
    if "parent" in stanza.body and stanza.body["parent"] is None and not stanza.source.trusted:
        text = "a base job (parent: null) is defined in config-projects only"
        return stanza.error("Base Job Not Permitted", text, "parent")
    limit_s = layout.tenant.max_job_timeout_s
    for key in ("timeout", "pre-timeout", "post-timeout"):
        if 0 <= limit_s < stanza.body.get(key, 0):
            return stanza.error("Max Timeout Exceeded", f"{key} is longer than the tenant allows, {limit_s} s", key)
    for key in ("required-projects", "allowed-projects"):
        for entry in as_list(plain(stanza.body.get(key))):
            name = entry if isinstance(entry, str) else entry["name"]
            if layout.tenant.find(name) is None:
                known_names = nearest(name, [p.name for p in layout.tenant.projects])
                return stanza.error(
                    "Project Not Found", f"the project {name!r} is not in this tenant{known_names}", key
                )
    known.append(stanza)
    return None


def _add_single(layout: Layout, stanza: Stanza) -> ConfigError | None:
    """The first of a name counts; the same once more on another branch is no harm."""
    first = layout.singles[stanza.kind].setdefault(stanza.name, stanza)
    if first is stanza:
        return None
    if first.source.project != stanza.source.project:
        text = f"the {stanza.kind} {stanza.name} is already defined in {first.source.project}"
    elif first.source.branch == stanza.source.branch:
        text = f"the {stanza.kind} {stanza.name} is already defined in {first.source.path}:{first.line}"
    elif deep_plain(first.body) == deep_plain(stanza.body):
        return None
    else:
        text = f"the {stanza.kind} {stanza.name} does not match its definition on branch {first.source.branch}"
    return stanza.error("Unknown Configuration Error", text, "name")


def _add_project(layout: Layout, stanza: Stanza) -> ConfigError | None:
    own = stanza.source.project
    name = stanza.name
    if name.startswith("^"):
        if not stanza.source.trusted:
            return stanza.error("Project Forbidden", "a pattern of projects is for config-projects only", "name")
        layout.patterns.append(stanza)
        return None
    target = layout.tenant.find(name) if name else layout.source(own)
    if target is None:
        known = nearest(name, [p.name for p in layout.tenant.projects])
        return stanza.error("Project Not Found", f"the project {name!r} is not in this tenant{known}", "name")
    if not stanza.source.trusted and target.project != own and not _may_configure(layout, own, target):
        return stanza.error("Project Forbidden", f"{own} may configure only itself, not {target.name}", "name")
    layout.projects.setdefault(target.project, []).append(stanza)
    return None


def _may_configure(layout: Layout, own: str, target: TenantProject) -> bool:
    source = layout.source(own)
    patterns = source.configure_projects if source else ()
    return any(re2.fullmatch(p, target.name) or re2.fullmatch(p, target.project) for p in patterns)


def _dangling(layout: Layout, stanzas: Iterable[Stanza]) -> Iterable[ConfigError]:
    """References to what is not defined; the object stays, its use reports when it is frozen."""
    jobs = {*layout.jobs, "noop"}
    for stanza in stanzas:
        body = stanza.body
        if stanza.kind == "job":
            yield from _dangling_job(layout, stanza, body, jobs)
        elif stanza.kind in ("project", "project-template"):
            for name in as_list(body.get("templates")):
                if name not in layout.templates:
                    text = f"there is no project-template {name!r}{nearest(name, list(layout.templates))}"
                    yield stanza.error("Template Not Found", text, "templates")
            for key, section in body.items():
                if key in layout.pipelines and isinstance(section, Table):
                    yield from _dangling_section(stanza, section, jobs)
        elif stanza.kind == "pipeline":
            for name in as_list(body.get("supercedes")):
                if name not in layout.pipelines:
                    yield stanza.error("Unknown Configuration Error", f"there is no pipeline {name!r}", "supercedes")


def _dangling_job(layout: Layout, stanza: Stanza, body: Table, jobs: set[str]) -> Iterable[ConfigError]:
    parent = body.get("parent")
    if isinstance(parent, str) and parent not in jobs:
        text = f"the parent job {parent!r} is not defined{nearest(parent, list(layout.jobs))}"
        yield stanza.error("Unknown Configuration Error", text, "parent")
    for d in as_list(plain(body.get("dependencies"))):
        name = d if isinstance(d, str) else d["name"]
        if name not in jobs:
            text = f"the job {name!r} it depends on is not defined{nearest(name, list(layout.jobs))}"
            yield stanza.error("Unknown Configuration Error", text, "dependencies")
    nodeset = body.get("nodeset")
    if isinstance(nodeset, str) and nodeset not in layout.singles["nodeset"]:
        text = f"the nodeset {nodeset!r} is not defined{nearest(nodeset, list(layout.singles['nodeset']))}"
        yield stanza.error("Nodeset Not Found", text, "nodeset")


def _dangling_section(stanza: Stanza, section: Table, jobs: set[str]) -> Iterable[ConfigError]:
    for entry in as_list(section.get("jobs")):
        name: Any = entry if isinstance(entry, str) else next(iter(entry))
        if name not in jobs:
            line = section.at("jobs") if isinstance(entry, str) else entry.at(name)
            lines = stanza.source.text.splitlines()
            exact = next((n for n in range(line, len(lines) + 1) if lines[n - 1].strip(" -'\":") == name), line)
            text = f"the job {name!r} is not defined{nearest(name, list(jobs))}"
            yield stanza.source.error("Unknown Configuration Error", text, exact)
