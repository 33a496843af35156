"""Hold the state of a stand-in for Gitea, and check pull requests against the protection of their branch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from headgate.testing.forges.github import hosts, model

LEVELS = ("none", "read", "write", "admin", "owner")
"""Levels of access, from the least to the most."""
DRAFTS = ("wip:", "[wip]")
"""Beginnings of titles that make drafts."""


@dataclass(slots=True, eq=False)
class FakeGiteaToken:
    account: model.FakeGitHubAccount
    revoked: bool = False


@dataclass(slots=True, eq=False)
class FakeGiteaHook:
    """Represent a webhook of all repositories."""

    url: str
    secret: str
    forgejo: bool = False
    """Whether it is a webhook of Forgejo, which sends its own headers besides those of Gitea."""


@dataclass(slots=True, eq=False)
class FakeGiteaReview:
    id: int
    user: model.FakeGitHubAccount
    state: Literal["APPROVED", "REQUEST_CHANGES", "COMMENT", "REQUEST_REVIEW"]
    body: str
    commit_id: str
    at_s: float
    official: bool
    dismissed: bool = False
    notes: tuple[tuple[str, int, str], ...] = ()
    """Path, line and text of each comment on a line."""


@dataclass(slots=True, eq=False)
class FakeGiteaProtection:
    """Protect the branches that a rule's name matches."""

    name: str
    approvals: int = 0
    contexts: tuple[str, ...] | None = None
    """Patterns of required statuses; None: none are required."""
    mergers: frozenset[str] | None = None
    """Logins that may merge; None: everybody with write access."""
    pushers: frozenset[str] = frozenset()
    """Logins that may push."""
    approvers: frozenset[str] | None = None
    """Logins whose approvals count; None: those of everybody with write access."""
    block_on_rejected_reviews: bool = False
    block_on_official_review_requests: bool = False
    block_on_outdated_branch: bool = False
    ignore_stale_approvals: bool = False
    protected_files: str = ""


@dataclass(slots=True, eq=False)
class FakeGiteaPull:
    """Hold a pull request, as Gitea does."""

    number: int
    id: int
    repository: FakeGiteaRepository
    head_repository: FakeGiteaRepository | None
    """Repository of the head; None: the fork was deleted."""
    head_ref: str
    head_sha: str
    base_ref: str
    user: model.FakeGitHubAccount
    title: str
    body: str
    created_s: float
    updated_s: float
    state: Literal["open", "closed"] = "open"
    closed_s: float | None = None
    merged_by: model.FakeGitHubAccount | None = None
    merge_commit_sha: str = ""
    base_at_merge: str = ""
    labels: list[model.FakeGitHubLabel] = field(default_factory=list)
    comments: list[model.FakeGitHubComment] = field(default_factory=list)
    reviews: list[FakeGiteaReview] = field(default_factory=list)
    checked: tuple[str, str] | None = None
    """Head and base for which mergeability was last computed."""
    times_asked: int = 0
    """Number of times that mergeability was requested since it became outdated."""

    @property
    def merged(self) -> bool:
        return bool(self.merge_commit_sha)

    @property
    def draft(self) -> bool:
        return self.title.lower().startswith(DRAFTS)


@dataclass(slots=True, eq=False)
class FakeGiteaRepository:
    """Hold a repository, as Gitea does."""

    id: int
    owner: model.FakeGitHubAccount
    name: str
    git_dir: Path
    default_branch: str = "main"
    private: bool = False
    archived: bool = False
    created_s: float = 0.0
    styles: frozenset[str] = frozenset({"merge", "rebase", "rebase-merge", "squash"})
    """Permitted ways to merge; one more is `manually-merged`, which records the commit that merged it."""
    detects_merges: bool = True
    """Whether the forge detects that a push merged a pull request (`autodetect_manual_merge`)."""
    roles: dict[str, str] = field(default_factory=dict)
    """Login -> level."""
    labels: dict[str, model.FakeGitHubLabel] = field(default_factory=dict)
    pulls: dict[int, FakeGiteaPull] = field(default_factory=dict)
    statuses: dict[str, list[model.FakeGitHubStatus]] = field(default_factory=dict)
    protections: list[FakeGiteaProtection] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def role(self, login: str) -> str:
        """Return the role of an account."""
        # Everybody may read a public repository.
        return "owner" if login == self.owner.login else self.roles.get(login, "none" if self.private else "read")

    def may(self, login: str, level: str) -> bool:
        """Return whether an account has at least this access level."""
        return LEVELS.index(self.role(login)) >= LEVELS.index(level)


