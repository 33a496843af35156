"""Find earlier builds whose results can be reused: of the same patchset, or with the same inputs.

A proposer cannot influence this: the gate alone decides which inputs are the same (`BuildInputs.digest`), and the
successes come from the history, which only the gate writes. The inputs of a job follow from its frozen definition and
from commits that mergers read from the servers. A build counts only if its executor has confirmed that it had access
to nothing but the job's inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headgate.base.ids import derived
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.builds.graph import parent_data, parent_secrets, parents
from headgate.gate.state.model import FINAL_GOOD, Build, BuildSet, Item
from headgate.gate.state.works import RepoState
from headgate.gate.state.world import Sought, World

IDS = frozenset({"build", "buildset", "event_id", "attempts"})
"""Keys of the `zuul` variable that identify a run, but do not influence what runs."""
BranchTrees = dict[str, dict[str, str]]
"""Project -> branch -> tree."""
DATA_MAX_BYTES = 16_000
"""Size limit of the returned data that the history stores for dependent jobs; a build with more is not reused."""
NOTHING = Build("", "")
"""Answer for a build without an earlier one to reuse."""


def work_of(item: Item, buildset: BuildSet, job: FrozenJob, world: World) -> str:
    """Return a digest that is equal for the same job on the same code; empty if that cannot be determined.

    It covers the heads of all projects that the job uses, and the trees of the merges on top of them, as the commits of
    merges differ each time.
    """
    state = buildset.state
    if not world.pipeline.rerun_only_failed or not item.change.is_change or item.others or state is None:
        return ""
    used = {*_projects(job), item.change.project, *(one.project for one in state.chain)}
    # If a head is unknown, it cannot be determined whether the code is the same.
    if not state.trees or not used <= state.heads.keys():
        return ""
    # The state contains whole messages, so it is encoded once for all jobs.
    heads = {project: state.head_digests[project] for project in used}
    parts = (world.tenant, world.pipeline.name, item.change.key, item.change.commit, state.content, heads, job)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _projects(job: FrozenJob) -> Iterator[str]:
    """Yield the projects of the job's code and files."""
    yield from job.roles
    yield from (one.project for one in job.required_projects)
    yield from (one.project for one in job.include_vars if one.project)
    for book in (*job.pre_run, *job.run, *job.post_run):
        yield book.project
        yield from (role.project for role in book.roles)


def reused(item: Item, buildset: BuildSet, world: World) -> Mapping[str, Build] | None:
    """Map the jobs that need not run again to builds with reused results, before any job has begun; None: the latest
    buildset of the patchset is still being looked up, and jobs wait for it."""
    past, state = world.beside.past, buildset.state
    if (
        past is None
        or buildset.builds
        or buildset.again
        or buildset.graph is None
        or state is None
        or not _is_wanted(item, world)
    ):
        return {}
    works = {job.id: work_of(item, buildset, job, world) for job in buildset.jobs if _is_covered(job)}
    if not any(works.values()):
        return {}
    before = past(item.change)
    if before is None:
        # While the history is unavailable, all jobs run: that costs more, but is never wrong.
        return {} if world.beside.away else None
    # Results are reused only after a failure: a good patchset that is tested again gets a full run.
    if all(build.result in FINAL_GOOD for build in before.builds.values()):
        return {}
    same = {job.id for job in buildset.jobs if _is_same(before.builds.get(job.name), works.get(job.id, ""))}
    same |= {job.id for job in buildset.jobs if job.noop}
    reused_jobs = [
        job for part in _parts(buildset.graph) if {one.id for one in part} <= same for job in part if not job.noop
    ]
    return {job.id: _not_run_again(before.builds[job.name], job, buildset, world) for job in reused_jobs}


def _is_wanted(item: Item, world: World) -> bool:
    return world.pipeline.rerun_only_failed and _is_alone(item)


def _is_alone(item: Item) -> bool:
    """Return whether the item is a single change, not a circular dependency, and not an epilogue."""
    return item.change.is_change and not item.others and not item.landed and not item.epilogue


def _is_covered(job: FrozenJob) -> bool:
    """Return whether a job's digest covers all its inputs: artifacts that it requires of changes ahead are not
    covered."""
    return job.type == "regular" and not job.requires and not job.noop


