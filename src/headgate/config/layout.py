"""Assemble a tenant's configuration into a layout by replacing files, and answer questions about it.

Every stanza claims a key, such as the job `unit`. Which claims to a key are admitted depends only on the claims to that
key. The layout records the keys that an admitted stanza refers to, and checks the stanza again when one of them
changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from headgate.base.hints import with_hint
from headgate.config.assembly.admission import Admission
from headgate.config.assembly.references import References, seen_from_outside
from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.definitions import PATTERNS, Branches, Index, Key, LayoutDefinitions, Place
from headgate.config.files.checks import as_list
from headgate.config.files.source import MEANING
from headgate.config.freeze import sections
from headgate.config.freeze.freeze import FreezeQuestion, freeze
from headgate.config.model import ConfigError, FrozenGraph, Pipeline
from headgate.config.operator.model import Tenant, TenantProject
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided

T = TypeVar("T")
D = TypeVar("D", bound=LayoutDefinitions)

QUEUE_TYPES = ("all-branches", "per-branch", "branch-assigned")
HELPED_MAX = 100
"""Maximum number of errors that suggest a similar name, which is slow to find."""
_NONE: tuple[Stanza, ...] = ()


@dataclass(slots=True)
class Layout(LayoutDefinitions):
    """Represent a tenant's layout; `build_layout` creates one."""

    def takes_part(self, pipeline: str, project: str, branch: str, ref: str = "") -> bool:
        """Return whether the project takes part in the pipeline, or may: for a tag, only a freeze can decide."""
        target = sections.FreezeTarget(branch, ref, anywhere=not branch and ref.startswith("refs/tags/"))
        try:
            return bool(sections.of(self, pipeline, project, target))
        except Undecided:
            # Let the item enter: its freeze then reports the pattern.
            return True

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: LayoutDefinitions | None = None,
        *,
        containing: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> FrozenGraph:
        """Return the jobs of an item. Errors in the graph make the item a configuration error.

        `files` are the files that the change modifies, or None if they are unknown. `ahead` is the layout without the
        change, if the change alters the configuration. `containing` holds the branches that contain the commit of a
        tag.
        """
        target = sections.FreezeTarget(branch, ref, containing)
        return freeze(self, FreezeQuestion(pipeline, project, target, files, ahead, dict(parameters or {})))

    def queue_of(self, project: str, branch: str, pipeline: str) -> str:
        """Return the name of the project's shared queue, or else of the project. A per-branch queue has `@` and the
        branch appended."""
        name = self._named_queue(project, branch)
        return f"{name or project}@{branch}" if self._queue_type(name) == "per-branch" else name or project

    def queue_says(self, project: str, branch: str, key: str) -> bool:
        """Return whether this flag is set for the project's queue."""
        queue = self.singles["queue"].get(self._named_queue(project, branch))
        return queue is not None and bool(queue.body.get(key))

    def _named_queue(self, project: str, branch: str) -> str:
        """Return the name of the project's shared queue, or an empty string if it has a queue of its own."""
        named = list(self._queues(project))
        name = next((queue for _, queue in named), "")
        if self._queue_type(name) != "branch-assigned":
            return name
        target = sections.FreezeTarget(branch)
        assigned = (queue for s, queue in named if sections.project_applies(self, s, project, target))
        try:
            return next(assigned, name)
        except Undecided:
            return name  # the freeze reports the pattern

    def _queues(self, project: str) -> Iterator[tuple[Stanza, str]]:
        """Yield each stanza of the project with each queue that it or one of its templates names."""
        for stanza in self.stanzas(project):
            templates = [t for n in as_list(stanza.body.get("templates")) for t in self.templates.get(n, [])]
            yield from ((stanza, s.body["queue"]) for s in (stanza, *templates) if s.body.get("queue"))

    def _queue_type(self, name: str) -> str:
        """Return the type of a queue: all-branches, per-branch or branch-assigned; all-branches if it is not
        defined."""
        queue = self.singles["queue"].get(name)
        if queue is None:
            return QUEUE_TYPES[0]
        kind: str = queue.body.get("type", QUEUE_TYPES[0])
        return QUEUE_TYPES[1] if queue.body.get("per-branch") else kind


def build_layout(tenant: Tenant, branches: Branches, budgets: Budgets = DEFAULTS) -> Layout:
    """Build the layout from all files, in the order of precedence: config-projects, then the other projects; within
    a project its first branch, then the others by name."""
    return exchanged(Layout(tenant, {}, budgets, index=Index()), branches, keep=True)


