"""The job graph of one buildset: which jobs may start, which are skipped, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.config.model import FrozenJob
from headgate.gate.model import FINAL_GOOD, Build, BuildSet


def ready(buildset: BuildSet) -> list[FrozenJob]:
    """Jobs not yet begun whose dependencies all ended well, in configured order."""
    return [j for j in buildset.jobs if j.name not in buildset.builds and _may_start(j, buildset)]


def _may_start(job: FrozenJob, buildset: BuildSet) -> bool:
    names = {j.name for j in buildset.jobs}
    for dependency in job.dependencies:
        build = buildset.builds.get(dependency.name)
        if build is None:
            if not (dependency.soft and dependency.name not in names):
                return False
        elif not (build.result == "SUCCESS" or (dependency.soft and build.result == "SKIPPED")):
            return False
    return True


def dependents(jobs: Iterable[FrozenJob], name: str, *, hard_only: bool = False) -> set[str]:
    """Names of the jobs that depend on `name`, directly or through others."""
    jobs = tuple(jobs)
    found: set[str] = set()
    frontier = {name}
    while frontier:
        frontier = {
            job.name
            for job in jobs
            for d in job.dependencies
            if d.name in frontier and not (hard_only and d.soft) and job.name not in found
        }
        found |= frontier
    return found


def skipped(buildset: BuildSet) -> dict[str, str]:
    """Job name -> reason, of jobs that will never run: a dependency failed, or left them out."""
    reasons: dict[str, str] = {}
    for job in buildset.jobs:
        build = buildset.builds.get(job.name)
        if build is None or build.result is None:
            continue
        if build.result not in FINAL_GOOD:
            for name in dependents(buildset.jobs, job.name):
                reasons.setdefault(name, f"Skipped due to failed job {job.name}")
        elif build.result == "SUCCESS":
            for name in _left_out(buildset.jobs, job, build):
                reasons.setdefault(name, f"Skipped by job {job.name}")
        else:
            for name in dependents(buildset.jobs, job.name, hard_only=True):
                reasons.setdefault(name, build.error or f"Skipped due to skipped job {job.name}")
    return {name: why for name, why in reasons.items() if name not in buildset.builds}


def _left_out(jobs: tuple[FrozenJob, ...], job: FrozenJob, build: Build) -> set[str]:
    """Jobs that `zuul.child_jobs`, returned by `job`, leaves out; it names the direct dependents to run."""
    zuul = build.data.get("zuul")
    children = zuul.get("child_jobs") if isinstance(zuul, Mapping) else None
    if not isinstance(children, list | tuple):
        return set()
    if not children:
        return dependents(jobs, job.name, hard_only=True)
    direct = {j.name for j in jobs if any(d.name == job.name for d in j.dependencies)}
    out: set[str] = set()
    for name in direct - set(children):
        out |= {name} | dependents(jobs, name, hard_only=True)
    return out


def waiting_for(job: FrozenJob, buildset: BuildSet) -> str:
    """What an unstarted job waits for, for people."""
    waits = [d.name for d in job.dependencies if (b := buildset.builds.get(d.name)) is None or b.result is None]
    return f"dependencies: {', '.join(waits)}" if waits else ""


def parent_data(job: FrozenJob, buildset: BuildSet) -> dict[str, object]:
    """Data returned by the jobs `job` depends on, through others too; in graph order, later wins."""
    wanted = {d.name for d in job.dependencies}
    data: dict[str, object] = {}
    by_name = {j.name: j for j in buildset.jobs}
    frontier = list(wanted)
    while frontier:
        parent = by_name.get(frontier.pop())
        for d in parent.dependencies if parent else ():
            if d.name not in wanted:
                wanted.add(d.name)
                frontier.append(d.name)
    for other in buildset.jobs:
        build = buildset.builds.get(other.name)
        if other.name in wanted and build is not None:
            data |= {k: v for k, v in build.data.items() if k not in ("zuul", "nodepool", "unsafe_vars")}
    return data
