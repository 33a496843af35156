"""Decide which stanzas apply to a branch, and collect what those of a project define for a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.checks import as_list, deep_plain, entries, plain
from headgate.config.files.document import Table
from headgate.config.kinds.stanza import section_jobs
from headgate.config.model import ConfigError, Parameter
from headgate.config.parse import Stanza
from headgate.config.patterns import any_matches


class FreezeTarget(NamedTuple):
    """Hold the branch, tag or other ref for which something is frozen."""

    branch: str = ""
    """Branch of a change or of a branch's ref; empty for tags and other refs."""
    ref: str = ""
    containing: tuple[str, ...] = ()
    """Branches that contain the commit of a tag."""
    anywhere: bool = False
    """Whether it is a tag whose containing branches are not known yet, so that every branch matches."""

    def matches(self, rules: Any) -> bool:
        """Return whether one of the users' patterns matches at the start. Without patterns, everything matches."""
        known = as_list(deep_plain(plain(rules)))
        if not known or self.anywhere:
            return True
        return any(any_matches(known, name) for name in self._names())

    def is_branch(self, branch: str) -> bool:
        """Return whether the target is exactly this branch."""
        return self.anywhere or branch in self._names()

    def _names(self) -> tuple[str, ...]:
        if self.branch:
            return (self.branch,)
        # A tag belongs to no branch. It therefore counts as belonging to every branch that contains its commit.
        return (self.ref, *self.containing) if self.ref.startswith("refs/tags/") else (self.ref,)


def job_applies(layout: LayoutDefinitions, stanza: Stanza, target: FreezeTarget) -> bool:
    if "branches" in stanza.body:
        return target.matches(stanza.body["branches"])
    source = layout.source(stanza.source.project)
    wanted = stanza.pragma.get("implied-branch-matchers", source.implied_branch_matchers)
    # With a single branch, there is nothing to tell apart.
    if wanted is None:
        wanted = not stanza.source.trusted and (bool(source.always_dynamic_branches) or _several(layout, stanza))
    return not wanted or _implied(stanza, target)


def template_applies(layout: LayoutDefinitions, stanza: Stanza, target: FreezeTarget) -> bool:
    wanted = stanza.pragma.get("implied-branch-matchers")
    if wanted is None:
        wanted = not stanza.source.trusted and _several(layout, stanza)
    return not wanted or _implied(stanza, target)


def project_applies(layout: LayoutDefinitions, stanza: Stanza, project: str, target: FreezeTarget) -> bool:
    """Return whether the stanza applies. `project` is the canonical name of the project that it configures."""
    if "branches" in stanza.body:
        return target.matches(stanza.body["branches"])
    if stanza.source.project == project:
        # The configuration of a config-project is read from one branch only.
        return stanza.source.trusted or target.is_branch(stanza.source.branch)
    return template_applies(layout, stanza, target)


def _several(layout: LayoutDefinitions, stanza: Stanza) -> bool:
    return len(layout.branches.get(stanza.source.project, ())) > 1


def _implied(stanza: Stanza, target: FreezeTarget) -> bool:
    if "implied-branches" in stanza.pragma:
        return target.matches(stanza.pragma["implied-branches"])
    return target.is_branch(stanza.source.branch)


class SectionEntry(NamedTuple):
    """Represent the entry of a job in one section."""

    stanza: Stanza
    attributes: Table
    line: int


class Section(NamedTuple):
    stanza: Stanza
    body: Table


def applying(layout: LayoutDefinitions, project: str, target: FreezeTarget) -> Iterator[tuple[Stanza, list[Stanza]]]:
    """Yield the stanzas of the project that apply, each with those of its templates that apply."""
    for stanza in layout.stanzas(project):
        if project_applies(layout, stanza, project, target):
            named = [t for name in as_list(stanza.body.get("templates")) for t in layout.templates.get(name, ())]
            yield stanza, [t for t in named if template_applies(layout, t, target)]


def of(layout: LayoutDefinitions, pipeline: str, project: str, target: FreezeTarget) -> list[Section]:
    """Return the sections in order of application. An empty list means that the project takes no part in the
    pipeline."""
    found: list[Section] = []
    for stanza, templates in applying(layout, project, target):
        for one in (*templates, stanza):
            body = one.body.get(pipeline)
            # Other keys of the stanza, such as its description, may have the name of a pipeline.
            if isinstance(body, Table) and not is_dropped(layout, pipeline, body):
                found.append(Section(one, body))
    return found