def branch_of(layout: Layout, queue: str) -> str | None:
    """Return the branch of a per-branch queue, given its name as from `queue_of`, or None for a queue of another
    type."""
    # Names of queues and branches may contain `@`, too: split at the first one that leaves a per-branch queue.
    cuts = (at for at, c in enumerate(queue) if c == "@" and layout._queue_type(queue[:at]) == "per-branch")
    return next((queue[at + 1 :] for at in cuts), None)


def exchanged(layout: D, branches: Branches, gone: Collection[Place] = (), *, keep: bool) -> D:
    """Return the layout with the files of `branches` replaced and the branches in `gone` removed.

    With `keep`, further layouts can be derived from the result; `layout` itself must have been created with it.
    """
    return _Exchange(layout, branches, gone, keep=keep).layout


class _Exchange(Generic[D]):
    def __init__(self, base: D, branches: Branches, gone: Collection[Place], *, keep: bool) -> None:
        assert base.index is not None, "a layout that others are derived from has an index"
        self._base, self._from = base, base.index
        self._tenant = base.tenant
        self._come = {(p, branch): parsed for p, found in branches.items() for branch, parsed in found.items()}
        self._gone = gone
        self.layout = _copied(base, branches, gone)
        self._findings = self.layout.findings
        old, new = self._files()
        # Check references only after all keys are decided, because they may refer to any of them.
        self._checked(self._claimed(old, new))
        self.layout.errors = tuple(self._errors())
        if keep:
            self.layout.index = self._index(old)

    # --- files

    def _files(self) -> tuple[list[Stanza], list[Stanza]]:
        """Return the removed and the added stanzas, and record the errors of the replaced files in the findings."""
        old: list[Stanza] = []
        new: list[Stanza] = []
        for place in (*self._come, *self._gone):
            before, parsed = self._from.parsed.get(place), self._come.get(place)
            self._findings.files.pop(place, None)
            if parsed is not None and parsed.errors:
                self._findings.files[place] = parsed.errors
            if before is not parsed:
                old += before.stanzas if before is not None else ()
                new += parsed.stanzas if parsed is not None else ()
        return old, new

    # --- claims

    def _claimed(self, old: Iterable[Stanza], new: Iterable[Stanza]) -> list[Stanza]:
        """Decide again which claims to each affected key are admitted, and return the admitted stanzas whose references
        must be checked."""
        gone = set(old)
        come: dict[Key, list[Stanza]] = {}
        admission = Admission(self._tenant)
        # Also decide keys again that only lose a claim: another branch may now have the first definition.
        for stanza in gone:
            come.setdefault(admission.key(stanza), [])
        for stanza in new:
            come.setdefault(admission.key(stanza), []).append(stanza)
        self._touched = {}
        again: dict[Stanza, None] = {}
        for key in come:
            staying = [s for s in self._from.claims.get(key, _NONE) if s not in gone]
            # The staying claims are already sorted.
            claims = sorted([*staying, *come[key]], key=self.rank) if come[key] else staying
            self._touched[key] = tuple(claims)
            before = self._base.admitted(key)
            self._admit(admission, key, claims)
            after = self.layout.admitted(key)
            again.update((s, None) for s in after if s not in before)
            # Most edits do not affect references to the stanza; then its readers, perhaps thousands, need no new check.
            if seen_from_outside(key, before) != seen_from_outside(key, after):
                again.update((s, None) for s in self._from.readers.get(key, ()) if s not in gone)
        # The tables were edited in place; restore the order of pipelines, which is that of their definitions.
        if any(kind == "pipeline" for kind, _ in come):
            stanzas = sorted((s for (s,) in self.layout.pipeline_stanzas.values()), key=self.rank)
            self.layout.pipelines = {s.name: self.layout.pipelines[s.name] for s in stanzas}
        # A stanza noted for one key may have been rejected in the meantime for another.
        return [s for s in again if s in self.layout.admitted(admission.key(s))]

    def _admit(self, admission: Admission, key: Key, claims: list[Stanza]) -> None:
        admitted: list[Stanza] = []
        pipeline: Pipeline | None = None
        before = self._from.claims.get(key, _NONE)
        for stanza in before:
            self._findings.refused.pop(stanza, None)
        for stanza in claims:
            verdict = admission.verdict(stanza, admitted)
            if verdict.errors:
                self._findings.refused[stanza] = verdict.errors
            if verdict.admitted:
                admitted.append(stanza)
                pipeline = pipeline or verdict.pipeline
        _enter(self.layout, key, admitted, pipeline)
        for stanza in before:
            if stanza not in admitted:
                self._findings.references.pop(stanza, None)

    # --- references

    def _checked(self, stanzas: list[Stanza]) -> None:
        self._reads: dict[Stanza, frozenset[Key]] = {}
        errors_total = 0
        for stanza in stanzas:
            references = References(self.layout, helpful=errors_total < HELPED_MAX)
            found = tuple(references.check(stanza))
            errors_total += len(found)
            self._findings.references.pop(stanza, None)
            if found:
                self._findings.references[stanza] = found
            self._reads[stanza] = frozenset(references.read)

    def _index(self, old: list[Stanza]) -> Index:
        claims = self._from.claims | self._touched
        parsed = {place: one for place, one in (self._from.parsed | self._come).items() if place not in self._gone}
        reads = dict(self._from.reads)
        dropped: dict[Key, set[Stanza]] = defaultdict(set)
        added: dict[Key, set[Stanza]] = defaultdict(set)
        for stanza in (*old, *self._reads):
            for key in reads.pop(stanza, ()):
                dropped[key].add(stanza)
        for stanza, keys in self._reads.items():
            reads[stanza] = keys
            for key in keys:
                added[key].add(stanza)
        readers = dict(self._from.readers)
        for key in {**dropped, **added}:
            readers[key] = (readers.get(key, frozenset()) - dropped[key]) | added[key]
        return Index({k: c for k, c in claims.items() if c}, readers, reads, parsed)

    # --- errors

    def rank(self, stanza: Stanza) -> tuple[int, bool, str, int]:
        """Return a sort key: the order of the projects in the tenant (config-projects first), then the default branch
        before others."""
        return (*self._place_rank((stanza.source.project, stanza.source.branch)), stanza.position)

    def _place_rank(self, place: Place) -> tuple[int, bool, str]:
        project, branch = place
        return self._tenant.order[project], branch != next(iter(self.layout.branches.get(project, ())), ""), branch

    def _errors(self) -> Iterator[ConfigError]:
        yield from self._tenant.idle
        for project in self._tenant.projects:
            yield from _shadows(self._tenant, project)
        for place in sorted(self._findings.files, key=self._place_rank):
            yield from self._findings.files[place]
        for found in (self._findings.refused, self._findings.references):
            for stanza in sorted(found, key=self.rank):
                yield from found[stanza]
        yield from self._default_parent()

    def _default_parent(self) -> Iterator[ConfigError]:
        """Yield one error if the default parent is not defined. Without it, jobs that name no parent are left out of
        every graph."""
        name, jobs = self._tenant.default_parent, self.layout.jobs
        if name in jobs or name == "noop":
            return
        orphans = (s for variants in jobs.values() for s in variants if "parent" not in s.body)
        first = min(orphans, key=self.rank, default=None)
        if first is not None:
            text = f"the default parent {name!r} is not defined: jobs that name no parent are left out of every graph"
            yield first.source.error(MEANING, text, first.line, "warning")


