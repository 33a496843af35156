"""Decide which jobs of a graph may start, which are skipped, and why; join the graphs of several changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.state.change import Change
from headgate.gate.state.model import FINAL_GOOD, Build, BuildSet, Item
from headgate.gate.state.returns import Sealed

T = TypeVar("T")
NOTHING_PROVIDED = BuildSet("", graph=FrozenGraph())
HANDED_MAX_BYTES = 256_000
"""Size limit of the data and artifacts that a job receives from other jobs, as its request must fit into one commit."""
Past = Callable[[Change], BuildSet | None]
"""Type of `Beside.past`."""


def ready(buildset: BuildSet) -> list[FrozenJob]:
    """Return the jobs that have not started and whose dependencies have all succeeded or paused, in configured
    order."""
    names = {j.id for j in buildset.jobs}
    return [j for j in buildset.jobs if j.id not in buildset.builds and _may_start(j, buildset, names)]


def _may_start(job: FrozenJob, buildset: BuildSet, names: Collection[str]) -> bool:
    for dependency in _needs(buildset, job):
        build = buildset.builds.get(dependency.name)
        if build is None:
            # A soft dependency holds a job back only if it runs at all.
            if not (dependency.soft and dependency.name not in names):
                return False
        elif not (_good(build) or (dependency.soft and build.result == "SKIPPED")):
            return False
    return True


def _needs(buildset: BuildSet, job: FrozenJob) -> Iterable[JobDependency]:
    return buildset.graph.needs(job) if buildset.graph is not None else job.dependencies


def holding(ahead: Iterable[Item]) -> bool:
    """Return whether the changes behind must wait for a job of a change ahead (`hold-following-changes`)."""
    buildsets = [item.buildset for item in ahead if item.buildset is not None]
    waits = ((job, b.builds.get(job.id)) for b in buildsets for job in b.jobs if job.hold_following_changes)
    return any(build is None or build.result != "SUCCESS" for _, build in waits)


def _good(build: Build) -> bool:
    return build.result == "SUCCESS" or (build.result is None and build.paused)


def dependents(buildset: BuildSet, name: str, *, hard_only: bool = False) -> set[str]:
    """Return the ids of the jobs that depend on the job `name`, directly or indirectly."""
    needed_by = buildset.graph.needed_by if buildset.graph is not None else {}
    found: set[str] = set()
    frontier = [name]
    while frontier:
        for other, soft in needed_by.get(frontier.pop(), ()):
            if other not in found and not (hard_only and soft):
                found.add(other)
                frontier.append(other)
    return found


def parents(buildset: BuildSet, job: FrozenJob) -> set[str]:
    """Return the ids of the jobs that `job` depends on, directly or indirectly."""
    graph = buildset.graph
    # Every job that starts or waits asks several times, so the graph keeps the answer.
    beneath = graph.beneath.get(job.id, 0) if graph is not None else 0
    return {other.id for place, other in enumerate(buildset.jobs) if beneath >> place & 1} if beneath else set()


def done_for(buildset: BuildSet) -> list[Build]:
    """Return the paused builds that are no longer needed, as every job that depends on them has ended."""
    return [b for b in buildset.paused if all(_ended(n, buildset) for n in dependents(buildset, b.job))]


def _ended(job: str, buildset: BuildSet) -> bool:
    build = buildset.builds.get(job)
    return build is not None and build.result is not None


def skipped(buildset: BuildSet) -> dict[str, str]:
    """Map each job that will never run to the reason: a dependency failed or was skipped, or a job left it out."""
    reasons = _Reasons(buildset.graph.needed_by if buildset.graph is not None else {})
    for job in buildset.jobs:
        build = buildset.builds.get(job.id)
        if build is None or not (build.result or build.paused):
            continue
        if _good(build):
            _leave_out(reasons, buildset, job, build)
        # After a failure, soft dependents do not run either: a soft dependency may only be skipped.
        elif build.result not in FINAL_GOOD:
            reasons.give(job.id, f"Skipped due to failed job {job.name}")
        else:
            reasons.give(job.id, build.error or f"Skipped due to skipped job {job.name}", hard_only=True)
    return {name: why for name, why in reasons.found.items() if name not in buildset.builds}


class _Reasons:
    """Collect the first reason for which each job is skipped.

    Every dependency is followed at most twice, whatever has ended: a proposer chooses how many jobs and dependencies
    there are, and every turn looks at them.
    """

    def __init__(self, needed_by: Mapping[str, Sequence[tuple[str, bool]]]) -> None:
        self._needed_by = needed_by
        self.found: dict[str, str] = {}
        self._hard, self._all = set[str](), set[str]()
        """Jobs whose hard dependents, or all of whose dependents, have a reason."""

    def give(self, name: str, why: str, *, hard_only: bool = False) -> None:
        """Give the reason to the jobs that depend on the job `name`, directly or indirectly, and have none."""
        done, frontier = self._hard if hard_only else self._all, [name]
        while frontier:
            name = frontier.pop()
            if name in done:
                continue
            self._hard.add(name)
            done.add(name)
            for other, soft in self._needed_by.get(name, ()):
                if not (hard_only and soft):
                    self.found.setdefault(other, why)
                    frontier.append(other)


def _leave_out(reasons: _Reasons, buildset: BuildSet, job: FrozenJob, build: Build) -> None:
    """Give a reason to the jobs that `zuul.child_jobs` of `job` leaves out; it lists the direct dependents to run."""
    children, graph, why = build.returned.child_jobs, buildset.graph, f"Skipped by job {job.name}"
    if children is None or graph is None:
        return
    # An empty list skips all dependents, except those that can do without the job.
    if not children:
        reasons.give(job.id, why, hard_only=True)
        return
    wanted = set(children)  # a job may return tens of thousands of names
    # A job that depends on a skipped job cannot run, even if the list contains it.
    for id, _ in graph.needed_by.get(job.id, ()):
        if graph.by_id[id].name not in wanted:
            reasons.found.setdefault(id, why)
            reasons.give(id, why, hard_only=True)


def waiting_for(job: FrozenJob, buildset: BuildSet, *, held: bool = False) -> str:
    """Describe what a job that was not requested yet waits for. `held`: a job of a change ahead that does not fail
    holds back its change (`holding`)."""
    needs = ((d.name, buildset.builds.get(d.name)) for d in _needs(buildset, job))
    waits = [name for name, build in needs if not (build and (build.result or build.paused))]
    if waits:
        return f"dependencies: {', '.join(waits)}"
    if held:
        return "a job of a change ahead (hold-following-changes)"
    if semaphores := [name for name in job.semaphores_first if name in buildset.waits]:
        return f"semaphores: {', '.join(semaphores)}"
    return f"requirements: {', '.join(job.requires)}" if job.requires else ""


def parent_data(job: FrozenJob, buildset: BuildSet) -> dict[str, object]:
    """Merge the data of the jobs that `job` depends on, directly or indirectly, in graph order; later data wins. Beyond
    HANDED_MAX_BYTES, with which the job fails, the rest is missing."""
    wanted, data, left = parents(buildset, job), dict[str, object](), HANDED_MAX_BYTES
    # From the end: what is added stays, so that its size counts.
    for other in reversed(buildset.jobs):
        build = buildset.builds.get(other.id)
        if other.id not in wanted or build is None or not build.data:
            continue
        # Headgate itself sets these variables: a job must not set them for another job.
        more = {k: v for k, v in build.data.items() if k not in ("zuul", "nodepool", "unsafe_vars") and k not in data}
        data |= more
        left -= len(msgspec.json.encode(more)) - len("{}")
        if left < 0:
            break
    return data


def parent_secrets(job: FrozenJob, buildset: BuildSet) -> tuple[Sealed, ...]:
    """Return the secret data of the jobs that `job` depends on, directly or indirectly, in graph order, as far as
    `until_too_much`."""
    wanted = parents(buildset, job)
    builds = (buildset.builds.get(other.id) for other in buildset.jobs if other.id in wanted)
    return tuple(until_too_much(build.secret for build in builds if build is not None and build.secret is not None))


def until_too_much(values: Iterable[T]) -> Iterator[T]:
    """Yield values until they exceed HANDED_MAX_BYTES: the job that would receive them fails then, and how many more
    there are is up to a proposer."""
    left = HANDED_MAX_BYTES
    for value in values:
        yield value
        left -= len(msgspec.json.encode(value))
        if left < 0:
            return


def graph_of(graphs: Sequence[FrozenGraph], changes: Sequence[Change], *, everywhere: bool) -> FrozenGraph:
    """Join the job graphs of several changes. Equal jobs become one job for all their changes. With `everywhere`, the
    item belongs to the pipeline only if each of its changes does."""
    first, *others = graphs
    if not others:
        return first
    jobs = _joined([(*graph.jobs, *graph.reporters) for graph in graphs], changes)
    return replace(
        first,
        jobs=_in_order([job for job in jobs if job.type != "reporter"]),
        reporters=tuple(job for job in jobs if job.type == "reporter"),
        fail_fast=any(graph.fail_fast for graph in graphs),
        in_pipeline=(all if everywhere else any)(graph.in_pipeline for graph in graphs),
        debug=any(graph.debug for graph in graphs),
        errors=tuple(dict.fromkeys(error for graph in graphs for error in graph.errors)),
    )


def _joined(graphs: Sequence[Sequence[FrozenJob]], changes: Sequence[Change]) -> list[FrozenJob]:
    """Return each job once, with its changes and a unique key."""
    groups: list[tuple[FrozenJob, list[int]]] = []
    called: dict[str, list[tuple[FrozenJob, list[int]]]] = {}
    for number, jobs in enumerate(graphs):
        for job in jobs:
            alike = called.setdefault(job.name, [])
            same = (refs for known, refs in alike if _is_one(known, changes[refs[0]], job, changes[number]))
            if (refs := next(same, None)) is not None:
                refs.append(number)
            else:
                groups.append((job, [number]))
                alike.append(groups[-1])
    keys = _keys(groups)
    of = {(number, job.name): key for (job, refs), key in zip(groups, keys, strict=True) for number in refs}
    return [
        replace(job, key="" if key == job.name else key, refs=tuple(refs), dependencies=_dependencies(job, refs, of))
        for (job, refs), key in zip(groups, keys, strict=True)
    ]


def _is_one(job: FrozenJob, change: Change, other: FrozenJob, of: Change) -> bool:
    """Return whether two jobs of two changes can be one: they are equal except for where they are defined."""
    if job.name != other.name or job.deduplicate is False:
        return False
    if replace(job, inheritance=()) != replace(other, inheritance=()):
        return False
    # The default, `auto`, joins jobs only of one project, or with required projects.
    return job.deduplicate is True or bool(job.required_projects) or change.project == of.project


def _keys(groups: Sequence[tuple[FrozenJob, Sequence[int]]]) -> list[str]:
    """Return unique keys: the name for the first job of a name, and the name with a number for the others."""
    names, taken = {job.name for job, _ in groups}, set[str]()
    found: list[str] = []
    for job, refs in groups:
        key = job.name
        if key in taken:
            key = f"{job.name}:{refs[0] + 1}"
            # A job may itself have a name with a colon and a number.
            while key in taken | names:
                key += ":"
        taken.add(key)
        found.append(key)
    return found


def _dependencies(
    job: FrozenJob, refs: Sequence[int], keys: Mapping[tuple[int, str], str]
) -> tuple[JobDependency, ...]:
    """Return the dependencies of a job with names replaced by keys, for all of its changes."""
    named = ((keys.get((number, d.name), d.name), d.soft) for number in refs for d in job.dependencies)
    return tuple(JobDependency(key, soft=soft) for key, soft in dict(named).items())


def _in_order(jobs: Sequence[FrozenJob]) -> tuple[FrozenJob, ...]:
    """Return the jobs ordered so that each comes after those it depends on."""
    left, ordered = {job.id: job for job in jobs}, list[FrozenJob]()
    while left:
        # With a circular dependency no job is free: then take all, so that the loop ends.
        free = [job for job in left.values() if not any(d.name in left for d in job.dependencies)] or [*left.values()]
        for job in free:
            ordered.append(left.pop(job.id))
    return tuple(ordered)
