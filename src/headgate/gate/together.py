"""One job graph for changes that are tested as one: equal jobs of theirs run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.change import Change


def graph_of(graphs: Sequence[FrozenGraph], changes: Sequence[Change], *, everywhere: bool) -> FrozenGraph:
    """Join the jobs of all changes into one graph, each for its change or for all that have the job. With
    `everywhere`, the item takes part in the pipeline only if each of its changes does."""
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
    """Return each job once, with its changes and a key of its own."""
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
    """Return whether two jobs of two changes are one: equal in everything but where they are defined."""
    if job.name != other.name or job.deduplicate is False:
        return False
    if replace(job, inheritance=()) != replace(other, inheritance=()):
        return False
    return job.deduplicate is True or bool(job.required_projects) or change.project == of.project


def _keys(groups: Sequence[tuple[FrozenJob, Sequence[int]]]) -> list[str]:
    """Return the keys: the first job of a name has the name as its key, the others also name their change."""
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
    """Return the dependencies on the jobs of that name for all changes; jobs that are one depend on the same names."""
    named = ((keys.get((number, d.name), d.name), d.soft) for number in refs for d in job.dependencies)
    return tuple(JobDependency(key, soft=soft) for key, soft in dict(named).items())


def _in_order(jobs: Sequence[FrozenJob]) -> tuple[FrozenJob, ...]:
    """Order jobs after those they depend on."""
    left, ordered = {job.id: job for job in jobs}, list[FrozenJob]()
    while left:
        # A circle must not keep this from ending.
        free = [job for job in left.values() if not any(d.name in left for d in job.dependencies)] or [*left.values()]
        for job in free:
            ordered.append(left.pop(job.id))
    return tuple(ordered)