def _copied(base: D, branches: Branches, gone: Collection[Place]) -> D:
    carried = dict(base.branches)
    for project in {*branches, *(project for project, _ in gone)}:
        known, come = carried.get(project, ()), tuple(branches.get(project, ()))
        first = next(iter(known or come), "")
        left = {*known, *come} - {branch for p, branch in gone if p == project}
        carried[project] = tuple(sorted(left, key=lambda branch: (branch != first, branch)))
    return replace(
        base,
        branches=carried,
        pipelines=dict(base.pipelines),
        pipeline_stanzas=dict(base.pipeline_stanzas),
        jobs=dict(base.jobs),
        projects=dict(base.projects),
        templates=dict(base.templates),
        singles={kind: dict(table) for kind, table in base.singles.items()},
        findings=base.findings.copy(),
        index=None,
        # Do not copy the cache: its answers are those of the base.
        remembered={},
    )


def _shadows(tenant: Tenant, project: TenantProject) -> Iterator[ConfigError]:
    for name in project.shadow:
        if tenant.find(name) is None:
            why = tenant.why_not(name)
            text = f"{why.problem}; the tenant file lists it under `shadow` of {project.name}"
            yield ConfigError("Project Not Found", with_hint(text, why.hint), project.project, hint=why.hint)


def _enter(layout: LayoutDefinitions, key: Key, stanzas: list[Stanza], pipeline: Pipeline | None) -> None:
    """Set the admitted stanzas of a key."""
    kind, name = key
    if key == PATTERNS:
        layout.patterns = stanzas
    elif kind in layout.singles:
        _set(layout.singles[kind], name, stanzas[0] if stanzas else None)
    else:
        tables = {"job": layout.jobs, "project-template": layout.templates, "project": layout.projects}
        _set(tables.get(kind, layout.pipeline_stanzas), name, stanzas or None)
    if kind == "pipeline":
        _set(layout.pipelines, name, pipeline)


def _set(table: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
