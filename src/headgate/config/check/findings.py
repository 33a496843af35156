"""Find errors that only freezing reveals, before they affect a change."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from headgate.config.files.check import as_list, entries
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING, nearest
from headgate.config.freeze.collect import collect
from headgate.config.freeze.freeze import mixed
from headgate.config.freeze.matchers import FreezeTarget
from headgate.config.freeze.mix import VariantRefused
from headgate.config.kinds.job import BOOK_KEYS, semaphore_names
from headgate.config.kinds.project import section_jobs
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided


class CheckedGraph(NamedTuple):
    """Represent one job graph of a tenant."""

    pipeline: str
    project: str
    """Canonical name."""
    branch: str


class GraphFinding(NamedTuple):
    """Represent an error and the graphs that it prevents."""

    error: ConfigError
    graphs: tuple[CheckedGraph, ...] = ()


def graphs(layout: Layout, projects: Collection[str] | None = None) -> Iterator[CheckedGraph]:
    """Yield the graph of every project (or of `projects`, by canonical name) in every pipeline, on every branch whose
    configuration is read."""
    for source in layout.tenant.projects:
        if projects is not None and source.project not in projects:
            continue
        for branch in layout.branches.get(source.project) or (source.load_branch,):
            yield from (CheckedGraph(pipeline, source.project, branch) for pipeline in layout.pipelines)


def frozen(layout: Layout, graph: CheckedGraph) -> list[GraphFinding]:
    """Freeze a graph and return its errors."""
    found = layout.freeze(graph.pipeline, graph.project, graph.branch)
    return [GraphFinding(error, (graph,)) for error in found.errors]


def layout_findings(layout: Layout, pipelines: Collection[str] | None) -> Iterator[GraphFinding]:
    """Yield the errors that no graph shows: undefined names, circular inheritance, and errors in jobs that no project
    attaches.

    `pipelines` holds the names of the pipelines of all tenants, or is None if they are not known.
    """
    stanzas = [stanza for of in (layout.projects, layout.templates) for found in of.values() for stanza in found]
    stanzas += layout.patterns
    semaphores = layout.semaphores
    yield from map(GraphFinding, _circles(layout))
    for stanza in stanzas:
        yield from map(GraphFinding, _project(layout, stanza, pipelines, semaphores))
    for variants in layout.jobs.values():
        for stanza in variants:
            yield from map(GraphFinding, _semaphores(semaphores, stanza, stanza.body))
    attached = {name for s in stanzas for _, section in _sections(s) for name, _, _ in section_jobs(section)}
    for name in layout.jobs:
        if name not in attached:
            yield from map(GraphFinding, _alone(layout, name))


def _sections(stanza: Stanza) -> Iterator[tuple[str, Table]]:
    return ((pipeline, section) for pipeline, section in stanza.sections() if isinstance(section, Table))


def _project(
    layout: Layout, stanza: Stanza, pipelines: Collection[str] | None, semaphores: Collection[str]
) -> Iterator[ConfigError]:
    queue, known = stanza.body.get("queue"), layout.singles["queue"]
    if isinstance(queue, str) and queue not in known:
        text = f"the queue {queue!r} is not declared: it is one queue for all branches{nearest(queue, known)}"
        yield stanza.error("Queue Not Found", text, "queue", "warning")
    for pipeline, section in _sections(stanza):
        if pipelines is not None and pipeline not in pipelines:
            text = (
                f"there is no pipeline {pipeline!r} in any tenant: these jobs never run{nearest(pipeline, pipelines)}"
            )
            yield stanza.error("Pipeline Not Found", text, pipeline)
        for _, attributes, _ in section_jobs(section):
            yield from _semaphores(semaphores, stanza, attributes)


def _semaphores(known: Collection[str], stanza: Stanza, body: Table) -> Iterator[ConfigError]:
    line = body.at("semaphores" if "semaphores" in body else "semaphore")
    named = [(name, line) for name, _ in semaphore_names(body)]
    for key in BOOK_KEYS:
        for book, at in entries(body.get(key), body.at(key)):
            if isinstance(book, Table):
                named += ((name, at) for name in as_list(book.get("semaphores")))
    for name, line in dict.fromkeys(named):
        if name not in known:
            text = f"the semaphore {name!r} is not declared: one build at a time holds it{nearest(name, known)}"
            yield stanza.source.error("Semaphore Not Found", text, line, "warning")


def _circles(layout: Layout) -> Iterator[ConfigError]:
    """Report each circle of jobs that inherit from each other, once."""
    above: dict[str, list[str]] = {}
    for name, variants in layout.jobs.items():
        parents = (stanza.body.get("parent") for stanza in variants)
        above[name] = [parent for parent in parents if isinstance(parent, str) and parent != name]
    while True:
        try:
            TopologicalSorter(above).prepare()
        except CycleError as error:
            circle = list(error.args[1])
            # Each name in the circle is a parent of the next one.
            first, parent = circle[1], circle[0]
            stanza = next(s for s in layout.jobs[first] if s.body.get("parent") == parent)
            text = f"the parents of jobs go in a circle: {' -> '.join(reversed(circle))}"
            yield stanza.error("Parents In A Circle", text, "parent")
            # The sorter reports one circle at a time: without this reference it finds the next.
            above[first] = [name for name in above[first] if name != parent]
        else:
            return


def _alone(layout: Layout, name: str) -> Iterator[ConfigError]:
    """Yield the errors of a job that no project attaches, on each branch that defines it."""
    reported: set[tuple[str, str]] = set()
    for branch in dict.fromkeys(stanza.source.branch for stanza in layout.jobs[name]):
        try:
            variants = collect(layout, name, [], FreezeTarget(branch))
            for mix, _ in mixed(layout, name, variants, {}, []):
                last = mix
            if variants:
                last.frozen()
        except VariantRefused as refused:
            if (key := (refused.text, refused.stanza.place)) not in reported:
                reported.add(key)
                yield refused.stanza.error(refused.name, refused.text, refused.key)
        except Undecided as undecided:
            yield layout.jobs[name][0].error(MEANING, f"job {name}: {undecided}")
            return
