"""Freezing: which jobs an item runs, each with all its matching variants applied (config-language §7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import re2

from headgate.config.check import as_list, deep_plain
from headgate.config.marked import Table
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob
from headgate.config.parse import Stanza
from headgate.config.variants import Mix, Refused, deep_merge

if TYPE_CHECKING:
    from headgate.config.layout import Layout


class Section(NamedTuple):
    """What one stanza says of one pipeline, and under which variables."""

    stanza: Stanza
    body: Table


class Graph(NamedTuple):
    jobs: dict[str, FrozenJob]
    optional: set[str]
    """Did not match the files of the change: run only when a matching job needs them."""


def sections(layout: Layout, pipeline: str, project: str, branch: str) -> list[Section]:
    """In order of application; empty: the project takes no part."""
    found: list[Section] = []
    for stanza in layout.stanzas(project):
        if not _project_matches(layout, stanza, project, branch):
            continue
        for name in as_list(stanza.body.get("templates")):
            for template in layout.templates.get(name, []):
                if _implied(layout, template, branch) and isinstance(template.body.get(pipeline), Table):
                    found.append(Section(template, template.body[pipeline]))
        if isinstance(stanza.body.get(pipeline), Table):
            found.append(Section(stanza, stanza.body[pipeline]))
    return found


def freeze(layout: Layout, pipeline: str, project: str, branch: str, files: tuple[str, ...] | None) -> FrozenGraph:
    found = sections(layout, pipeline, project, branch)
    if not found:
        return FrozenGraph(in_pipeline=False)
    fail_fast = next((s.body["fail-fast"] for s in found if "fail-fast" in s.body), False)
    entries: dict[str, list[tuple[Stanza, Table]]] = {}
    for section in found:
        for name, stanza in _entries(section):
            entries.setdefault(name, []).append((section.stanza, stanza))
    extra = _project_vars(layout, project, branch)
    graph, errors = Graph({}, set()), list[ConfigError]()
    for using in layout.stanzas(project):
        for missing in as_list(using.body.get("templates")):
            if missing not in layout.templates:
                text = f"there is no project-template {missing!r}"
                errors.append(using.error("Template Not Found", text, "templates"))
    for name, attached in entries.items():
        try:
            _freeze_job(layout, pipeline, project, branch, name, attached, extra, files, graph)
        except Refused as refused:
            errors.append(_at(found[0].stanza, str(refused)))
    if not errors:
        errors = [_at(found[0].stanza, text) for text in _resolve(graph)]
    if errors:
        return FrozenGraph(errors=tuple(errors))
    return FrozenGraph(tuple(_known_dependencies(graph)), fail_fast)


def _at(stanza: Stanza, text: str) -> ConfigError:
    return stanza.error("Unknown Configuration Error", text)


def _entries(section: Section) -> Iterator[tuple[str, Table]]:
    for entry in as_list(section.body.get("jobs")):
        if isinstance(entry, str):
            yield entry, Table(section.stanza.line)
        else:
            name, attributes = next(iter(entry.items()))
            yield name, attributes if isinstance(attributes, Table) else Table(section.stanza.line)


def _freeze_job(
    layout: Layout,
    pipeline: str,
    project: str,
    branch: str,
    name: str,
    attached: list[tuple[Stanza, Table]],
    extra: dict[str, Any],
    files: tuple[str, ...] | None,
    graph: Graph,
) -> None:
    """Adds the job to the graph, unless none of its variants match.  Raises Refused."""
    fitting = [(s, b) for s, b in attached if "branches" not in b or _any_match(b["branches"], branch)]
    if not fitting:
        return
    mix = Mix(name, layout.tenant)
    if name != "noop":
        variants = _collect(layout, name, branch, [], top=True)
        if not variants:
            return
        for owner, variant in variants:
            mix.apply(variant, base_name=owner)
            mix.abstract = _abstract(mix.abstract, owner, variant, variants)
    for stanza, body in fitting:
        mix.apply(Stanza("job", body, stanza.source, body.line, stanza.pragma), base_name=name, attaching=True)
    nodesets = {n: s.body for n, s in layout.singles["nodeset"].items()}
    job = mix.frozen(nodesets, extra)
    graph.jobs[name] = job if name != "noop" else _noop(job)
    if not _files_match(mix, files):
        graph.optional.add(name)
        return
    if name != "noop":
        _runnable(layout, pipeline, project, mix)
        most, nodes = layout.tenant.max_nodes_per_job, sum(len(n.name) for n in job.nodeset.nodes)
        if 0 <= most < nodes:
            raise Refused(f"job {name} wants {nodes} nodes; this tenant allows {most}")


def _noop(job: FrozenJob) -> FrozenJob:
    return FrozenJob(name=job.name, dependencies=job.dependencies, voting=job.voting, noop=True)


def _abstract(before: bool, job: str, variant: Stanza, variants: list[tuple[str, Stanza]]) -> bool:
    """Sticky among variants of one name; a child of another name says anew."""
    first = next(v for n, v in variants if n == job)
    return bool(variant.body.get("abstract")) or (before and variant is not first)


def _runnable(layout: Layout, pipeline: str, project: str, mix: Mix) -> None:
    if mix.abstract:
        raise Refused(f"job {mix.name} is abstract: it is there to be inherited from, not to be run")
    if mix.allowed is not None and project not in mix.allowed:
        raise Refused(f"job {mix.name} may not be run for {project}; its allowed-projects do not name it")
    configured = layout.pipelines.get(pipeline)
    if mix.post_review and configured is not None and not configured.post_review:
        raise Refused(f"job {mix.name} is post-review; pipeline {pipeline} runs before review")
    if not mix.run:
        raise Refused(f"job {mix.name} has nothing to run: no variant says `run`")


def _collect(layout: Layout, name: str, branch: str, seen: list[str], *, top: bool = False) -> list[tuple[str, Stanza]]:
    """Variants of the job and its ancestors that match, base first.  Raises Refused for a parent that is missing."""
    found: list[tuple[str, Stanza]] = []
    for variant in layout.jobs.get(name, []):
        if not _variant_matches(layout, variant, branch):
            continue
        parent = variant.body.get("parent", None if found else layout.tenant.default_parent)
        is_base = "parent" in variant.body and variant.body["parent"] is None
        default_missing = "parent" not in variant.body and parent not in layout.jobs
        if isinstance(parent, str) and not is_base and parent != name and parent not in seen and not default_missing:
            inherited = _collect(layout, parent, branch, [*seen, name])
            if not inherited:
                raise Refused(f"job {name}: its parent {parent!r} has no variant for branch {branch}")
            found = inherited + [f for f in found if f not in inherited]
        found.append((name, variant))
    return found


def _variant_matches(layout: Layout, stanza: Stanza, branch: str) -> bool:
    if "branches" in stanza.body:
        return _any_match(stanza.body["branches"], branch)
    source = layout.source(stanza.source.project)
    wanted = stanza.pragma.get("implied-branch-matchers", source.implied_branch_matchers if source else None)
    if wanted is False or (wanted is None and stanza.source.trusted):
        return True
    if wanted is None and len(layout.branches.get(stanza.source.project, ())) <= 1:
        return True
    if "implied-branches" in stanza.pragma:
        return _any_match(stanza.pragma["implied-branches"], branch)
    return branch == stanza.source.branch


def _implied(layout: Layout, stanza: Stanza, branch: str) -> bool:
    return _variant_matches(layout, stanza, branch)


def _project_matches(layout: Layout, stanza: Stanza, project: str, branch: str) -> bool:
    if "branches" in stanza.body:
        return _any_match(stanza.body["branches"], branch)
    if stanza.source.trusted:
        return True
    if stanza.source.project == project:
        return branch == stanza.source.branch
    return _implied(layout, stanza, branch)


def _any_match(patterns: Any, subject: str) -> bool:
    return any(_match(p, subject) for p in as_list(deep_plain(patterns)))


def _match(pattern: Any, subject: str) -> bool:
    """At the start; negated when it says so."""
    if isinstance(pattern, dict):
        return (re2.match(pattern["regex"], subject) is not None) != bool(pattern.get("negate"))
    return re2.match(pattern, subject) is not None


def _files_match(mix: Mix, files: tuple[str, ...] | None) -> bool:
    if not files:
        return True
    if mix.files and not any(_match(p, f) for p in mix.files for f in files):
        return False
    return not mix.irrelevant or not all(any(_match(p, f) for p in mix.irrelevant) for f in files)


def _project_vars(layout: Layout, project: str, branch: str) -> dict[str, Any]:
    """Templates beneath stanzas."""
    found: dict[str, Any] = {}
    for stanza in layout.stanzas(project):
        if _project_matches(layout, stanza, project, branch):
            for name in as_list(stanza.body.get("templates")):
                for template in layout.templates.get(name, []):
                    found = deep_merge(found, deep_plain(template.body.get("vars") or {}))
            found = deep_merge(found, deep_plain(stanza.body.get("vars") or {}))
    return found


def _resolve(graph: Graph) -> Iterator[str]:
    """Drops the optional jobs nobody needs; what is wrong with the dependencies of the rest."""
    needed = [name for name in graph.jobs if name not in graph.optional]
    while needed:
        for d in graph.jobs[needed.pop()].dependencies:
            if d.name in graph.optional and not d.soft:
                graph.optional.discard(d.name)
                needed.append(d.name)
    for name in graph.optional:
        del graph.jobs[name]
    for job in graph.jobs.values():
        for d in job.dependencies:
            if d.name not in graph.jobs and not d.soft:
                yield f"job {job.name} depends on {d.name}, which is not run for this change"
    if cycle := _cycle(graph.jobs):
        yield f"the dependencies of jobs go in a circle: {' -> '.join(cycle)}"


def _known_dependencies(graph: Graph) -> Iterator[FrozenJob]:
    yield from graph.jobs.values()


def _cycle(jobs: dict[str, FrozenJob]) -> list[str]:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in jobs:
            return []
        for d in jobs[name].dependencies:
            if found := visit(d.name, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in jobs if (found := visit(name, []))), [])
