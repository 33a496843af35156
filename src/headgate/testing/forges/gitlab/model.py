"""Hold the state of a stand-in for GitLab, decide whether merge requests can be merged, and merge them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pygit2

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import Clock

GUEST, REPORTER, DEVELOPER, MAINTAINER, OWNER = 10, 20, 30, 40, 50
"""Access levels."""
FINISHED = frozenset({"success", "failed", "canceled", "skipped"})
"""States of jobs that have ended."""
_ENDED_BADLY = frozenset({"failed", "canceled"})


def stamp(at_s: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True, eq=False)
class FakeGitLabUser:
    id: int
    username: str
    bot: bool = False

    @property
    def name(self) -> str:
        return self.username.title()


@dataclass(slots=True, eq=False)
class FakeGitLabToken:
    text: str
    user: FakeGitLabUser
    revoked: bool = False


@dataclass(slots=True, eq=False)
class FakeGitLabHook:
    """Represent a webhook of a project."""

    id: int
    url: str
    token: str = ""
    signing: str = ""
    """The signing token, `whsec_` and base64; empty: deliveries are not signed."""


@dataclass(slots=True, eq=False)
class Note:
    id: int
    author: FakeGitLabUser
    body: str
    at_s: float
    system: bool = False
    resolvable: bool = False
    """Whether the note is a thread that can be resolved; a thread is one note here."""
    resolved: bool = False


@dataclass(slots=True, eq=False)
class FakeGitLabStatus:
    """Represent the status of a commit, which GitLab treats as a job of a pipeline."""

    id: int
    sha: str
    ref: str
    name: str
    state: str
    author: FakeGitLabUser
    at_s: float
    description: str | None = None
    target_url: str | None = None
    allow_failure: bool = False


@dataclass(slots=True, eq=False)
class Protected:
    """Protect a branch: only users with at least these levels may push or merge."""

    branch: str
    push: int = MAINTAINER
    merge: int = MAINTAINER


@dataclass(slots=True, eq=False)
class FakeGitLabMergeRequest:
    """Hold a merge request, as GitLab does."""

    id: int
    iid: int
    project: FakeGitLabProject
    source: FakeGitLabProject | None
    """Project of the source branch; None: the fork was deleted."""
    source_branch: str
    target_branch: str
    author: FakeGitLabUser
    title: str
    description: str
    sha: str
    created_s: float
    updated_s: float
    state: str = "opened"
    """opened | closed | merged"""
    labels: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    approvers: list[FakeGitLabUser] = field(default_factory=list)
    approved_s: dict[int, float] = field(default_factory=dict)
    """Account -> time of its approval."""
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    merged_by: FakeGitLabUser | None = None
    undecided: int = 0
    """Number of further answers that mergeability is being checked."""
    hindered: str = ""
    """A `detailed_merge_status` that a test sets because the stand-in does not model it; empty: none."""

    @property
    def draft(self) -> bool:
        return self.title.lower().startswith(("draft:", "[draft]", "(draft)"))


@dataclass(slots=True, eq=False)
class FakeGitLabProject:
    """Hold a project, as GitLab does."""

    id: int
    path: str
    """Path with its namespace."""
    git_dir: Path
    default_branch: str
    created_s: float
    members: dict[str, int] = field(default_factory=dict)
    """Username -> access level, including inherited ones."""
    private: bool = False
    fork_of: FakeGitLabProject | None = None
    merge_method: str = "merge"
    """merge | rebase_merge | ff"""
    squash_option: str = "default_off"
    only_if_pipeline_succeeds: bool = False
    only_if_resolved: bool = False
    approvals: int | None = None
    """Number of required approvals; None: the edition cannot require any, and one is enough to be approved."""
    keeps_approvals: bool = False
    """Whether a push to a merge request keeps its approvals."""
    protected: dict[str, Protected] = field(default_factory=dict)
    requests: dict[int, FakeGitLabMergeRequest] = field(default_factory=dict)
    statuses: list[FakeGitLabStatus] = field(default_factory=list)
    pipelines: dict[tuple[str, str], int] = field(default_factory=dict)
    """Commit and ref -> number of the pipeline."""
    hooks: list[FakeGitLabHook] = field(default_factory=list)

    def level(self, user: FakeGitLabUser) -> int:
        return self.members.get(user.username, 0)

    def may_merge(self, user: FakeGitLabUser, branch: str) -> bool:
        one = self.protected.get(branch)
        return self.level(user) >= (one.merge if one is not None else DEVELOPER)

    def may_push(self, user: FakeGitLabUser, branch: str) -> bool:
        one = self.protected.get(branch)
        return self.level(user) >= (one.push if one is not None else DEVELOPER)

    def jobs(self, sha: str, ref: str) -> list[FakeGitLabStatus]:
        """Return the newest status of each name, of a commit on a ref."""
        return list({one.name: one for one in self.statuses if (one.sha, one.ref) == (sha, ref)}.values())

    def pipeline(self, sha: str, ref: str) -> int:
        """Return the number of the pipeline of a commit on a ref; 0: there is none."""
        return self.pipelines.get((sha, ref), 0)


@dataclass(slots=True)
class FakeGitLabWorld:
    """Hold the state of the forge."""

    root: Path
    """Directory of the repositories."""
    clock: Clock = field(default_factory=Clock)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    users: dict[str, FakeGitLabUser] = field(default_factory=dict)
    tokens: dict[str, FakeGitLabToken] = field(default_factory=dict)
    projects: dict[str, FakeGitLabProject] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    """Former path -> present one."""
    undecided_asks: int = 0
    """Number of answers that leave open whether a merge request can be merged."""

    def user(self, username: str) -> FakeGitLabUser:
        """Create an account and return it."""
        if username not in self.users:
            self.users[username] = FakeGitLabUser(next(self.ids), username)
        return self.users[username]


def signature(user: FakeGitLabUser, at_s: float) -> pygit2.Signature:
    """Return the author of a commit."""
    return pygit2.Signature(user.name, f"{user.id}-{user.username}@users.noreply.gitlab.example", int(at_s), 0)


def pipeline(one: FakeGitLabMergeRequest) -> tuple[str, list[FakeGitLabStatus]]:
    """Return the state of its head pipeline, and its jobs; empty: there is none. The pipeline belongs to the source
    branch, in the source project."""
    jobs = one.source.jobs(one.sha, one.source_branch) if one.source is not None else []
    states = {job.state for job in jobs if not (job.allow_failure and job.state in _ENDED_BADLY)}
    if not jobs:
        return "", jobs
    for state in ("failed", "canceled", "running"):
        if state in states:
            return state, jobs
    return ("running" if states & {"success", "skipped"} else "pending") if "pending" in states else "success", jobs


def unresolved(one: FakeGitLabMergeRequest) -> int:
    """Return the number of unresolved threads."""
    return sum(note.resolvable and not note.resolved for note in one.notes)


def approvals_left(one: FakeGitLabMergeRequest) -> int:
    """Return the number of missing approvals."""
    return max(0, (one.project.approvals or 0) - len(one.approvers))


def approved(one: FakeGitLabMergeRequest) -> bool:
    """Return whether it counts as approved."""
    return not approvals_left(one) if one.project.approvals is not None else bool(one.approvers)


def conflicts(one: FakeGitLabMergeRequest) -> bool:
    """Return whether it conflicts with its target."""
    base = hosts.heads(one.project).get(one.target_branch)
    return base is None or hosts.merged_tree(one.project, base, one.sha) is None


def branch_missing(one: FakeGitLabMergeRequest) -> bool:
    """Return whether its source branch or source project no longer exists."""
    return one.source is None or one.source_branch not in hosts.heads(one.source)


def detailed(one: FakeGitLabMergeRequest, *, asks: bool = True) -> str:
    """Return `detailed_merge_status`. `asks`: the request makes GitLab compute it, a while later."""
    if one.state != "opened":
        return "not_open"
    if one.undecided:
        # Only a question to the merge request itself makes GitLab compute it; a list shows what is known.
        one.undecided -= asks
        return "checking" if asks else "unchecked"
    project = one.project
    base = hosts.heads(project).get(one.target_branch, "")
    behind = project.merge_method != "merge" and not (base and hosts.contains(project, one.sha, base))
    # In GitLab's order: it names only the first obstacle, and the pipeline after all others.
    for holds, word in (
        (one.draft, "draft_status"),
        (branch_missing(one) or not base, "commits_status"),
        (project.only_if_resolved and unresolved(one), "discussions_not_resolved"),
        (approvals_left(one), "not_approved"),
        (one.hindered, one.hindered),
    ):
        if holds:
            return word
    if conflicts(one):
        return "conflict"
    if behind:
        return "need_rebase"
    state, _ = pipeline(one)
    if project.only_if_pipeline_succeeds and state != "success":
        return "ci_still_running" if state in ("running", "pending") else "ci_must_pass"
    return "mergeable"


def merge(
    one: FakeGitLabMergeRequest, user: FakeGitLabUser, squash: bool, message: str, squash_message: str, at_s: float
) -> str:
    """Merge it; move the target branch, and return its new head."""
    project, git = one.project, hosts.opened(one.project)
    base, who = hosts.heads(project)[one.target_branch], signature(user, at_s)
    squash = squash or project.squash_option == "always"
    head = one.sha
    if squash:
        tree = hosts.merged_tree(project, base, head)
        head = str(git.create_commit(None, who, who, squash_message or one.title, tree, [base]))
        one.squash_commit_sha = head
    if project.merge_method == "ff":
        tip = head
    else:
        text = message or f"Merge branch '{one.source_branch}' into '{one.target_branch}'\n\n{one.title}"
        tip = str(git.create_commit(None, who, who, text, hosts.merged_tree(project, base, head), [base, head]))
        one.merge_commit_sha = tip
    hosts.point(project, f"refs/heads/{one.target_branch}", tip)
    return tip
