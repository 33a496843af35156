"""Freeze: compute the job graph of an item, each job with all its matching variants applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.config.budgets import sized
from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.source import MEANING
from headgate.config.freeze import sections
from headgate.config.freeze.collect import collect
from headgate.config.freeze.mix import Mix, VariantRefused
from headgate.config.freeze.resources import UnknownSecret
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided, any_matches

UNDECIDED = "Pattern Undecided"
"""Name of the error about a pattern that takes too many steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class FreezeQuestion:
    """Hold the arguments of `freeze`."""

    pipeline: str
    project: str
    """Canonical name."""
    target: sections.FreezeTarget
    files: tuple[str, ...] | None = None
    """Files that the change modifies; if None or empty, every file matcher matches."""
    ahead: LayoutDefinitions | None = None
    """Definitions without the change, if the change alters the configuration."""
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters of a manual enqueue."""


def freeze(layout: LayoutDefinitions, question: FreezeQuestion) -> FrozenGraph:
    """Return the job graph of the item that `question` describes. If there is any error, the graph holds the errors and
    no jobs."""
    try:
        return _frozen(layout, _Freezer(layout, question), question)
    except Undecided as undecided:
        return FrozenGraph(errors=(ConfigError(UNDECIDED, str(undecided), question.project, question.target.branch),))


def reuses(layout: LayoutDefinitions, pipeline: str, project: str, branch: str) -> bool:
    """Return whether any job of such a change may have `reuse` set, without freezing the jobs."""
    own = layout.pipelines.get(pipeline)
    if own is not None and own.reuse:
        return True
    # Any job counts, because parents pass `reuse` on, and following them would amount to freezing.
    if any(stanza.body.get("reuse") for stanzas in layout.jobs.values() for stanza in stanzas):
        return True
    entries = sections.attached(sections.of(layout, pipeline, project, sections.FreezeTarget(branch))).values()
    return any(entry.attributes.get("reuse") for of in entries for entry in of)


def _frozen(layout: LayoutDefinitions, freezer: _Freezer, question: FreezeQuestion) -> FrozenGraph:
    found, errors = freezer.sections, list(sections.missing_templates(layout, question.project))
    # A missing template may hide the sections, so its error is reported even without any.
    if not found and not errors:
        return FrozenGraph(in_pipeline=False)
    graph, room = Graph(), GraphRoom(layout)
    for name in freezer.entries:
        try:
            candidate = freezer.candidate(name)
        except VariantRefused as refused:
            errors.append(refused.stanza.error(refused.name, refused.message, refused.key))
            continue
        except Undecided as undecided:
            entry = freezer.entries[name][0]
            text = f"job {name}: {undecided}"
            return FrozenGraph(errors=(entry.stanza.source.error(UNDECIDED, text, entry.line),))
        if candidate is None:
            continue
        graph.candidates[name] = candidate
        # Check after each job, so that a graph that is too large is never completely in memory.
        if over := room.over(candidate):
            return FrozenGraph(errors=(candidate.error(f"pipeline {question.pipeline}: {over}"),))
    if not errors:
        # Skip this after errors: it would only report consequences of the missing jobs.
        errors += graph.resolve(lambda name: bool(layout.variants(name)))
        errors += islice(graph.excess(room, question.pipeline), 1)
    if errors:
        return FrozenGraph(errors=tuple(errors))
    return FrozenGraph(
        jobs=graph.jobs,
        fail_fast=sections.fail_fast(found),
        debug=any(s.body.get("debug") for s in found),
        parameters=sections.parameters(found),
        reporters=graph.reporters,
    )


class _Freezer:
    """Freeze the jobs for one question with one layout."""

    def __init__(self, layout: LayoutDefinitions, question: FreezeQuestion) -> None:
        self._layout, self._question = layout, question
        self.sections = sections.of(layout, question.pipeline, question.project, question.target)
        self.entries = sections.attached(self.sections)
        given = sections.accepted(sections.parameters(self.sections), question.given)
        self._variables = sections.deep_merge(sections.project_vars(layout, question.project, question.target), given)
        self._ahead: _Freezer | None = None

    def candidate(self, name: str) -> JobCandidate | None:
        """Return the job as a candidate for the graph, or None if it is not in the graph.  Raise VariantRefused,
        Undecided."""
        fitting = self._fitting(name)
        mix = self._mix(name, fitting)
        if mix is None:
            return None
        job = mix.frozen(noop=name == "noop")
        pipeline = self._layout.pipelines.get(self._question.pipeline)
        if pipeline is not None and pipeline.reuse and mix.value("reuse", True):
            job = replace(job, reuse=True)
        first = fitting[0]

        def error(text: str) -> ConfigError:
            return first.stanza.source.error(MEANING, text, first.line)

        return JobCandidate(job, self._is_optional(mix, job), self._forbidden(mix, job, fitting), error)

    def _fitting(self, name: str) -> list[sections.SectionEntry]:
        entries = self.entries.get(name, ())
        return [e for e in entries if self._question.target.matches(e.attributes.get("branches"))]

    def _mix(self, name: str, fitting: list[sections.SectionEntry]) -> Mix | None:
        """Return the job with all its variants applied, or None if none of them apply.  Raise VariantRefused."""
        variants = collect(self._layout, name, fitting, self._question.target) if fitting else []
        steps = list(mixed(self._layout, name, variants, self._variables, fitting))
        return steps[-1][0] if steps else None

    def _forbidden(self, mix: Mix, job: FrozenJob, fitting: list[sections.SectionEntry]) -> ConfigError | None:
        """Return the first reason why the job may not run for this item, or None if it may."""
        layout, question, name = self._layout, self._question, job.name
        entry = fitting[0]
        pipeline = layout.pipelines.get(question.pipeline)
        # As in Zuul, only the first of these reasons is reported.
        if mix.abstract:
            text = f"job {name} is abstract: jobs may inherit from it, but it cannot run"
        # A config-project may attach any job to any project.
        elif mix.allowed is not None and not mix.config_attached and question.project not in mix.allowed:
            text = f"job {name} may not run for {question.project}: its allowed-projects do not include it"
        # Before review, a proposed change could make the job print its secrets.
        elif mix.post_review and pipeline is not None and not pipeline.post_review:
            text = f"job {name} is post-review, but pipeline {question.pipeline} is not"
        elif not mix.has_run and not job.noop:
            text = f"job {name} has nothing to run: none of its variants sets `run`"
        elif job.image_build_name and not self._has_image(job.image_build_name, name, fitting):
            text = f"job {name} references an unknown image {job.image_build_name!r}"
        elif job.type == "reporter" and (bad := self._not_for_reporters(fitting)):
            entry, text = bad, f"{bad.stanza.source.project} may not attach {name}, a job of type reporter"
            return entry.stanza.source.error("Reporter Job Not Permitted", text, entry.line)
        else:
            return None
        return entry.stanza.source.error(MEANING, text, entry.line)

    def _has_image(self, name: str, job: str, fitting: list[sections.SectionEntry]) -> bool:
        """Return whether a project that attaches the job defines the image, and only that project and config-projects
        declare that the job builds it. This matters because machines of other projects may use the image."""
        found = self._layout.singles["image"].get(name)
        if found is None or not any(found.source.project == e.stanza.source.project for e in fitting):
            return False
        variants = collect(self._layout, job, fitting, self._question.target)
        claims = [e.stanza for e in fitting if "image-build-name" in e.attributes]
        claims += [one for one in variants if "image-build-name" in one.body]
        own = found.source.project
        return all(s.source.project == own or self._layout.source(s.source.project).trusted for s in claims)

    def _not_for_reporters(self, fitting: list[sections.SectionEntry]) -> sections.SectionEntry | None:
        may = self._layout.source
        return next((e for e in fitting if not may(e.stanza.source.project).allow_reporter_jobs), None)

    # --- files

    def _is_optional(self, mix: Mix, job: FrozenJob) -> bool:
        """Return whether neither the files of the change nor its changes to the configuration select the job."""
        files = self._question.files
        if not files or _files_match(mix, files):
            return False
        return not (mix.value("match-on-config-updates", True) and self._is_updated(job, files))

    def _is_updated(self, job: FrozenJob, files: tuple[str, ...]) -> bool:
        project, branch = self._question.project, self._question.target.branch
        books = (*job.pre_run, *job.run, *job.post_run)
        # The change alters only files of its own branch.
        own = {b.path for b in books if b.project == project and b.branch == branch}
        for found in job.include_vars:
            if found.zuul_project or (found.project == project and found.branch in ("", branch)):
                own.add(found.name)
        return not own.isdisjoint(files) or self._differs_ahead(job)

    def _differs_ahead(self, job: FrozenJob) -> bool:
        """Return whether the job differs, or is missing, without the change; False if the change alters no
        configuration."""
        if self._question.ahead is None:
            return False
        # Prepare this only when a job needs it: for most, their own file matchers decide.
        if self._ahead is None:
            self._ahead = _Freezer(self._question.ahead, dataclasses.replace(self._question, ahead=None))
        try:
            mix = self._ahead._mix(job.name, self._ahead._fitting(job.name))
            before = mix.frozen(noop=job.noop) if mix is not None else None
        # Without the change, the job cannot be frozen, so the change has altered it.
        except VariantRefused:
            return True
        return before is None or _essence(before) != _essence(job)


def mixed(
    layout: LayoutDefinitions,
    name: str,
    variants: list[Stanza],
    variables: dict[str, Any],
    attached: list[sections.SectionEntry],
) -> Iterator[tuple[Mix, Stanza | sections.SectionEntry | None]]:
    """Yield the job after each step, with the step: a variant, None for the `variables` of its project, or an entry
    that attaches it. Raise VariantRefused."""
    if not variants:
        return
    mix = Mix(name, layout)
    current = variants[0]
    try:
        for current in variants:
            mix.apply(current, current.body, of=current.name)
            yield mix, current
        mix.beneath(variables)
        yield mix, None
        for entry in attached:
            current = entry.stanza
            mix.apply(current, entry.attributes, of=name, attaching=True)
            yield mix, entry
    except UnknownSecret as unknown:
        raise VariantRefused(f"job {name}: {unknown}", current, "secrets") from unknown


def _essence(job: FrozenJob) -> FrozenJob:
    """Return the job without attributes that do not affect its builds."""
    return replace(job, inheritance=(), description="")


def _files_match(mix: Mix, files: tuple[str, ...]) -> bool:
    wanted, irrelevant = mix.listed("files"), mix.listed("irrelevant-files")
    if wanted and not any(any_matches(wanted, file) for file in files):
        return False
    return not irrelevant or not all(any_matches(irrelevant, file) for file in files)


@dataclasses.dataclass(slots=True)
class JobCandidate:
    """Represent a frozen job that may be in the graph."""

    job: FrozenJob
    optional: bool
    """Whether it runs only if a job that runs depends on it, because its own file matchers do not match."""
    forbidden: ConfigError | None
    """Error because of which it must not run; reported only if it would run."""
    error: Callable[[str], ConfigError]
    """Function that returns an error at the place where the job is attached."""


class GraphRoom:
    """Track how much of an item's limits its jobs use."""

    def __init__(self, layout: LayoutDefinitions) -> None:
        self._budgets, self._defined = layout.budgets, layout.semaphores.keys()
        self._jobs = self._edges = self._length_bytes = self._initializers = self._regular = 0
        self._running, self._undefined = 0, set[str]()
        """Number of jobs that run, and semaphores of theirs whose names anybody can invent."""

    def over(self, candidate: JobCandidate) -> str:
        """Add a candidate, and return which limit is then exceeded, or an empty string. Jobs that may still be left out
        do not count toward the number of jobs; see `over_in_all`."""
        most, job = self._budgets, candidate.job
        self._jobs += not candidate.optional
        self._edges += len(job.dependencies) + len(job.provides) + len(job.requires)
        self._initializers += job.type == "initializer"
        self._regular += job.type == "regular"
        self._length_bytes += len(msgspec.json.encode(job))
        if self._jobs > most.jobs_max:
            return self._too_many_jobs
        # Every regular job also depends on every initializer.
        if self._edges + self._initializers * self._regular > most.edges_max:
            return f"its jobs have more than {most.edges_max} dependencies ([scheduler] item_dependencies_max)"
        if self._length_bytes > most.item_max_bytes:
            return f"its jobs are larger than {sized(most.item_max_bytes)} in total ([scheduler] item_max_bytes)"
        return ""

    def over_in_all(self, job: FrozenJob) -> str:
        """Add a job that runs, for whatever reason, and return which limit is then exceeded, or an empty string."""
        books, most = (*job.pre_run, *job.run, *job.post_run), self._budgets
        named = {one.name for one in job.semaphores}.union(*(book.semaphores for book in books))
        self._running += 1
        self._undefined |= named - self._defined
        if self._running > most.jobs_max:
            return self._too_many_jobs
        if len(self._undefined) > most.semaphores_max:
            many = f"more than {most.semaphores_max} semaphores that no landed configuration defines"
            return f"its jobs name {many} ([scheduler] item_semaphores_max)"
        return ""

    @property
    def _too_many_jobs(self) -> str:
        return f"there are more than {self._budgets.jobs_max} jobs for this change ([scheduler] item_jobs_max)"


