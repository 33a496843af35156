"""Define what the gate asks of the world and what comes back: the bodies of requests and answers.  Pure data.

Every request carries the buildset (or build) it is for; that id changes whenever the base does, so it is the
idempotency key, and an answer about an abandoned base is ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.texts import line, visible
from headgate.config.model import FrozenJob
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem, ReviewResult, ReviewWork, Trees
from headgate.gate.state.returns import NO_COURSE, Course, Sealed, Unfit, checked


class RepoState(msgspec.Struct, frozen=True, omit_defaults=True):
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
    """Commit of the item's change when it has landed; nothing is merged for it."""
    containing: tuple[str, ...] = ()
    """Branches that hold the commit of the tag that the item is of."""
    trees: dict[str, dict[str, str]] = {}
    """project -> branch -> tree of that commit, which shows whether the same content was tested before."""
    known: Trees = Trees()


class RefAt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a ref as the jobs of its item see it, without a merge."""

    item: str
    project: str
    connection: str
    ref: str
    commit: str
    """Commit or tag that the ref names; zeros when the ref is deleted."""
    old_commit: str = ""
    held: bool = False
    """Whether `commit` is only what a person stated: the merger then checks that the ref names it now or, if it is a
    branch, contains it."""


class MergeRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="merge"):
    """Merge `chain` onto the heads; also read the heads of `projects`."""

    buildset: str
    chain: tuple[MergeItem, ...]
    projects: dict[str, str]
    """project -> connection, of every project whose heads are wanted (the chain's are always included)."""
    config_paths: dict[str, tuple[str, ...]] = {}
    """project -> paths (files, or directories ending in /) whose text is wanted as merged."""
    config_heads: dict[str, tuple[str, ...]] = {}
    """project -> branches whose text is wanted as it is at their heads, when nothing is merged there."""
    config_known: dict[str, dict[str, str]] = {}
    """project -> branch -> digest of texts that are known (`config.operator.model.content_of`) and need not be sent."""
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
    """The reason for people: which files conflict, or what is missing."""
    state: RepoState | None = None
    config: dict[str, dict[str, dict[str, str]]] = {}
    """project -> branch -> path -> text, of `config_paths`, at the merged state; without texts in `config_known`."""
    apart: str = ""
    """Path of the whole answer when it is large."""


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
    """Represent one of several changes that land as one."""

    change: Change
    commit: str
    """The tested commit of the change's project and branch."""
    note: str
    approved: bool = False
    """Whether the approval is required, as in LandRequest, like the following members."""
    leases: tuple[str, ...] = ()
    vetoed: bool = False
    approvals: dict[str, str] = msgspec.field(name="said", default_factory=dict)


class Demands(msgspec.Struct, frozen=True, omit_defaults=True):
    """State what a pipeline demands of the changes of one forge at the moment of a push."""

    driver: str
    """The driver whose terms `require` and `reject` use."""
    require: dict[str, Any] = {}
    reject: dict[str, Any] = {}
    ours: tuple[str, ...] = ()
    """Labels and contexts that the pipeline sets itself: no rule that asks for them keeps a change from landing."""
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
    """Whether it lands only while its forge reports this very commit as approved."""
    leases: tuple[str, ...] = ()
    """Refs of people's approvals that must still name the change's commit at the moment of landing."""
    vetoed: bool = False
    """Whether it lands only while nobody objects."""
    approvals: dict[str, str] = msgspec.field(name="said", default_factory=dict)
    """Ref of each approval of the change -> its commit; these refs are deleted once the change has landed."""
    queue: str = ""
    """Name of the queue it lands from."""
    shut: bool = False
    """Whether its queue is closed: before the push, a merger then only checks whether it was made already."""
    others: tuple[Landing, ...] = ()
    """The changes of a circle that land in the same repository, in the same step."""
    later: tuple[Landing, ...] = ()
    """Changes that are to land in later steps, which a merger tries before it pushes the first one; empty in later
    steps."""
    after: tuple[str, ...] = ()
    """If a forge makes the merge: commits that the queue landed before, any of which may be the head of the branch."""
    rest: bool = False
    """Whether a part of the circle has landed already; a refused push is then tried again for a limited time."""
    demands: dict[str, Demands] = {}
    """Connection of a forge -> what its changes must meet when they are pushed."""
    looked_ms: int = 0
    """Time at which the forges were asked whether the demands are met, milliseconds since the epoch; 0 if they were not
    asked."""
    withheld: str = ""
    """Why the changes may no longer be pushed; a merger then only checks whether they were pushed already. Empty if
    they may be pushed."""

    @property
    def parts(self) -> tuple[Landing, ...]:
        """Return everything that lands in this step, its own change first."""
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
    """Project of the step that was answered, if the item lands in several repositories one after the other; else it may
    be empty."""
    change: str = ""
    """Key of the change that landed, where each change lands by itself."""
    commit: str = ""
    """Head of the branch after the merge, where a forge makes it; else the tested commit."""
    differs: bool = False
    """Whether the landed tree differs from the tested one."""


class ReportRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    """Tell the people of the change; the note replaces an earlier one of the same pipeline."""

    change: Change
    pipeline: str
    note: str
    landed: str = ""
    """Commit as which the change landed, which its note continues to name; empty if the change has not landed."""


class ReportAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    ok: bool
    error: str = ""
    refused: bool = False
    """Whether the report can never be made; it is then set aside, where people see it."""


MergerWork = MergeRequest | CatRequest | LandRequest | ReportRequest | ReviewWork
MergerAnswer = MergeAnswer | CatAnswer | LandAnswer | ReportAnswer | ReviewResult


class BuildSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a build to an executor completely, except for the repo state, which the buildset shares."""

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
    """Data returned by the jobs this one depends on, later wins."""
    parent_secrets: tuple[Sealed, ...] = ()  # secret data of the same jobs, later wins
    node_secrets: dict[str, Sealed] = {}
    """Node -> its secrets (a token), which only its build may read; filled once machines were made."""
    repo_state: str = ""
    """Path of the buildset's RepoState."""
    semaphores: dict[str, int] = {}
    """Semaphores that its playbooks take, or it takes itself once it has its nodes -> how many may hold them."""
    shared: tuple[str, ...] = ()
    """The semaphores among them that are shared with other tenants."""
    state: RepoState | None = None
    """The state itself, for a build that belongs to no buildset; otherwise None."""
    also: tuple[Change, ...] = ()
    """The other changes of a circle that the build is for."""
    together: tuple[Change, ...] = ()
    """All changes of the circle."""
    hosts: dict[str, dict[str, Any]] = {}
    """Node -> Ansible's variables to reach it (JSON), once machines were claimed; empty if the runner uses its own
    machines."""


ERROR_SIZE_MAX = 2_000
EXCERPT_SIZE_MAX = 1_000


class BuildOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report how a build ended. `result` None means that it did not run and should be tried again."""

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
    """The lines of its log that say why it failed, secrets removed."""
    course: Course = NO_COURSE

    def fit(self) -> BuildOutcome:
        """Return the outcome with its error in one line and its excerpt in visible characters, both cut to size.  Data
        that is not of the shape in `gate.state.returns` is dropped, and counts as a failure of this build."""
        # The lines are the job's own words, and people read them in terminals.
        excerpt = visible(self.excerpt[:EXCERPT_SIZE_MAX])
        outcome = replace(self, error=line(self.error, ERROR_SIZE_MAX), excerpt=excerpt, course=self.course.fit())
        try:
            checked(self.data)
        except Unfit as unfit:
            why = f"what the job returned cannot be used: {unfit}"
            # Not another attempt: a job that returns what cannot be used would most likely do so again.
            result = "FAILURE" if self.result in (None, "SUCCESS") else self.result
            return replace(outcome, result=result, error=outcome.error or line(why, ERROR_SIZE_MAX), data={})
        return outcome


class BuildEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="build"):
    """Report from an executor that a build has ended."""

    buildset: str
    job: str
    outcome: BuildOutcome
    apart: str = ""
    """Path of the returned data when it is large."""
    both: bool = False
    """Whether `apart` holds data and secret data as a pair, instead of data alone."""


class BuildPaused(msgspec.Struct, frozen=True, omit_defaults=True, tag="pause"):
    """Report from an executor that a build has done its own work and waits for the jobs that depend on it."""

    buildset: str
    job: str
    build: str
    data: dict[str, Any] = {}
    """Data that the job has returned so far."""
    apart: str = ""
    """The path of large data, as in BuildEnded; the following members are as there, too."""
    secret: Sealed | None = None
    both: bool = False


class BuildFailing(msgspec.Struct, frozen=True, omit_defaults=True, tag="failing"):
    """Report from an executor that a running build is known to fail."""

    buildset: str
    job: str
    build: str


class ByHand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold what a person stated when putting a ref into a pipeline."""

    parameters: dict[str, Any] = {}
    claimed: bool = False
    """Whether only the person states that the ref has this commit; where that matters, a merger checks it."""


class Enqueue(msgspec.Struct, frozen=True, omit_defaults=True, tag="enqueue"):
    """Order by hand: put a change or a ref into the pipeline."""

    change: Change
    id: str
    unapproved: bool = False
    """Whether this patchset need not meet the requirements; the changes that it needs must."""
    by_hand: ByHand | None = None


class Dequeue(msgspec.Struct, frozen=True, omit_defaults=True, tag="dequeue"):
    """Order by hand: take the change or ref with this key out."""

    key: str
    why: str = ""
    """Who dequeued it and why; empty when people receive no reason."""
    commit: str = ""
    """For a ref, the commit of the only update to dequeue."""
    event: str = ""
    """Event whose item alone is dequeued, so that a repeated order takes out no later item; empty for every item."""


class CancelBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancel-build"):
    """Order by hand: stop this build and count its job as not passed."""

    build: str
    why: str
    """Who cancelled it and why, for people."""


class RerunBuild(msgspec.Struct, frozen=True, omit_defaults=True, tag="rerun-build"):
    """Order by hand: run the job of this failed build once more before its item is reported."""

    build: str


class Promote(msgspec.Struct, frozen=True, omit_defaults=True, tag="promote"):
    """Order by hand: move these changes, by key, to the head of their queue in this order."""

    keys: tuple[str, ...]
    id: str
    unapproved: bool = False
    """Whether the changes need not meet the requirements."""


class LayoutChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="layout"):
    """Report that the tenant's configuration has changed, so that everything is examined again."""

    layout: str
    taken_over: bool = False
    """Whether a process reports this because it has just taken over the pipeline; the configuration may be the same."""


Managed = Enqueue | Dequeue | CancelBuild | RerunBuild | Promote | LayoutChanged
Answer = MergeAnswer | LandAnswer | BuildEnded | BuildPaused | BuildFailing