def is_dropped(layout: LayoutDefinitions, pipeline: str, section: Table) -> bool:
    """Return whether a section is dropped because it has parameters although its pipeline allows none."""
    known = layout.pipelines.get(pipeline)
    return "parameters" in section and known is not None and not known.allow_parameters


def project_vars(layout: LayoutDefinitions, project: str, target: FreezeTarget) -> dict[str, Any]:
    """Return the merged variables of a project: a stanza overrides its templates and all earlier stanzas."""
    found: dict[str, Any] = {}
    for stanza, templates in applying(layout, project, target):
        for one in (*templates, stanza):
            found = deep_merge(found, deep_plain(one.body.get("vars") or {}))
    return found


def missing_templates(layout: LayoutDefinitions, project: str) -> Iterator[ConfigError]:
    """Yield an error for each undefined template of a project, on any branch. Until it is fixed, no jobs of the project
    can be frozen."""
    for stanza in layout.stanzas(project):
        for name, line in entries(stanza.body.get("templates"), stanza.body.at("templates")):
            if name not in layout.templates:
                yield stanza.source.error("Template Not Found", f"there is no project-template {name!r}", line)


def attached(found: list[Section]) -> dict[str, list[SectionEntry]]:
    """Map each job to its entries in the sections; equal entries from one project and branch count once."""
    jobs: dict[str, list[SectionEntry]] = {}
    for section in found:
        for name, attributes, line in section_jobs(section.body):
            entries_of = jobs.setdefault(name, [])
            if not any(e.attributes == attributes and _same_place(e.stanza, section.stanza) for e in entries_of):
                entries_of.append(SectionEntry(section.stanza, attributes, line))
    return jobs


def _same_place(one: Stanza, other: Stanza) -> bool:
    return (one.source.project, one.source.branch) == (other.source.project, other.source.branch)


def fail_fast(found: list[Section]) -> bool:
    """Return `fail-fast` of the first section that sets it, or False if none does."""
    return next((bool(s.body["fail-fast"]) for s in found if "fail-fast" in s.body), False)


def parameters(found: list[Section]) -> tuple[Parameter, ...]:
    """Return the parameters of the first section that has any."""
    declared: Any = next((s.body["parameters"] for s in found if s.body.get("parameters")), [])
    return tuple(
        Parameter(
            name=p["name"],
            type=p.get("type", "string"),
            description=p.get("description", ""),
            values=tuple(as_list(p.get("values"))),
            default=p.get("default"),
            required=p.get("required", False),
        )
        for p in as_list(deep_plain(declared))
    )


def accepted(known: tuple[Parameter, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return the given variables that are parameters of the pipeline and have valid values."""
    may = {one.name for one in known if one.name in given and _may_be(one, given[one.name])}
    return {name: value for name, value in given.items() if name in may}


def completed(known: tuple[Parameter, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return the given parameters, completed with the defaults of the others."""
    return {one.name: one.default for one in known if one.default is not None} | given


def unaccepted(known: tuple[Parameter, ...], given: dict[str, Any]) -> list[str]:
    """Return the errors in the parameters of a request to enqueue, as texts for the user."""
    names = [one.name for one in known]
    wrong = [
        f"{name}: there is no such parameter; there are: {', '.join(names) or 'none'}" for name in given.keys() - names
    ]
    for one in known:
        if one.name not in given:
            wrong += [f"{one.name}: this parameter is required"] if one.required and one.default is None else []
        elif not _may_be(one, given[one.name]):
            choice = f" from {', '.join(map(str, one.values))}" if one.values else ""
            wrong.append(f"{one.name}: the value must be a {one.type}{choice}")
    return sorted(wrong)


def _may_be(parameter: Parameter, value: Any) -> bool:
    match parameter.type:
        case "bool":
            return isinstance(value, bool)
        case "selection":
            return value in parameter.values
        case "multiple-selection":
            # People's requests are JSON of any form.
            return isinstance(value, list) and all(one in parameter.values for one in value)
        case _:
            return isinstance(value, str)


def deep_merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; other values of `over` replace those of `under`."""
    # Build a new mapping, because all layouts share the parsed tables.
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
