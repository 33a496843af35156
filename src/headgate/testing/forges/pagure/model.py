"""Hold the state of a stand-in for Pagure, render it as Pagure's API does, and send it to the webhooks of projects."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from headgate.testing.forges.github.mail import Delivery, Mail
from headgate.testing.forges.github.model import Clock, FakeGitHubAccount

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

Shown = dict[str, Any]
"""JSON of the API."""


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
    """Commit that a comment on a line concerns; None: the comment is not on a line."""


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
    """Hold a pull request, as Pagure does."""

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
        """Return the branch into which it is to be merged, as `hosts` names it."""
        return self.project

    @property
    def head_sha(self) -> str:
        """Return its head, as `hosts` names it."""
        return self.commit_stop

    @property
    def score(self) -> int:
        """Return the votes for it minus those against it; a user with both counts twice."""
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
    """Hold the state of the forge."""

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
    """Whether requested merges really happen."""
    sha256: bool = True
    """Whether deliveries carry the SHA-256 signature, too."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def account(self, login: str) -> FakeGitHubAccount:
        """Return the account with that login; create it if it is new."""
        if login not in self.accounts:
            self.accounts[login] = FakeGitHubAccount(login, next(self.ids))
        return self.accounts[login]

    def level(self, project: FakePagureProject, login: str) -> str:
        """Return the access level of a user in the project; empty: that of everybody."""
        found = [project.access[login]] if login in project.access else []
        found += [level for name, level in project.groups.items() if login in self.groups.get(name, ())]
        found += ["owner"] if login == project.owner.login else []
        return min(found, key=LEVELS.index, default="")

    def commits(self, project: FakePagureProject, login: str) -> bool:
        """Return whether a user may write to the project."""
        return self.level(project, login) in ("owner", "admin", "commit")


def stamp(at_s: float) -> str:
    """Return a time as the API writes it."""
    return str(int(at_s))


@dataclass(frozen=True, slots=True)
class FakePagureShows:
    """Render JSON."""

    world: FakePagureWorld
    web: str
    """Address of the instance, with its path."""

    def user(self, one: FakeGitHubAccount | None) -> Shown | None:
        """Return an account."""
        if one is None:
            return None
        path = f"user/{one.login}"
        name = one.name or one.login
        return {"name": one.login, "fullname": name, "url_path": path, "full_url": f"{self.web}/{path}"}

    def project(self, one: FakePagureProject | None) -> Shown | None:
        """Return a project."""
        if one is None:
            return None
        people = {level: [login for login, of in one.access.items() if of == level] for level in LEVELS}
        people["owner"] = [one.owner.login]
        groups = {level: [name for name, of in one.groups.items() if of == level] for level in LEVELS[1:]}
        namespace, _, name = one.fullname.rpartition("/")
        path = one.fullname.replace("forks/", "fork/", 1)
        return {
            "id": one.id, "name": name, "fullname": one.fullname, "namespace": namespace or None, "url_path": path,
            "full_url": f"{self.web}/{path}", "access_users": people, "access_groups": groups, "tags": [],
            "user": self.user(one.owner), "description": "", "parent": None, "close_status": [], "custom_keys": [],
            "milestones": {}, "priorities": {}, "date_created": "1", "date_modified": "1",
        }  # fmt: skip

    def comment(self, one: FakePagureComment) -> Shown:
        """Return a comment."""
        return {
            "id": one.id, "comment": one.text, "user": self.user(one.user), "date_created": stamp(one.at_s),
            "notification": one.notification, "commit": one.commit, "filename": "a.txt" if one.commit else None,
            "line": 1 if one.commit else None, "tree": None, "parent": None, "edited_on": None, "editor": None,
            "reactions": {},
        }  # fmt: skip

    def request(self, one: FakePagureRequest) -> Shown:
        """Return a pull request with all its comments."""
        threshold = one.project.threshold
        return {
            "id": one.id, "uid": one.uid, "title": one.title, "branch": one.branch, "branch_from": one.branch_from,
            "project": self.project(one.project), "repo_from": self.project(one.project_from), "remote_git": None,
            "full_url": f"{self.web}/{one.project.fullname}/pull-request/{one.id}",
            "date_created": stamp(one.created_s), "updated_on": stamp(one.updated_s),
            "last_updated": stamp(one.updated_s), "closed_at": None, "closed_by": self.user(one.closed_by),
            "user": self.user(one.user), "assignee": self.user(one.assignee), "status": one.status,
            "commit_start": one.commit_start, "commit_stop": one.commit_stop, "initial_comment": one.initial_comment,
            "cached_merge_status": one.merge_status, "tags": list(one.tags),
            "threshold_reached": one.score >= threshold if threshold > 0 else None,
            "comments": [self.comment(each) for each in one.comments],
        }  # fmt: skip

    def flag(self, one: FakePagureFlag) -> Shown:
        """Return a flag."""
        return {
            "comment": one.comment, "date_created": stamp(one.created_s), "date_updated": stamp(one.updated_s),
            "percent": None, "status": one.status, "url": one.url, "user": self.user(one.user),
            "username": one.username,
        }  # fmt: skip


@dataclass(slots=True)
class FakePagureHookDelivery(Delivery):
    """Represent one delivery of Pagure."""

    project: str = ""
    instance: str = ""
    sha256: bool = True

    def headers(self) -> dict[str, str]:
        """Return the headers of one delivery as Pagure sends them; see `Delivery`."""
        found = {
            "Content-Type": "application/json",
            "X-Pagure": self.instance,
            "X-Pagure-project": self.project,
            "X-Pagure-Signature": self._mac("sha1"),
            "X-Pagure-Topic": self.event,
        }
        return found | ({"X-Pagure-Signature-256": self._mac("sha256")} if self.sha256 else {})

    def _mac(self, digest: str) -> str:
        return hmac.new(self.secret.encode(), self.body, getattr(hashlib, digest)).hexdigest()


@dataclass(frozen=True, slots=True)
class FakePagurePost:
    """Send events to the addresses that a project names."""

    world: FakePagureWorld
    shows: FakePagureShows
    mail: Mail
    counted: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def tell(self, project: FakePagureProject, agent: FakeGitHubAccount, topic: str, /, **fields: Any) -> None:
        """Deliver an event of a project."""
        now_s = self.world.clock.now_s()
        fields |= {"agent": agent.login, "pagure_instance": self.shows.web, "project_fullname": project.fullname}
        id = f"2026-{uuid.uuid4()}"
        message = {"topic": topic, "msg": fields, "timestamp": int(now_s), "msg_id": id, "i": next(self.counted)}
        body = msgspec.json.encode(message, order="sorted")
        named: dict[str, Any] = {"project": project.fullname, "instance": self.shows.web, "sha256": self.world.sha256}
        for url in (project.options["Web-hooks"] or "").split():
            number, token = next(self.world.ids), project.hook_token
            one = FakePagureHookDelivery(number, id, topic, None, body, url, token, 0, None, project.id, now_s, **named)
            self.mail.post(one)

    def of_request(self, request: FakePagureRequest, agent: FakeGitHubAccount, topic: str, /, **more: Any) -> None:
        """Deliver an event of a pull request."""
        request.updated_s = self.world.clock.now_s()
        self.tell(request.project, agent, f"pull-request.{topic}", pullrequest=self.shows.request(request), **more)