@dataclass(slots=True)
class FakeGiteaWorld:
    """Hold the state of the forge."""

    root: Path
    clock: model.Clock = field(default_factory=model.Clock)
    accounts: dict[str, model.FakeGitHubAccount] = field(default_factory=dict)
    repositories: dict[str, FakeGiteaRepository] = field(default_factory=dict)
    """Full name -> repository."""
    moved: dict[str, str] = field(default_factory=dict)
    """Old full name -> new one."""
    tokens: dict[str, FakeGiteaToken] = field(default_factory=dict)
    hooks: list[FakeGiteaHook] = field(default_factory=list)
    mergeability_asks: int = 1
    """Number of answers that leave open whether a pull request can be merged."""
    page_max: int = 50
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def account(self, login: str, kind: Literal["User", "Organization"] = "User") -> model.FakeGitHubAccount:
        """Return the account with that login; create it if it is new."""
        if login not in self.accounts:
            self.accounts[login] = model.FakeGitHubAccount(login, next(self.ids), kind)
        return self.accounts[login]


def protection_of(repository: FakeGiteaRepository, branch: str) -> FakeGiteaProtection | None:
    """Return the protection rule of a branch: the first that matches."""
    return next((one for one in repository.protections if fnmatchcase(branch, one.name)), None)


def official(repository: FakeGiteaRepository, branch: str, who: model.FakeGitHubAccount) -> bool:
    """Return whether an account's review counts for a branch."""
    rule = protection_of(repository, branch)
    if rule is not None and rule.approvers is not None:
        return who.login in rule.approvers
    return repository.may(who.login, "write")


def newest(repository: FakeGiteaRepository, sha: str) -> list[model.FakeGitHubStatus]:
    """Return the newest status of each context."""
    # Statuses are in order of time, so the last one of a context remains.
    found = {one.context: one for one in repository.statuses.get(sha, ())}
    return sorted(found.values(), key=lambda one: one.id)


def may_merge(repository: FakeGiteaRepository, branch: str, who: model.FakeGitHubAccount) -> bool:
    """Return whether an account may merge into a branch."""
    rule = protection_of(repository, branch)
    named = rule is None or rule.mergers is None or who.login in rule.mergers
    return named and repository.may(who.login, "write")


def mergeable(world: FakeGiteaWorld, pull: FakeGiteaPull, *, asks: bool = True) -> bool | None:
    """Return whether it merges without conflicts; None: Gitea is still computing that. Each request brings the end of
    the computation nearer."""
    base = hosts.heads(pull.repository).get(pull.base_ref)
    if base is None:
        return False
    if pull.checked != (pull.head_sha, base):
        if pull.times_asked < world.mergeability_asks:
            pull.times_asked += asks
            return None
        pull.checked, pull.times_asked = (pull.head_sha, base), 0
    return hosts.merged_tree(pull.repository, base, pull.head_sha) is not None


def unmet(pull: FakeGiteaPull) -> Iterator[str]:
    """Yield the missing requirements in Gitea's words."""
    rule = protection_of(pull.repository, pull.base_ref)
    if rule is None:
        return
    if rule.contexts is not None and not _good(rule.contexts, newest(pull.repository, pull.head_sha)):
        yield "Not all required status checks successful"
    counted = [one for one in pull.reviews if one.official and not one.dismissed]
    granted = [
        one for one in counted if one.state == "APPROVED" and not (stale(pull, one) and rule.ignore_stale_approvals)
    ]
    if len(granted) < rule.approvals:
        yield "Does not have enough approvals"
    if rule.block_on_rejected_reviews and any(one.state == "REQUEST_CHANGES" for one in counted):
        yield "There are requested changes"
    if rule.block_on_official_review_requests and any(one.state == "REQUEST_REVIEW" for one in counted):
        yield "There are official review requests"
    base = hosts.heads(pull.repository)[pull.base_ref]
    if rule.block_on_outdated_branch and hosts.parted(pull.repository, base, pull.head_sha)[1]:
        yield "The head branch is behind the base branch"
    if rule.protected_files and any(
        fnmatchcase(one.path, pattern)
        for one in hosts.files_of(pull, base)
        for pattern in rule.protected_files.split(";")
    ):
        yield "Changed protected files"


def _good(patterns: tuple[str, ...], statuses: list[model.FakeGitHubStatus]) -> bool:
    """Return whether each pattern matches a status and all matching statuses are good; without patterns, whether all
    statuses are good."""
    required = [[one for one in statuses if fnmatchcase(one.context, pattern)] for pattern in patterns] or [statuses]
    return all(found and all(one.state == "success" for one in found) for found in required)


def stale(pull: FakeGiteaPull, one: FakeGiteaReview) -> bool:
    """Return whether a review is of an earlier head."""
    return one.commit_id != pull.head_sha