def _is_same(before: Build | None, work: str) -> bool:
    return before is not None and before.result == "SUCCESS" and work != "" and before.work == work


def _parts(graph: FrozenGraph) -> Iterator[list[FrozenJob]]:
    """Yield groups of jobs that depend on each other, directly or indirectly. The results of a group are reused
    completely or not at all: data that a job returned for the others is available only while they run."""
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


def _not_run_again(before: Build, job: FrozenJob, buildset: BuildSet, world: World) -> Build:
    return Build(
        id=stand_in(buildset, job.id),
        job=job.id,
        result="SUCCESS",
        voting=job.voting,
        error=f"not run again: build {before.id} succeeded on the same code",
        log_url=_address(before, world),
        data=before.data,
        work=before.work,
    )


def _address(before: Build, world: World) -> str:
    """Return the URL of the log of an earlier build, or else of its page; empty if it has neither."""
    page = f"{world.root_url}/t/{world.tenant}/build/{before.id}" if world.root_url else ""
    return before.log_url or page


class BuildInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Hold all inputs of a build.

    They contain no ids, and trees instead of the commits that merges create. They do contain the proposed change, so
    that the result of a proposer's builds cannot be reused for anybody else's.
    """

    tenant: str
    pipeline: str
    post_review: bool
    """Whether its pipeline is `post-review`, which decides how far it is trusted."""
    key: str
    """The key of the change."""
    commit: str
    job: FrozenJob
    """The job with the encrypted secrets of its playbooks, its labels or image, and its version of Ansible."""
    zuul: dict[str, Any]
    """The `zuul` variable without ids, except those of builds whose artifacts it contains.  JSON."""
    data: dict[str, Any]
    """Data that the jobs before it returned.  JSON."""
    trees: BranchTrees
    """The merged trees of every branch of its repositories."""
    landed: BranchTrees
    """The trees of repositories that are always used in their landed state."""
    bases: dict[str, str]
    """Branch -> tree beneath the change, in the change's repository."""

    def digest(self) -> str:
        """Return a digest that is equal for equal inputs."""
        # Equal mappings may have different orders.
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def inputs_of(item: Item, buildset: BuildSet, job: FrozenJob, zuul: dict[str, Any], world: World) -> str:
    """Return the digest of a build's inputs, with `zuul` as its variable; empty if the inputs are unknown, or if no
    result may be reused for it."""
    change, state = item.change, buildset.state
    # Secret data is encrypted with another key each time, so it cannot be compared.
    if not is_fit(item, job) or state is None or parent_secrets(job, buildset) or _served(job, buildset):
        return ""
    trees = {project: _merged(state, project) for project in given(item, job)}
    landed = {project: _heads(state, project) for project in as_landed(item, job)}
    base = state.known.bases.get(change.project, {}).get(change.branch)
    if base is None or not all((*trees.values(), *landed.values())):
        return ""
    return BuildInputs(
        tenant=world.tenant,
        pipeline=world.pipeline.name,
        post_review=world.pipeline.post_review,
        key=change.key,
        commit=change.commit,
        job=job,
        zuul=_without_ids(zuul, buildset),
        data=parent_data(job, buildset),
        trees=trees,
        landed=landed,
        bases={change.branch: base},
    ).digest()


def stand_in(buildset: BuildSet, job: str) -> str:
    """Return the id of the build of a job that reuses the result of an earlier build."""
    return derived(buildset.id, job, "reused")


def is_fit(item: Item, job: FrozenJob) -> bool:
    """Return whether the job may reuse results: only for a single change."""
    return job.reuse and job.type == "regular" and not job.noop and _is_alone(item)


def given(item: Item, job: FrozenJob) -> dict[str, str]:
    """Map the projects that the build gets in their proposed state to connections: the change's, and the job's."""
    own = {item.change.project: item.change.connection}
    required = {one.project: one.connection for one in job.required_projects}
    files = {one.project: one.connection for one in job.include_vars if one.project and not one.trusted}
    return own | required | files | dict(_code(job, trusted=False))