@dataclasses.dataclass(slots=True)
class Graph:
    """Collect the jobs of an item, and drop those that do not run."""

    candidates: dict[str, JobCandidate] = dataclasses.field(default_factory=dict)

    def resolve(self, defined: Callable[[str], bool]) -> Iterator[ConfigError]:
        """Keep only the jobs that run, and yield the errors of the graph. `defined` returns whether any variant of a
        job exists."""
        self._drop_unneeded()
        wrong = list(self._dependencies(defined))
        yield from wrong
        if not wrong:
            yield from self._circle()
        yield from (c.forbidden for c in self.candidates.values() if c.forbidden is not None)

    def excess(self, room: GraphRoom, pipeline: str) -> Iterator[ConfigError]:
        """Yield an error at each job that runs although it exceeds a limit."""
        for candidate in self.candidates.values():
            if over := room.over_in_all(candidate.job):
                yield candidate.error(f"pipeline {pipeline}: {over}")

    @property
    def jobs(self) -> tuple[FrozenJob, ...]:
        return tuple(c.job for c in self.candidates.values() if c.job.type != "reporter")

    @property
    def reporters(self) -> tuple[FrozenJob, ...]:
        return tuple(c.job for c in self.candidates.values() if c.job.type == "reporter")

    def _drop_unneeded(self) -> None:
        wanted = [name for name, c in self.candidates.items() if not c.optional]
        needed = set(wanted)
        while wanted:
            for d in self.candidates[wanted.pop()].job.dependencies:
                # A soft dependency only waits for a job that runs anyway; it never makes one run.
                if not d.soft and d.name in self.candidates and d.name not in needed:
                    needed.add(d.name)
                    wanted.append(d.name)
        self.candidates = {name: c for name, c in self.candidates.items() if name in needed}

    def _dependencies(self, defined: Callable[[str], bool]) -> Iterator[ConfigError]:
        for name, candidate in self.candidates.items():
            for d in candidate.job.dependencies:
                if d.name in self.candidates:
                    continue
                if not d.soft:
                    yield candidate.error(f"job {name} depends on {d.name}, which does not run for this change")
                elif not defined(d.name):
                    yield candidate.error(f"job {name} depends on {d.name}, which is not defined")

    def _circle(self) -> Iterator[ConfigError]:
        # The graph adds the implied dependencies on initializers, which may close a circle.
        graph = FrozenGraph(tuple(c.job for c in self.candidates.values()))
        needs = {job.name: [d.name for d in graph.needs(job) if d.name in self.candidates] for job in graph.jobs}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            turned = _from_first(circle, list(self.candidates))
            text = f"jobs depend on each other in a circle: {' -> '.join(turned)}"
            yield self.candidates[turned[0]].error(text)


def _from_first(circle: list[str], order: list[str]) -> list[str]:
    """Return the circle, rotated so that it begins with the job that comes first in the graph."""
    ring = circle[:-1]
    start = ring.index(min(ring, key=order.index))
    turned = ring[start:] + ring[:start]
    return [*turned, turned[0]]
