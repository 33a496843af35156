"""Builds that stand for others: a job with `reuse` is not run if it has succeeded on the same inputs.

The gate alone decides which inputs are the same (`gate.inputs`), and only the history, which nobody but the gate
writes, tells what succeeded.  A build counts once its executor has confirmed that it was given no more than the job
names.
"""

from __future__ import annotations

import msgspec

from headgate.config.model import FrozenJob
from headgate.gate.inputs import as_landed, given, is_fit, stand_in
from headgate.gate.model import Build, BuildSet, Item
from headgate.gate.waiter import Sought
from headgate.gate.world import World

DATA_MAX_BYTES = 16_000
"""Size limit of the returned data that the history keeps for dependent jobs; a build with more is not reused."""
NOTHING = Build("", "")
"""Answer for a build for which no other one stands."""


def wanted(item: Item, world: World) -> dict[str, str]:
    """Return the projects whose trees have to be known -> connection, according to the landed configuration; jobs of a
    proposed configuration are run."""
    change, layout, pipeline = item.change, world.layouts.landed, world.pipeline.name
    # Most pipelines have no job with `reuse`; asking first saves freezing the graph.
    if item.others or not world.layouts.reuses(pipeline, change.project, change.branch):
        return {}
    graph = layout.freeze(pipeline, change.project, change.branch, change.ref, change.files)
    found = dict[str, str]()
    for job in graph.jobs:
        if is_fit(item, job):
            found |= given(item, job) | as_landed(item, job)
    return found


def stands_for(buildset: BuildSet, job: FrozenJob, build: Build, world: World) -> Build | None:
    """Return the build that stands for `build`, which is not requested yet; NOTHING if it is to be run, None while that
    is being looked up and the job waits for it."""
    if not build.inputs or world.beside.passed is None:
        return NOTHING
    before = world.beside.passed(Sought(build.inputs, _keys(job)))
    if before is None or not before.id:
        return before
    page = f"{world.root_url}/t/{world.tenant}/build/{before.id}" if world.root_url else ""
    return msgspec.structs.replace(
        build,
        id=stand_in(buildset, job.id),
        result="SUCCESS",
        error=f"reused build {before.id}",
        log_url=before.log_url or page,
        data=before.data,
    )


def lasting(build: Build) -> bool:
    """Return whether the build may stand for others: it has succeeded, and everything that it returned can be returned
    again."""
    if build.result != "SUCCESS" or not build.inputs or not build.narrow or build.paused or build.secret is not None:
        return False
    return len(msgspec.json.encode(build.data)) <= DATA_MAX_BYTES


def _keys(job: FrozenJob) -> tuple[tuple[str, str], ...]:
    books = (*job.pre_run, *job.run, *job.post_run)
    return tuple(sorted({(one.connection, one.project) for book in books for one in book.secrets if one.data}))