def as_landed(item: Item, job: FrozenJob) -> dict[str, str]:
    """Map the projects that the build gets in their landed state to connections."""
    own = any(one.zuul_project and not one.use_ref for one in job.include_vars)
    files = {one.project: one.connection for one in job.include_vars if one.project and one.trusted}
    return files | dict(_code(job, trusted=True)) | ({item.change.project: item.change.connection} if own else {})


def _code(job: FrozenJob, *, trusted: bool) -> Iterator[tuple[str, str]]:
    """Yield (project, connection) of the job's trusted, or untrusted, playbooks and of their roles."""
    for book in (*job.pre_run, *job.run, *job.post_run):
        if book.trusted is trusted:
            yield book.project, book.connection
            yield from ((role.project, role.connection) for role in book.roles)


def _heads(state: RepoState, project: str) -> dict[str, str]:
    """Map the branches of a project to the trees of their heads; empty if not all are known."""
    known = state.known.heads.get(project, {})
    named = {ref.removeprefix("refs/heads/") for ref in state.heads.get(project, {})}
    # A build may read any branch of its repositories, so one unknown tree makes all of its inputs unknown.
    return known if known.keys() == named else {}


def _merged(state: RepoState, project: str) -> dict[str, str]:
    heads, made = _heads(state, project), state.trees.get(project, {})
    if not heads or made.keys() != state.merged.get(project, {}).keys():
        return {}
    return heads | made


def _served(job: FrozenJob, buildset: BuildSet) -> bool:
    """Return whether a job that this one depends on is paused, so that this one may use its services."""
    before = (buildset.builds.get(name) for name in parents(buildset, job))
    return any(one is not None and one.paused for one in before)


def _without_ids(zuul: dict[str, Any], buildset: BuildSet) -> dict[str, Any]:
    made = {one.id: _made_of(one, buildset) for one in buildset.builds.values()}
    artifacts = [
        {**one, "build": made.get(one.get("build", ""), one.get("build"))} for one in zuul.get("artifacts", ())
    ]
    return {name: value for name, value in zuul.items() if name not in IDS} | {"artifacts": artifacts}


def _made_of(build: Build, buildset: BuildSet) -> str:
    """Return a key for the content of a build's artifacts: the digest of its inputs if nothing else can have influenced
    them; otherwise its id, as another build might produce different artifacts."""
    narrow = build.narrow or build.id == stand_in(buildset, build.job)
    return build.inputs if build.inputs and build.result == "SUCCESS" and narrow else build.id


def wanted(item: Item, world: World) -> dict[str, str]:
    """Map the projects whose trees are needed for reuse to connections, according to the landed configuration; jobs
    that only a proposed configuration defines always run."""
    change, layout, pipeline = item.change, world.layouts.landed, world.pipeline.name
    # Most pipelines have no job with `reuse`: checking that first saves freezing the graph.
    if item.others or not world.layouts.reuses(pipeline, change.project, change.branch):
        return {}
    graph = layout.freeze(pipeline, change.project, change.branch, change.ref, item.files(change))
    found = dict[str, str]()
    for job in graph.jobs:
        if is_fit(item, job):
            found |= given(item, job) | as_landed(item, job)
    return found


def stands_for(buildset: BuildSet, job: FrozenJob, build: Build, world: World) -> Build | None:
    """Return a build with a reused result instead of `build`, which is not requested yet; NOTHING: it must run; None:
    this is being looked up, and the job waits."""
    if not build.inputs or world.beside.passed is None:
        return NOTHING
    before = world.beside.passed(Sought(build.inputs, _keys(job)))
    if before is None or not before.id:
        return before
    return msgspec.structs.replace(
        build,
        id=stand_in(buildset, job.id),
        result="SUCCESS",
        error=f"reused build {before.id}",
        log_url=_address(before, world),
        data=before.data,
    )


def lasting(build: Build) -> bool:
    """Return whether the result of the build may be reused: it has succeeded, and all its returned data can be
    stored."""
    if build.result != "SUCCESS" or not build.inputs or not build.narrow or build.paused or build.secret is not None:
        return False
    return len(msgspec.json.encode(build.data)) <= DATA_MAX_BYTES


def _keys(job: FrozenJob) -> tuple[tuple[str, str], ...]:
    books = (*job.pre_run, *job.run, *job.post_run)
    return tuple(sorted({(one.connection, one.project) for book in books for one in book.secrets if one.data}))
