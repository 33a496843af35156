"""Define the bodies of the gate's requests and their answers.  Pure data.

Every request contains the id of its buildset (or build).  That id changes whenever the base does, so it is the
idempotency key, and an answer about an abandoned base is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.texts import line, visible
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem, ReviewResult, ReviewWork, Trees
from headgate.gate.state.returns import NO_COURSE, Course, Sealed, Unfit, checked


@dataclass(slots=True)
class JobMemory:
    """Remember a value for each job of a graph while nothing changes that it depends on.

    A proposer chooses how many jobs wait, and how much is before them.
    """

    _graph: FrozenGraph | None = None
    _facts: tuple[object, ...] = ()
    _builds: Mapping[str, object] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)

    def values(self, graph: FrozenGraph, builds: Mapping[str, object], facts: tuple[object, ...]) -> dict[str, Any]:
        """Return the values by job id, to read and to extend. Those that depend on something that has changed are
        forgotten: all on `facts` and the graph, and each on the `builds` of the jobs before its job."""
        if graph is not self._graph or facts != self._facts:
            self._values = {}
        elif builds is not self._builds:
            ids = enumerate(job.id for job in graph.jobs)
            changed = sum(1 << place for place, id in ids if builds.get(id) is not self._builds.get(id))
            self._values = {id: one for id, one in self._values.items() if not graph.beneath.get(id, 0) & changed}
        self._graph, self._facts, self._builds = graph, facts, builds
        return self._values


# `dict=True` gives cached properties a place for their values.
class RepoState(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Hold the repository state on which every job of a buildset runs."""

    chain: tuple[MergeItem, ...] = ()
    """The changes ahead, furthest first, then the item's own."""
    heads: dict[str, dict[str, str]] = {}
    """project -> ref (refs/heads/…) -> commit *before* anything of the chain was merged."""
    merged: dict[str, dict[str, str]] = {}
    """project -> branch -> speculative commit after the whole chain."""
    connections: dict[str, str] = {}
    """project -> connection it comes from."""
    landed: str = ""
    """Commit of the item's change if it has already landed; nothing is merged for it."""
    containing: tuple[str, ...] = ()
    """Branches that contain the commit of the item's tag."""
    trees: dict[str, dict[str, str]] = {}
    """project -> branch -> tree of that commit, which identifies content that was tested before."""
    known: Trees = Trees()

    @cached_property
    def content(self) -> str:
        """Return a digest of the chain and its trees, which is equal for two tests of the same patchsets."""
        # These fields differ between two tests of the same patchset, but jobs cannot depend on them.
        chain = [replace(one, item="", at_s=0) for one in self.chain]
        return digest_of((chain, self.trees))

    @cached_property
    def head_digests(self) -> dict[str, str]:
        """Return a digest of the heads of each project."""
        return {project: digest_of(heads) for project, heads in self.heads.items()}

    @cached_property
    def fresh(self) -> JobMemory:
        """Return the memory of the builds that the jobs of the buildset would begin (`gate.builds.start`)."""
        return JobMemory()


def digest_of(value: object) -> str:
    """Return a digest that is equal for equal values."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


class RefAt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a ref as the jobs of its item see it, without a merge."""

    item: str
    project: str
    connection: str
    ref: str
    commit: str
    """Commit or tag that the ref names; zeros if the ref was deleted."""
    old_commit: str = ""
    held: bool = False
    """Whether only a person stated `commit`: the merger then checks that the ref names it now or, if it is a branch,
    contains it."""


class MergeRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="merge"):
    """Merge `chain` onto the heads; also read the heads of `projects`."""

    buildset: str
    chain: tuple[MergeItem, ...]
    projects: dict[str, str]
    """project -> connection, of every project whose heads are requested (those of the chain are always included)."""
    config_paths: dict[str, tuple[str, ...]] = {}
    """project -> paths (files, or directories ending in /) whose merged text is requested."""
    config_heads: dict[str, tuple[str, ...]] = {}
    """project -> branches whose text is requested at their heads, if nothing is merged there."""
    config_known: dict[str, dict[str, str]] = {}
    """project -> branch -> digest (`config.operator.model.content_of`) of texts that need not be sent."""
    at: RefAt | None = None
    """Ref of the item; None when the item is a change."""
    landed: str = ""
    """The landed commit, as in `RepoState`."""
    given: dict[str, str] = {}  # project -> connection, of those whose heads and trees are wanted, if available


class MergeAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="merge"):
    buildset: str
    ok: bool
    blame: str = ""
    """Id of the item whose change did not merge."""
    error: str = ""
    """The reason, as a message: which files conflict, or what is missing."""
    state: RepoState | None = None
    config: dict[str, dict[str, dict[str, str]]] = {}
    """project -> branch -> path -> text, for `config_paths` at the merged state, without the texts in
    `config_known`."""
    apart: str = ""
    """Path at which the complete answer is stored if it is large."""
    touched: tuple[tuple[str, ...] | None, ...] = ()
    """Paths that differ before and after the merge of each change of the item, in the order of its changes; None if
    they cannot be listed. Empty if none of them was merged."""


class CatRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="cat"):
    """Read configuration files at the head of branches; no merge."""

    project: str
    connection: str
    branches: tuple[str, ...] = ()
    """Branches to read; empty for every branch."""
    paths: tuple[str, ...] = ()


class CatAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="cat"):
    project: str
    ok: bool
    error: str = ""
    branches: dict[str, str] = {}
    """branch -> head commit, of every branch of the project, default branch first."""
    files: dict[str, dict[str, str]] = {}
    """branch -> path -> text"""


class Landing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one of several changes that land together."""

    change: Change
    commit: str
    """The tested commit of the change's project and branch."""
    note: str
    approved: bool = False
    """Whether the approval is required; this and the following members are as in LandRequest."""
    leases: tuple[str, ...] = ()
    vetoed: bool = False
    approvals: dict[str, str] = msgspec.field(name="said", default_factory=dict)


class Demands(msgspec.Struct, frozen=True, omit_defaults=True):
    """State a pipeline's demands on the changes of one forge at the moment of a push."""

    driver: str
    """The driver whose terms `require` and `reject` use."""
    require: dict[str, Any] = {}
    reject: dict[str, Any] = {}
    ours: tuple[str, ...] = ()
    """Labels and contexts that the pipeline sets itself: a rule that requires them does not keep a change from
    landing."""
    exempt: tuple[str, ...] = ()
    """Keys of changes that need not meet the pipeline's requirements."""


class LandRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="land"):
    """Advance `branch` to exactly the commit that was tested, fast-forward only, and write `note` on the change."""

    buildset: str
    state: RepoState
    change: Change
    commit: str
    """The tested commit of the change's project and branch."""
    note: str
    pipeline: str = ""
    approved: bool = False
    """Whether it lands only while its forge reports exactly this commit as approved."""
    leases: tuple[str, ...] = ()
    """Refs of people's approvals that must still name the change's commit at the moment of landing."""
    vetoed: bool = False
    """Whether it lands only while nobody objects."""
    approvals: dict[str, str] = msgspec.field(name="said", default_factory=dict)
    """Ref of each approval of the change -> its commit; these refs are deleted after the change has landed."""
    queue: str = ""
    """Name of the queue it lands from."""
    shut: bool = False
    """Whether its queue is closed: a merger then only checks whether the push was already made."""
    others: tuple[Landing, ...] = ()
    """The changes of a circle that land in the same repository, in the same step."""
    later: tuple[Landing, ...] = ()
    """Changes that land in later steps; a merger tries these out before it pushes the first step. Empty in later
    steps."""
    after: tuple[str, ...] = ()
    """If a forge makes the merge: commits that the queue landed before, any of which may be the head of the branch."""
    rest: bool = False
    """Whether a part of the circle has already landed; a refused push is then retried for a limited time."""
    demands: dict[str, Demands] = {}
    """Connection of a forge -> what its changes must meet when they are pushed."""
    looked_ms: int = 0
    """Time at which the demands were checked with the forges, milliseconds since the epoch; 0 if they were not
    checked."""
    withheld: str = ""
    """Why the changes may no longer be pushed; a merger then only checks whether they were already pushed. Empty if
    they may be pushed."""

    @property
    def parts(self) -> tuple[Landing, ...]:
        """Return all changes that land in this step, its own change first."""
        own = Landing(self.change, self.commit, self.note, self.approved, self.leases, self.vetoed, self.approvals)
        return (own, *self.others)


class LandAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="land"):
    buildset: str
    ok: bool
    moved: bool = False
    """Whether the branch has moved, so that the item must be tested again."""
    error: str = ""
    shut: bool = False
    """Whether its queue is closed; nothing was pushed."""
    project: str = ""
    """Project of the answered step, if the item lands in several repositories one after the other; otherwise it may be
    empty."""
    change: str = ""
    """Key of the change that landed, if each change lands separately."""
    commit: str = ""
    """Head of the branch after the merge, if a forge makes it; otherwise the tested commit."""
    differs: bool = False
    """Whether the landed tree differs from the tested one."""


class ReportRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    """Report on the change; the note replaces an earlier one of the same pipeline."""

    change: Change
    pipeline: str
    note: str
    landed: str = ""
    """Commit as which the change landed, which its note still names; empty if the change has not landed."""


class ReportAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    ok: bool
    error: str = ""
    refused: bool = False
    """Whether the report can never be made; it is then moved to the list of failed reports."""


MergerWork = MergeRequest | CatRequest | LandRequest | ReportRequest | ReviewWork
MergerAnswer = MergeAnswer | CatAnswer | LandAnswer | ReportAnswer | ReviewResult


class BuildSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a build to an executor completely, except for the repo state, which all builds of a buildset share."""

    build: str
    buildset: str
    tenant: str
    pipeline: str
    item: str
    job: FrozenJob
    change: Change
    attempt: int = 1
    zuul: dict[str, Any] = {}
    """The `zuul` variable, except for the parts that only the executor knows."""
    parent_data: dict[str, Any] = {}
    """Data returned by the jobs that this one depends on; later jobs win."""
    parent_secrets: tuple[Sealed, ...] = ()  # secret data of the same jobs, later wins
    node_secrets: dict[str, Sealed] = {}
    """Node -> its secrets (a token), which only its build may read; set once machines exist."""
    repo_state: str = ""
    """Path of the buildset's RepoState."""
    semaphores: dict[str, int] = {}
    """Semaphore that its playbooks take, or the build itself once it has its nodes -> how many may hold it."""
    shared: tuple[str, ...] = ()
    """The semaphores among them that are shared with other tenants."""
    state: RepoState | None = None
    """The state itself, for a build that belongs to no buildset; otherwise None."""
    also: tuple[Change, ...] = ()
    """The other changes of a circle that the build is for."""
    together: tuple[Change, ...] = ()
    """All changes of the circle."""
    hosts: dict[str, dict[str, Any]] = {}
    """Node -> Ansible's variables to reach it (JSON), set once machines are claimed; empty if the runner uses its own
    machines."""


ERROR_SIZE_MAX = 2_000
EXCERPT_SIZE_MAX = 1_000


class BuildOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report how a build ended. `result` None means that it did not run and should be retried."""

    build: str
    result: str | None = None
    """SUCCESS FAILURE POST_FAILURE TIMED_OUT RETRY_LIMIT CANCELED MERGE_CONFLICT DISK_FULL ERROR, or None."""
    error: str = ""
    data: dict[str, Any] = {}
    """Data that the job returned; Headgate reads `zuul.child_jobs`, `zuul.log_url`, `zuul.artifacts` and
    `zuul.warnings`."""
    secret: Sealed | None = None
    """Secret data that it returned."""
    start_ms: int = 0
    end_ms: int = 0
    log_path: str = ""  # local path of the log at the executor
    image: str = ""  # image in which its programs ran, by name and digest
    narrow: bool = False  # whether it had only the repositories that its job names, as `reuse` requires
    excerpt: str = ""
    """The lines of its log that show why it failed, without secrets."""
    course: Course = NO_COURSE

    def fit(self) -> BuildOutcome:
        """Return the outcome with its error in one line and its excerpt in printable characters, both cut to size.
        Data that does not have the format of `gate.state.returns` is dropped and makes the build fail."""
        # The job controls these lines, and people read them in terminals, so control characters must go.
        excerpt = visible(self.excerpt[:EXCERPT_SIZE_MAX])
        outcome = replace(self, error=line(self.error, ERROR_SIZE_MAX), excerpt=excerpt, course=self.course.fit())
        try:
            checked(self.data)
        except Unfit as unfit:
            why = f"the data that the job returned is invalid: {unfit}"
            # No other attempt: the job would most likely return invalid data again.
            result = "FAILURE" if self.result in (None, "SUCCESS") else self.result
            return replace(outcome, result=result, error=outcome.error or line(why, ERROR_SIZE_MAX), data={})
        return outcome


class BuildEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="build"):
    """Report from an executor that a build has ended."""

    buildset: str
    job: str
    outcome: BuildOutcome
    apart: str = ""
    """Path of the returned data if it is large."""
    both: bool = False
    """Whether `apart` holds data and secret data as a pair, instead of data alone."""


class BuildPaused(msgspec.Struct, frozen=True, omit_defaults=True, tag="pause"):
    """Report from an executor that a build has paused until the jobs that depend on it have ended."""

    buildset: str
    job: str
    build: str
    data: dict[str, Any] = {}
    """Data that the job has returned so far."""
    apart: str = ""
    """Path of large data; this and the following members are as in BuildEnded."""
    secret: Sealed | None = None
    both: bool = False


class BuildFailing(msgspec.Struct, frozen=True, omit_defaults=True, tag="failing"):
    """Report from an executor that a running build will certainly fail."""

    buildset: str
    job: str
    build: str


Answer = MergeAnswer | LandAnswer | BuildEnded | BuildPaused | BuildFailing
