"""Find what uses a job, and which errors its removal would cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from headgate.config.assembly.links import exchanged
from headgate.config.check.affected import reached
from headgate.config.check.findings import GraphFinding, frozen, graphs
from headgate.config.files.check import entries
from headgate.config.files.document import Table
from headgate.config.kinds.project import section_jobs
from headgate.config.layout import Layout
from headgate.config.parse import ParsedBranch, Stanza

DEPTH_MAX = 50
"""Generations of children that are listed."""


class Child(NamedTuple):
    generation: int
    """Number of the generation, from 1."""
    name: str
    stanza: Stanza


class Attachment(NamedTuple):
    pipeline: str
    stanza: Stanza
    """Stanza of a project or a template."""
    line: int


class Need(NamedTuple):
    name: str
    stanza: Stanza


class Uses(NamedTuple):
    children: tuple[Child, ...]
    """Children in depth-first order, each after its parent."""
    attached: tuple[Attachment, ...]
    needed: tuple[Need, ...]
    """Jobs that depend on it."""
    projects: frozenset[str]
    """Projects whose job graphs contain it."""
    without: tuple[GraphFinding, ...]
    """Errors that would follow if it did not exist."""


def uses(layout: Layout, job: str) -> Uses:
    """Return everything that uses `job`. The layout must have an index."""
    stanzas = [stanza for variants in layout.jobs.values() for stanza in variants]
    sections = [s for of in (layout.projects, layout.templates) for found in of.values() for s in found]
    attached = [
        Attachment(pipeline, stanza, line)
        for stanza in (*sections, *layout.patterns)
        for pipeline, section in stanza.sections()
        if pipeline in layout.pipelines
        for name, _, line in section_jobs(section)
        if name == job
    ]
    needed = [Need(s.name, s) for s in stanzas if job in _dependencies(s.body)]
    other = _without(layout, job)
    projects = reached(layout, other)
    return Uses(
        tuple(_children(layout, job)), tuple(attached), tuple(needed), projects, _broken(layout, other, projects)
    )


def _dependencies(body: Table) -> set[str]:
    return {d if isinstance(d, str) else d["name"] for d, _ in entries(body.get("dependencies"), 0)}


def _children(layout: Layout, job: str) -> Iterator[Child]:
    """Yield the jobs that inherit from `job`, directly or indirectly; each once, even if the inheritance is
    circular."""
    below: dict[str, dict[str, Stanza]] = {}
    default = layout.tenant.default_parent
    for name, variants in layout.jobs.items():
        for stanza in variants:
            parent = stanza.body.get("parent", default)
            if isinstance(parent, str) and parent != name:
                below.setdefault(parent, {}).setdefault(name, stanza)
    # On a stack, reversed, so that children come off in the order of their definition.
    seen, waiting = {job}, [Child(1, *pair) for pair in reversed(below.get(job, {}).items())]
    while waiting:
        child = waiting.pop()
        if child.name in seen or child.generation > DEPTH_MAX:
            continue
        seen.add(child.name)
        yield child
        waiting += [Child(child.generation + 1, *pair) for pair in reversed(below.get(child.name, {}).items())]


def _without(layout: Layout, job: str) -> Layout:
    """Return the layout without any variant of the job."""
    assert layout.index is not None, "a layout that is asked about keeps its index"
    reduced: dict[str, dict[str, ParsedBranch]] = {}
    for stanza in layout.jobs.get(job, ()):
        place = (stanza.source.project, stanza.source.branch)
        parsed = layout.index.parsed[place]
        remaining = tuple(
            replace(s) for s in parsed.stanzas if (s.kind, s.name) != ("job", job)
        )  # copies count as new stanzas
        reduced.setdefault(place[0], {})[place[1]] = replace(parsed, stanzas=remaining)
    return exchanged(layout, reduced, keep=True)


def _broken(layout: Layout, other: Layout, projects: frozenset[str]) -> tuple[GraphFinding, ...]:
    known = {(e.name, e.text, e.project, e.branch, e.path) for e in layout.errors}
    fresh = [GraphFinding(e) for e in other.errors if (e.name, e.text, e.project, e.branch, e.path) not in known]
    for graph in graphs(other, projects):
        # A graph that has errors already says nothing about the removal.
        if not layout.freeze(graph.pipeline, graph.project, graph.branch).errors:
            fresh += frozen(other, graph)
    return tuple(fresh)
