"""Show what the stand-in knows as Pagure's API does: times are texts of whole seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.pagure.state import (
    LEVELS,
    FakePagureComment,
    FakePagureFlag,
    FakePagureProject,
    FakePagureRequest,
    FakePagureWorld,
)

Shown = dict[str, Any]


def stamp(at_s: float) -> str:
    """Return a time as the API writes it."""
    return str(int(at_s))


@dataclass(frozen=True, slots=True)
class FakePagureShows:
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
