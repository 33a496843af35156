"""Hold the state of a stand-in for GitHub: accounts, repositories, pull requests, reviews and checks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

ROLES = {"read": "read", "triage": "read", "write": "write", "maintain": "write", "admin": "admin"}
"""Role of an account in a repository -> the permission that the API reports for it."""
DEFAULT_APP_PERMISSIONS = {
    "administration": "read",
    "checks": "write",
    "contents": "write",
    "issues": "write",
    "metadata": "read",
    "pull_requests": "write",
    "statuses": "write",
}


class Clock:
    """Keep the stand-in's own time, which tests advance."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now_s(self) -> float:
        return time.time() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


def stamp(at_s: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, eq=False)
class FakeGitHubAccount:
    login: str
    id: int
    kind: Literal["User", "Organization", "Bot"] = "User"
    name: str | None = None
    email: str | None = None
    """Address that the account shows; None: it shows none, as most do."""


@dataclass(slots=True, eq=False)
class App:
    id: int
    slug: str
    owner: FakeGitHubAccount
    bot: FakeGitHubAccount
    public_key: str
    """Public key as PEM."""
    permissions: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_APP_PERMISSIONS))
    hook_url: str = ""
    hook_secret: str = ""
    created_s: float = 0.0


@dataclass(slots=True, eq=False)
class FakeGitHubInstallation:
    id: int
    app: App
    account: FakeGitHubAccount
    projects: set[str] | None = None
    """Full names of the repositories; None: all of the account."""
    suspended: bool = False
    created_s: float = 0.0


@dataclass(slots=True, eq=False)
class FakeGitHubToken:
    text: str
    account: FakeGitHubAccount
    installation: FakeGitHubInstallation | None
    expires_s: float
    revoked: bool = False


@dataclass(slots=True, eq=False)
class FakeGitHubLabel:
    id: int
    name: str
    color: str = "ededed"


@dataclass(slots=True, eq=False)
class FakeGitHubStatus:
    id: int
    state: str
    context: str
    description: str | None
    target_url: str | None
    creator: FakeGitHubAccount
    at_s: float


@dataclass(slots=True, eq=False)
class CheckRun:
    id: int
    name: str
    head_sha: str
    app: App
    status: str = "queued"
    conclusion: str | None = None
    external_id: str = ""
    details_url: str | None = None
    started_s: float | None = None
    completed_s: float | None = None
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, str]] = field(default_factory=list)
    rerun_requested: bool = False
    """Whether somebody requested another run: its suite is queued, and it stays unchanged until its app changes it."""
    batches: list[int] = field(default_factory=list)
    """Number of annotations in each request."""


@dataclass(slots=True, eq=False)
class FakeGitHubComment:
    id: int
    user: FakeGitHubAccount
    body: str
    created_s: float
    updated_s: float


@dataclass(slots=True, eq=False)
class FakeGitHubReview:
    id: int
    user: FakeGitHubAccount
    state: Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED", "PENDING"]
    body: str
    commit_id: str
    at_s: float


@dataclass(slots=True, eq=False)
class Thread:
    """Represent a discussion on a line."""

    id: int
    path: str
    body: str
    resolved: bool = False


@dataclass(slots=True, eq=False)
class FakeGitHubProtection:
    """Represent the classic protection of the branches that a pattern matches."""

    id: int
    pattern: str
    contexts: tuple[str, ...] = ()
    strict: bool = False
    """The branch must be up to date with its base."""
    approvals: int | None = None
    """Number of required approvals; None: reviews are not required."""
    code_owners: bool = False
    conversations: bool = False
    signatures: bool = False
    linear: bool = False
    enforce_admins: bool = False
    locked: bool = False
    pushers: frozenset[str] | None = None
    """Logins and slugs of apps that may push; None: everybody with write access."""
    bypass_reviews: frozenset[str] = frozenset()
    """Logins and slugs of apps that need no review."""


@dataclass(slots=True, eq=False)
class Ruleset:
    id: int
    name: str
    branches: tuple[str, ...]
    """Patterns of refs, or ~DEFAULT_BRANCH, ~ALL."""
    rules: list[dict[str, Any]]
    """Rules as in the API: type and parameters."""
    enforcement: Literal["active", "evaluate", "disabled"] = "active"
    bypass: dict[str, Literal["always", "pull_request", "exempt"]] = field(default_factory=dict)
    """Login or slug of an app -> how it may bypass."""
    organization: bool = False
    created_s: float = 0.0


