"""Reduce what the result of a build may rest on to one value with a digest.

The value has neither ids nor commits that are made for a change; of repositories it has the trees.  It has what people
proposed, so that the result of a proposer's own builds stands for nobody else's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.base.ids import derived
from headgate.config.model import FrozenJob
from headgate.gate.graph import parent_data, parent_secrets, parents
from headgate.gate.model import Build, BuildSet, Item
from headgate.gate.work import RepoState
from headgate.gate.world import World

IDS = frozenset({"build", "buildset", "event_id", "attempts"})
"""Keys of the `zuul` variable that name a run without saying what is run."""
Trees = dict[str, dict[str, str]]
"""project -> branch -> tree"""


class BuildInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Hold everything that a build is given."""

    tenant: str
    pipeline: str
    post_review: bool
    """Whether its pipeline is one after review (`post-review`), which decides how far it is trusted."""
    key: str
    """The key of the change."""
    commit: str
    job: FrozenJob
    """The job with the encrypted secrets of its playbooks, its labels or image, and its version of Ansible."""
    zuul: dict[str, Any]
    """The `zuul` variable without ids, except those of builds whose artifacts it names.  JSON."""
    data: dict[str, Any]
    """Data that the jobs before it returned.  JSON."""
    trees: Trees
    """The merged trees of every branch of its repositories."""
    landed: Trees
    """The trees of repositories that are used as landed, whatever is proposed."""
    bases: dict[str, str]
    """branch -> tree beneath the change, in its own repository."""

    def digest(self) -> str:
        """Return a digest that is equal for equal inputs."""
        # Equal mappings may be in different order, depending on who read them and when.
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def inputs_of(item: Item, buildset: BuildSet, job: FrozenJob, zuul: dict[str, Any], world: World) -> str:
    """Return the digest of a build's inputs; empty if they are unknown, or if no other build may stand for it. `zuul`
    is the variable as the build has it."""
    change, state = item.change, buildset.state
    # Secret data is sealed with another key each time, so nobody here can tell whether it is equal.
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
    """Return the id of the build of a job for which an earlier build stands."""
    return derived(buildset.id, job, "reused")


def is_fit(item: Item, job: FrozenJob) -> bool:
    """Return whether another build may stand for one of the job: only for a change that is tested by itself."""
    alone = item.change.is_change and not item.others and not item.landed and not item.epilogue
    return job.reuse and job.type == "regular" and not job.noop and alone


def given(item: Item, job: FrozenJob) -> dict[str, str]:
    """Return the projects that the build has as proposed -> connection: the change's, and those that the job names."""
    own = {item.change.project: item.change.connection}
    required = {one.project: one.connection for one in job.required_projects}
    files = {one.project: one.connection for one in job.include_vars if one.project and not one.trusted}
    return own | required | files | dict(_code(job, trusted=False))


def as_landed(item: Item, job: FrozenJob) -> dict[str, str]:
    """Return the projects that the build has as they are on their branches -> connection."""
    own = any(one.zuul_project and not one.use_ref for one in job.include_vars)
    files = {one.project: one.connection for one in job.include_vars if one.project and one.trusted}
    return files | dict(_code(job, trusted=True)) | ({item.change.project: item.change.connection} if own else {})


def _code(job: FrozenJob, *, trusted: bool) -> Iterator[tuple[str, str]]:
    """Yield (project, connection) from which the job's playbooks, either trusted or not, and their roles come."""
    for book in (*job.pre_run, *job.run, *job.post_run):
        if book.trusted is trusted:
            yield book.project, book.connection
            yield from ((role.project, role.connection) for role in book.roles)


def _heads(state: RepoState, project: str) -> dict[str, str]:
    """Return branch -> tree of its head; nothing if not every branch is known."""
    known = state.known.heads.get(project, {})
    named = {ref.removeprefix("refs/heads/") for ref in state.heads.get(project, {})}
    # A build may look at any branch of its repositories, so one unknown tree makes all of its inputs unknown.
    return known if known.keys() == named else {}


def _merged(state: RepoState, project: str) -> dict[str, str]:
    heads, made = _heads(state, project), state.trees.get(project, {})
    if not heads or made.keys() != state.merged.get(project, {}).keys():
        return {}
    return heads | made


def _served(job: FrozenJob, buildset: BuildSet) -> bool:
    """Return whether a job before it is paused, so that this one may use what it serves."""
    before = (buildset.builds.get(name) for name in parents(buildset, job))
    return any(one is not None and one.paused for one in before)


def _without_ids(zuul: dict[str, Any], buildset: BuildSet) -> dict[str, Any]:
    made = {one.id: _made_of(one, buildset) for one in buildset.builds.values()}
    artifacts = [
        {**one, "build": made.get(one.get("build", ""), one.get("build"))} for one in zuul.get("artifacts", ())
    ]
    return {name: value for name, value in zuul.items() if name not in IDS} | {"artifacts": artifacts}


def _made_of(build: Build, buildset: BuildSet) -> str:
    """Return a key for the content of a build's artifacts, which may differ each time that they are built: the digest
    of its inputs if nothing else can have influenced them, otherwise its id."""
    narrow = build.narrow or build.id == stand_in(buildset, build.job)
    return build.inputs if build.inputs and build.result == "SUCCESS" and narrow else build.id
