"""Find the uses of a definition: projects that a change to it affects, and errors that its removal would cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headgate.config.check.findings import GraphFinding, frozen, graphs
from headgate.config.definitions import PATTERNS, Key
from headgate.config.files.checks import entries
from headgate.config.files.document import Table
from headgate.config.kinds.stanza import section_jobs
from headgate.config.layout import Layout, exchanged
from headgate.config.parse import ParsedBranch, Stanza
from headgate.config.patterns import any_fullmatch

GENERATIONS_MAX = 50
"""Maximum number of generations of child jobs to list."""


def reached(old: Layout, new: Layout) -> frozenset[str]:
    """Return the canonical names of the projects whose job graphs may differ. Both layouts must have an index.

    This follows the references to every changed definition, up to the projects. All other projects freeze to the same
    graphs, except that inherited definitions may have moved within their files.
    """
    references = _References(old, new)
    for key in _changed(old, new):
        references.follow(key)
    return frozenset(references.projects)


class _References:
    def __init__(self, old: Layout, new: Layout) -> None:
        self._layouts = (old, new)
        self.seen: set[Key] = set()
        self.projects: set[str] = set()

    def follow(self, key: Key) -> None:
        waiting = [key]
        while waiting:
            key = waiting.pop()
            if key in self.seen:
                continue
            self.seen.add(key)
            if key[0] == "project":
                self.projects.update(self._configured(key))
            for layout in self._layouts:
                waiting += (one for stanza in _readers(layout, key) for one in _keys(layout, stanza))

    def _configured(self, key: Key) -> Iterator[str]:
        if key != PATTERNS:
            yield key[1]
            return
        names = [stanza.name for layout in self._layouts for stanza in layout.patterns]
        for project in self._layouts[0].tenant.projects:
            if any_fullmatch(names, project.name) or any_fullmatch(names, project.project):
                yield project.project


def _readers(layout: Layout, key: Key) -> Iterable[Stanza]:
    assert layout.index is not None, "a compared layout has an index"
    found = layout.index.readers.get(key, frozenset())
    # A job that names no parent has no recorded reference to the default one.
    if key == ("job", layout.tenant.default_parent):
        orphans = (s for variants in layout.jobs.values() for s in variants if "parent" not in s.body)
        return {*found, *orphans}
    return found


def _keys(layout: Layout, stanza: Stanza) -> Iterator[Key]:
    """Yield the key that the stanza defines."""
    if stanza.kind != "project":
        yield (stanza.kind, stanza.name)
    elif stanza.name.startswith("^"):
        yield PATTERNS
    elif (target := layout.tenant.find(stanza.name or stanza.source.project)) is not None:
        yield ("project", target.project)


def _changed(old: Layout, new: Layout) -> Iterator[Key]:
    """Yield the keys whose definitions differ, and keys that are defined in projects whose set of branches differs."""
    assert old.index is not None and new.index is not None, "compared layouts have an index"
    places = {*old.index.parsed, *new.index.parsed}
    # Equal contents usually are the same object, and those that are not are compared below.
    touched = [place for place in places if old.index.parsed.get(place) is not new.index.parsed.get(place)]
    keys = {
        key
        for place in touched
        for layout in (old, new)
        if layout.index is not None and (parsed := layout.index.parsed.get(place)) is not None
        for stanza in parsed.stanzas
        for key in _keys(layout, stanza)
    }
    if any(kind == "label" for kind, _ in keys):
        keys |= {key for layout in (old, new) if layout.index is not None for key in layout.index.claims}
    # Definitions of a project with several branches apply to their own branch only, so the number of branches matters.
    rebranched = {p for p, _ in touched if old.branches.get(p, ()) != new.branches.get(p, ())}
    for key in keys:
        if _contents(old.admitted(key)) != _contents(new.admitted(key)):
            yield key
    for layout in (old, new) if rebranched else ():
        for key, claims in layout.index.claims.items() if layout.index is not None else ():
            if any(stanza.source.project in rebranched for stanza in claims):
                yield key


def _contents(stanzas: Sequence[Stanza]) -> list[object]:
    """Return the content of stanzas, regardless of their positions in their files."""
    return [(s.source.project, s.source.branch, s.source.trusted, s.body, dict(s.pragma)) for s in stanzas]


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
    """Errors that its removal would cause."""


def uses(layout: Layout, job: str) -> Uses:
    """Return all uses of `job`. The layout must have an index."""
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
            # A variant may name its own job as its parent, which adds nothing.
            if isinstance(parent, str) and parent != name:
                below.setdefault(parent, {}).setdefault(name, stanza)
    # Push in reverse order onto the stack, so that children are popped in the order of their definition.
    seen, waiting = {job}, [Child(1, *pair) for pair in reversed(below.get(job, {}).items())]
    while waiting:
        child = waiting.pop()
        if child.name in seen or child.generation > GENERATIONS_MAX:
            continue
        seen.add(child.name)
        yield child
        waiting += [Child(child.generation + 1, *pair) for pair in reversed(below.get(child.name, {}).items())]


def _without(layout: Layout, job: str) -> Layout:
    """Return the layout without any variant of the job."""
    assert layout.index is not None, "the caller's layout has an index"
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
        # A graph that already has errors shows nothing about the removal.
        if not layout.freeze(graph.pipeline, graph.project, graph.branch).errors:
            fresh += frozen(other, graph)
    return tuple(fresh)