@dataclass(slots=True, eq=False)
class FakeGitHubTimelineEntry:
    """Represent an entry of a pull request's timeline."""

    action: str
    """Name of the action in webhooks."""
    who: FakeGitHubAccount
    at_s: float
    label: str = ""


@dataclass(slots=True, eq=False)
class FakeGitHubPull:
    """Hold a pull request, as GitHub does."""

    number: int
    id: int
    repository: FakeGitHubRepository
    head_repository: FakeGitHubRepository | None
    """Repository of the head; None: the fork was deleted."""
    head_label: str
    """owner:branch, kept when the fork is deleted."""
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    user: FakeGitHubAccount
    title: str
    body: str | None
    created_s: float
    updated_s: float
    draft: bool = False
    state: Literal["open", "closed"] = "open"
    closed_s: float | None = None
    merged: bool = False
    merged_by: FakeGitHubAccount | None = None
    merge_commit_sha: str | None = None
    labels: list[FakeGitHubLabel] = field(default_factory=list)
    comments: list[FakeGitHubComment] = field(default_factory=list)
    reviews: list[FakeGitHubReview] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    deeds: list[FakeGitHubTimelineEntry] = field(default_factory=list)
    test_merge: tuple[str, str] | None = None
    """Head and base for which mergeability was last computed."""
    times_asked: int = 0
    """Number of times that mergeability was requested since it became outdated."""


@dataclass(slots=True, eq=False)
class FakeGitHubRepository:
    """Hold a repository, as GitHub does."""

    id: int
    owner: FakeGitHubAccount
    name: str
    git_dir: Path
    default_branch: str = "main"
    private: bool = False
    archived: bool = False
    fork_of: FakeGitHubRepository | None = None
    created_s: float = 0.0
    pushed_s: float = 0.0
    allow_merge_commit: bool = True
    allow_squash_merge: bool = True
    allow_rebase_merge: bool = True
    roles: dict[str, str] = field(default_factory=dict)
    """Login -> role."""
    labels: dict[str, FakeGitHubLabel] = field(default_factory=dict)
    pulls: dict[int, FakeGitHubPull] = field(default_factory=dict)
    statuses: dict[str, list[FakeGitHubStatus]] = field(default_factory=dict)
    check_runs: dict[int, CheckRun] = field(default_factory=dict)
    protections: list[FakeGitHubProtection] = field(default_factory=list)
    rulesets: list[Ruleset] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    """Commits whose signatures GitHub shows as verified."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def role(self, login: str) -> str:
        """Return the role of an account, or an empty string if it has none."""
        return "admin" if login == self.owner.login else self.roles.get(login, "" if self.private else "read")


@dataclass(slots=True)
class FakeGitHubWorld:
    """Hold the state of the forge."""

    root: Path
    clock: Clock = field(default_factory=Clock)
    accounts: dict[str, FakeGitHubAccount] = field(default_factory=dict)
    repositories: dict[str, FakeGitHubRepository] = field(default_factory=dict)
    """Full name -> repository."""
    moved: dict[str, str] = field(default_factory=dict)
    """Old full name -> new one."""
    apps: dict[int, App] = field(default_factory=dict)
    installations: dict[int, FakeGitHubInstallation] = field(default_factory=dict)
    tokens: dict[str, FakeGitHubToken] = field(default_factory=dict)
    mergeability_asks: int = 1
    """Number of answers that leave open whether a pull request can be merged."""
    token_life_s: float = 3600.0
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def account(self, login: str, kind: Literal["User", "Organization", "Bot"] = "User") -> FakeGitHubAccount:
        """Return the account with that login; create it if it is new."""
        if login not in self.accounts:
            self.accounts[login] = FakeGitHubAccount(login, next(self.ids), kind)
        return self.accounts[login]

    def repository(self, full_name: str) -> FakeGitHubRepository | None:
        """Return a repository by its present name."""
        found = {name.lower(): one for name, one in self.repositories.items()}
        return found.get(full_name.lower())

    def installation_of(self, repository: FakeGitHubRepository) -> FakeGitHubInstallation | None:
        """Return the account that owns the repository."""
        for one in self.installations.values():
            if one.account is repository.owner and (one.projects is None or repository.full_name in one.projects):
                return one
        return None
