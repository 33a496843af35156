"""Find errors that only freezing reveals, before they affect a change, and group errors by cause."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from headgate.base.hints import HintedText, nearest
from headgate.config.definitions import Place
from headgate.config.files.checks import as_list, entries
from headgate.config.files.document import Table, load
from headgate.config.files.source import MEANING, Wrong
from headgate.config.freeze.collect import collect
from headgate.config.freeze.freeze import mixed
from headgate.config.freeze.mix import VariantRefused
from headgate.config.freeze.sections import FreezeTarget
from headgate.config.kinds.stanza import BOOK_KEYS, section_jobs, semaphore_names
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.config.parse import ParsedBranch, Stanza
from headgate.config.patterns import Undecided

_STANZA = re.compile(r" *- +([a-z-]+):")
_NAME = re.compile(r"(?:^ +|[{,] *)name: *([^,}\n]+)", re.MULTILINE)
# Errors have no codes, so match their texts, which come from `assembly.references` and `freeze`.
_MISSING = tuple(
    re.compile(text)
    for text in (
        r"the (?:parent )?(job)(?: it depends on,)? '([^']+)' is not defined",
        r"there is no ([a-z-]+) '([^']+)'",
        r"the (nodeset|secret|image|queue|semaphore) '([^']+)' is not (?:defined|declared)",
        r"the (project) '([^']+)' is not in this tenant",
    )
)
_NEEDED = re.compile(r"(job) \S+ depends on (\S+), which (?:is not|does not run)")
_KINDS = ("job", "nodeset", "secret", "project-template", "pipeline", "queue", "semaphore", "image", "label", "flavor")
"""Kinds of stanzas to which others refer by name."""
_OWN = ("secret", "image")
"""Kinds of stanzas whose names are separate in each project."""
CAUSES_DEPTH_MAX = 20
"""Longest chain of causes from an error to its first cause."""
Root = tuple[str, ...]
"""Identity of a first cause."""


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
        # A project from which nothing is read has jobs nevertheless if another one configures it.
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
        # Errors of attached jobs are found when their graphs are frozen.
        if name not in attached:
            yield from map(GraphFinding, _alone(layout, name))


def _sections(stanza: Stanza) -> Iterator[tuple[str, Table]]:
    return ((pipeline, section) for pipeline, section in stanza.sections() if isinstance(section, Table))


def _project(
    layout: Layout, stanza: Stanza, pipelines: Collection[str] | None, semaphores: Collection[str]
) -> Iterator[ConfigError]:
    queue, known = stanza.body.get("queue"), layout.singles["queue"]
    if isinstance(queue, str) and queue not in known:
        text = HintedText(f"the queue {queue!r} is not declared: all branches share it", nearest(queue, known))
        yield stanza.error("Queue Not Found", text, "queue", "warning")
    for pipeline, section in _sections(stanza):
        if pipelines is not None and pipeline not in pipelines:
            text = HintedText(
                f"there is no pipeline {pipeline!r} in any tenant: these jobs never run", nearest(pipeline, pipelines)
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
            hint = nearest(name, known)
            text = HintedText(f"the semaphore {name!r} is not declared: it admits one build at a time", hint)
            yield stanza.source.error("Semaphore Not Found", text, line, "warning")


def _circles(layout: Layout) -> Iterator[ConfigError]:
    """Yield one error for each circle of jobs that inherit from each other."""
    above: dict[str, list[str]] = {}
    for name, variants in layout.jobs.items():
        parents = (stanza.body.get("parent") for stanza in variants)
        # A variant may name its own job as its parent, which adds nothing.
        above[name] = [parent for parent in parents if isinstance(parent, str) and parent != name]
    while True:
        try:
            TopologicalSorter(above).prepare()
        except CycleError as error:
            circle = list(error.args[1])
            # Each name in the circle is a parent of the next one.
            first, parent = circle[1], circle[0]
            stanza = next(s for s in layout.jobs[first] if s.body.get("parent") == parent)
            text = f"jobs inherit in a circle: {' -> '.join(reversed(circle))}"
            yield stanza.error("Parents In A Circle", text, "parent")
            # The sorter reports one circle at a time: remove this reference, so that it finds the next one.
            above[first] = [name for name in above[first] if name != parent]
        else:
            return


def _alone(layout: Layout, name: str) -> Iterator[ConfigError]:
    """Yield the errors of a job that no project attaches, on each branch that defines it."""
    reported: set[tuple[str, str]] = set()
    for branch in dict.fromkeys(stanza.source.branch for stanza in layout.jobs[name]):
        try:
            variants = collect(layout, name, [], FreezeTarget(branch))
            # Take all steps: each of them may be refused, and the job is complete after the last one.
            for mix, _ in mixed(layout, name, variants, {}, []):
                last = mix
            if variants:
                last.frozen()
        except VariantRefused as refused:
            # The same stanza may apply on several branches.
            if (key := (str(refused), refused.stanza.place)) not in reported:
                reported.add(key)
                yield refused.stanza.error(refused.name, refused.message, refused.key)
        except Undecided as undecided:
            yield layout.jobs[name][0].error(MEANING, f"job {name}: {undecided}")
            return


class Cause(NamedTuple):
    """Represent one mistake to fix, with its consequences."""

    error: ConfigError
    """The error at the first place where it occurs."""
    alike: tuple[ConfigError, ...]
    """Equal errors in the same file on other branches."""
    also: tuple[ConfigError, ...]
    """Errors at other places that lack the same definition."""
    follow: tuple[ConfigError, ...]
    """Errors that disappear when this one is fixed."""
    graphs: tuple[CheckedGraph, ...]
    """Job graphs that cannot be frozen because of this error: none of their jobs run."""

    @property
    def weight(self) -> int:
        """Return the number of errors and graphs that depend on it."""
        return len(self.also) + len(self.follow) + len(self.graphs)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return (self.error, *self.alike, *self.also, *self.follow)


def causes(found: Iterable[GraphFinding], lost: Mapping[str, ConfigError]) -> list[Cause]:
    """Return the errors grouped by cause. Causes of errors come before those of warnings, and within each, causes with
    the most consequences first. `lost` is the result of `left_out`."""
    findings = list(found)
    missing = {about for finding in findings if (about := missed(finding.error))} | set(lost)
    groups: dict[Root, _Group] = {}
    for finding in findings:
        root, direct = _root(finding, lost, missing)
        groups.setdefault(root, _Group()).add(finding, direct=direct)
    grouped = [group.cause() for group in groups.values()]
    return sorted(grouped, key=lambda cause: (cause.error.severity != "error", -cause.weight))


def missed(error: ConfigError, known: Collection[str] = ()) -> str:
    """Return the definition that the error reports as missing, as `kind name`, or an empty string for other errors.

    For an error about a dependency that does not run, return that job if it is in `known`, the names known to be
    missing.
    """
    for pattern in _MISSING:
        if found := pattern.search(error.text):
            return f"{found[1]} {found[2]}"
    needed = _NEEDED.search(error.text)
    return about if needed and (about := f"job {needed[2]}") in known else ""


class _Group:
    def __init__(self) -> None:
        self._direct: dict[tuple[str, ...], ConfigError] = {}
        self._follow: dict[tuple[str, ...], ConfigError] = {}
        self._graphs: dict[CheckedGraph, None] = {}

    def add(self, finding: GraphFinding, *, direct: bool) -> None:
        error = finding.error
        where = (error.project, error.branch, error.path, str(error.line))
        (self._direct if direct else self._follow).setdefault(where, error)
        # A warning does not keep a graph from running.
        if error.severity == "error":
            self._graphs.update(dict.fromkeys(finding.graphs))

    def cause(self) -> Cause:
        direct = list(self._direct.values()) or list(self._follow.values())
        first = next((error for error in direct if error.severity == "error"), direct[0])
        follow = [e for where, e in self._follow.items() if where not in self._direct and e is not first]
        alike = [e for e in direct if e is not first and _same(e) == _same(first)]
        also = [e for e in direct if e is not first and _same(e) != _same(first)] if self._direct else []
        return Cause(first, tuple(alike), tuple(also), tuple(follow), tuple(self._graphs))


def _same(error: ConfigError) -> tuple[str, ...]:
    """Return the identity of an error without its branch, so that the same error of a file is equal on all branches."""
    return (error.project, error.path, str(error.line), error.name, error.text, error.snippet)


def _root(finding: GraphFinding, lost: Mapping[str, ConfigError], missing: Collection[str]) -> tuple[Root, bool]:
    """Return the identity of the first cause of an error, and whether the error itself is that cause."""
    error, direct = finding.error, True
    for _ in range(CAUSES_DEPTH_MAX):
        about = missed(error, missing)
        cause = lost.get(about)
        # Stop at an error about the definition that it itself makes missing: it would be its own cause.
        if cause is None or cause == error:
            break
        error, direct = cause, False
    if about:
        return ("missing", about, error.project if about.partition(" ")[0] in _OWN else ""), direct
    text = error.text
    for graph in finding.graphs if direct else ():
        text = text.replace(graph.project, "")  # equal for all projects with this error
    return (error.project, error.path, str(error.line), error.name, text), direct


def left_out(layout: Layout) -> dict[str, ConfigError]:
    """Return the errors that keep definitions out of the layout, by `kind name` of the definition."""
    found: dict[str, ConfigError] = {}
    for stanza, errors in layout.findings.refused.items():
        # Another stanza of the same name may have been admitted.
        if not layout.admitted((stanza.kind, stanza.name)):
            found.setdefault(f"{stanza.kind} {stanza.name}", errors[0])
    for place, errors in layout.findings.files.items():
        if layout.index is not None and (parsed := layout.index.parsed.get(place)) is not None:
            for name, error in _void(place, parsed, errors):
                if not layout.admitted(_key(name)):
                    found.setdefault(name, error)
    return found


def _key(name: str) -> tuple[str, str]:
    kind, _, rest = name.partition(" ")
    return kind, rest


def _void(place: Place, parsed: ParsedBranch, errors: Sequence[ConfigError]) -> Iterator[tuple[str, ConfigError]]:
    """Yield each definition (`kind name`) that appears in the text of a file with errors but not among its stanzas,
    with the error that prevents it."""
    read = {(s.source.path, s.kind, s.name) for s in parsed.stanzas}
    wrong: dict[str, list[ConfigError]] = {}
    for error in errors:
        if error.severity == "error" and error.path in parsed.files:
            wrong.setdefault(error.path, []).append(error)
    for path, of in wrong.items():
        for kind, name, first, end in stanzas_in(parsed.files[path]):
            if kind in _KINDS and (path, kind, name) not in read:
                # A syntax error may be reported outside the stanza that causes it.
                yield f"{kind} {name}", next((e for e in of if first <= e.line <= end), of[0])


def stanzas_in(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield (kind, name, first line, last line) for everything that looks like a stanza, even in invalid YAML."""
    lines = text.splitlines()
    heads = [(n, found[1]) for n, line in enumerate(lines) if (found := _STANZA.match(line)) and found[1] in _KINDS]
    ends = [*(first for first, _ in heads[1:]), len(lines)]
    for (first, kind), end in zip(heads, ends, strict=False):
        if name := _NAME.search("\n".join(lines[first:end])):
            yield kind, _named(name[1].strip()), first + 1, end


def _named(text: str) -> str:
    """Return a name as errors show it, with escapes in a quoted name resolved."""
    if text.startswith('"'):
        with suppress(Wrong):
            return repr(str(load(text)))[1:-1]
    return text.strip("\"'")
