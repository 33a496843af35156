"""Hold what a stand-in for Pagure knows: accounts, projects, pull requests and what is said on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headgate.testing.forges.github.state import Clock, FakeGitHubAccount

ACLS = frozenset(
    {"pull_request_merge", "pull_request_flag", "pull_request_comment", "commit_flag", "modify_project", "commit"}
)
"""ACLs of a token with all rights of its owner."""
LEVELS = ("owner", "admin", "commit", "collaborator", "ticket")
OPTIONS: dict[str, Any] = {
    "Enforce_signed-off_commits_in_pull-request": False,
    "Minimum_score_to_merge_pull-request": -1,
    "Only_assignee_can_merge_pull-request": False,
    "Web-hooks": None,
    "always_merge": False,
    "disable_non_fast-forward_merges": False,
    "issue_tracker": True,
    "notify_on_pull-request_flag": False,
    "pull_request_access_only": False,
    "pull_requests": True,
}
"""Default options of a project."""


@dataclass(slots=True, eq=False)
class FakePagureToken:
    account: FakeGitHubAccount
    acls: frozenset[str]
    revoked: bool = False


@dataclass(slots=True, eq=False)
class FakePagureComment:
    id: int
    user: FakeGitHubAccount
    text: str
    at_s: float
    notification: bool = False
    commit: str | None = None
    """Commit that a comment on a line concerns; None: it is no such comment."""


@dataclass(slots=True, eq=False)
class FakePagureFlag:
    uid: str
    user: FakeGitHubAccount
    username: str
    status: str
    comment: str
    url: str
    created_s: float
    updated_s: float


@dataclass(slots=True, eq=False)
class FakePagureRequest:
    id: int
    uid: str
    project: FakePagureProject
    project_from: FakePagureProject | None
    """Project of the source branch; None: the fork was deleted."""
    branch_from: str
    branch: str
    commit_start: str
    commit_stop: str
    user: FakeGitHubAccount | None
    title: str
    initial_comment: str | None
    created_s: float
    updated_s: float
    status: Literal["Open", "Closed", "Merged"] = "Open"
    closed_by: FakeGitHubAccount | None = None
    assignee: FakeGitHubAccount | None = None
    tags: list[str] = field(default_factory=list)
    comments: list[FakePagureComment] = field(default_factory=list)
    flags: list[FakePagureFlag] = field(default_factory=list)
    merge_status: str = "unknown"
    """Status as of the last view of its page."""

    @property
    def repository(self) -> FakePagureProject:
        """Return where it is to be merged, as `hosting` has it."""
        return self.project

    @property
    def head_sha(self) -> str:
        """Return its head, as `hosting` has it."""
        return self.commit_stop

    @property
    def score(self) -> int:
        """Return the votes for it less those against it; a user with both counts twice."""
        comments = [one for one in self.comments if not one.commit]
        up = {one.user.login for one in comments if "+1" in one.text or ":thumbsup:" in one.text}
        down = {one.user.login for one in comments if "-1" in one.text or ":thumbsdown:" in one.text}
        return len(up) - len(down)


@dataclass(slots=True, eq=False)
class FakePagureProject:
    id: int
    fullname: str
    """`name`, `namespace/name`, or `forks/user/…`."""
    owner: FakeGitHubAccount
    git_dir: Path
    hook_token: str
    default_branch: str = "main"
    private: bool = False
    options: dict[str, Any] = field(default_factory=lambda: dict(OPTIONS))
    access: dict[str, str] = field(default_factory=dict)
    """Login -> level."""
    groups: dict[str, str] = field(default_factory=dict)
    """Name of a group -> level."""
    requests: dict[int, FakePagureRequest] = field(default_factory=dict)
    flags: dict[str, list[FakePagureFlag]] = field(default_factory=dict)
    """Commit -> its flags."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def threshold(self) -> int:
        return int(self.options["Minimum_score_to_merge_pull-request"])


@dataclass(slots=True)
class FakePagureWorld:
    """Hold everything that the forge knows."""

    root: Path
    clock: Clock = field(default_factory=Clock)
    accounts: dict[str, FakeGitHubAccount] = field(default_factory=dict)
    projects: dict[str, FakePagureProject] = field(default_factory=dict)
    """Full name -> project."""
    groups: dict[str, set[str]] = field(default_factory=dict)
    """Name -> logins."""
    tokens: dict[str, FakePagureToken] = field(default_factory=dict)
    page_max: int = 100
    announces: bool = True
    """Whether a comment announces new commits."""
    breaks: bool = True
    """Whether a conflicting merge is an internal error, as in many versions."""
    worker: bool = True
    """Whether requested merges are done."""
    sha256: bool = True
    """Whether deliveries carry the SHA-256 signature, too."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def account(self, login: str) -> FakeGitHubAccount:
        """Return the account of that login, made when it is new."""
        if login not in self.accounts:
            self.accounts[login] = FakeGitHubAccount(login, next(self.ids))
        return self.accounts[login]

    def level(self, project: FakePagureProject, login: str) -> str:
        """Return the level of a user there; empty: that of everybody."""
        found = [project.access[login]] if login in project.access else []
        found += [level for name, level in project.groups.items() if login in self.groups.get(name, ())]
        found += ["owner"] if login == project.owner.login else []
        return min(found, key=LEVELS.index, default="")

    def commits(self, project: FakePagureProject, login: str) -> bool:
        """Say whether somebody may write there."""
        return self.level(project, login) in ("owner", "admin", "commit")
