"""Tell which jobs are not run again in pipelines with `rerun-only-failed`: when a patchset that failed here is tested
once more, those that passed then and for which everything that they work on is the same.

A proposer has no influence on this: only the gate writes the history, and what a job works on follows from its frozen
definition and from the commits that were found at the servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from headgate.base.ids import derived
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.model import FINAL_GOOD, Build, BuildSet, Item
from headgate.gate.world import World


def work_of(item: Item, buildset: BuildSet, job: FrozenJob, world: World) -> str:
    """Return a digest that is equal for the same job on the same code; empty if nothing can be known to be equal.

    It covers the heads of all projects that the job uses, and the trees of what is merged onto them for a change,
    because the commits of those merges differ each time.
    """
    state = buildset.state
    if not world.pipeline.rerun_only_failed or not item.change.is_change or item.others or state is None:
        return ""
    used = {*_projects(job), item.change.project, *(one.project for one in state.chain)}
    # Where a head is unknown, nothing can be known to be equal.
    if not state.trees or not used <= state.heads.keys():
        return ""
    heads = {project: state.heads[project] for project in used}
    # These differ between two tests of the same patchset, and jobs cannot depend on them.
    chain = [msgspec.structs.replace(one, item="", at_s=0) for one in state.chain]
    parts = (world.tenant, world.pipeline.name, item.change.key, item.change.commit, chain, state.trees, heads, job)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _projects(job: FrozenJob) -> Iterator[str]:
    """Yield the projects from which code of the job, or a file that it is given, comes."""
    yield from job.roles
    yield from (one.project for one in job.required_projects)
    yield from (one.project for one in job.include_vars if one.project)
    for book in (*job.pre_run, *job.run, *job.post_run):
        yield book.project
        yield from (role.project for role in book.roles)


def reused(item: Item, buildset: BuildSet, world: World) -> Mapping[str, Build] | None:
    """Return the builds that stand for jobs that are not run again (job id -> build), before any job has begun; None
    while the last buildset of the patchset is being looked up, for which jobs wait."""
    past, state = world.beside.past, buildset.state
    if (
        past is None
        or buildset.builds
        or buildset.again
        or buildset.graph is None
        or state is None
        or not _is_asked(item, world)
    ):
        return {}
    works = {job.id: work_of(item, buildset, job, world) for job in buildset.jobs if _is_fit(job)}
    if not any(works.values()):
        return {}
    before = past(item.change)
    if before is None:
        # While the history cannot be searched, everything is run: that is dearer, but never wrong.
        return {} if world.beside.away else None
    # Only failed patchsets save jobs. Whoever has a good one tested again gets a full run.
    if all(build.result in FINAL_GOOD for build in before.builds.values()):
        return {}
    same = {job.id for job in buildset.jobs if _is_same(before.builds.get(job.name), works.get(job.id, ""))}
    same |= {job.id for job in buildset.jobs if job.noop}
    reused_jobs = [
        job for part in _parts(buildset.graph) if {one.id for one in part} <= same for job in part if not job.noop
    ]
    return {job.id: _stands_for(before.builds[job.name], job, buildset, world) for job in reused_jobs}


def _is_asked(item: Item, world: World) -> bool:
    alone = item.change.is_change and not item.others and not item.landed
    return world.pipeline.rerun_only_failed and alone and not item.epilogue


def _is_fit(job: FrozenJob) -> bool:
    """Return whether a job's digest covers all its inputs: what a job requires of changes ahead is not in it."""
    return job.type == "regular" and not job.requires and not job.noop


def _is_same(before: Build | None, work: str) -> bool:
    return before is not None and before.result == "SUCCESS" and work != "" and before.work == work


def _parts(graph: FrozenGraph) -> Iterator[list[FrozenJob]]:
    """Yield groups of jobs that depend on each other, directly or through others. A group is reused as a whole or not
    at all: data that one of them returned to the others is known only while they run."""
    beside: dict[str, set[str]] = {job.id: set() for job in graph.jobs}
    for job in graph.jobs:
        for other in (one.name for one in graph.needs(job) if one.name in beside):
            beside[job.id].add(other)
            beside[other].add(job.id)
    left = dict(graph.by_id)
    while left:
        frontier, part = [next(iter(left))], list[FrozenJob]()
        while frontier:
            if (found := left.pop(frontier.pop(), None)) is not None:
                part.append(found)
                frontier += beside[found.id]
        yield part


def _stands_for(before: Build, job: FrozenJob, buildset: BuildSet, world: World) -> Build:
    page = f"{world.root_url}/t/{world.tenant}/build/{before.id}" if world.root_url else ""
    return Build(
        id=derived(buildset.id, job.id, "reused"),
        job=job.id,
        result="SUCCESS",
        voting=job.voting,
        error=f"not run again: build {before.id} succeeded on the same code",
        log_url=before.log_url or page,
        data=before.data,
        work=before.work,
    )
