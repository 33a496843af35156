"""Answer the calls of the REST API that the stand-in has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from headgate.testing.forges.gitea import model
from headgate.testing.forges.gitea.acts import FakeGiteaActs, FakeGiteaRefused
from headgate.testing.forges.gitea.views import FakeGiteaShows, Shown
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubAccount, FakeGitHubLabel

T = TypeVar("T")
GONE = "The target couldn't be found."


@dataclass(slots=True)
class FakeGiteaCall:
    """Represent one request."""

    world: model.FakeGiteaWorld
    shows: FakeGiteaShows
    acts: FakeGiteaActs
    asker: FakeGitHubAccount
    path: dict[str, str]
    query: dict[str, str]
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer."""

    @property
    def repository(self) -> model.FakeGiteaRepository:
        """Return the repository that the path names. Raise FakeGiteaRefused."""
        found = self.world.repositories.get(f"{self.path['owner']}/{self.path['repo']}")
        if found is None or not found.may(self.asker.login, "read"):
            raise FakeGiteaRefused(404, GONE)
        return found

    @property
    def pull(self) -> model.FakeGiteaPull:
        """Return the pull request that the path names.  Raise FakeGiteaRefused."""
        found = self.repository.pulls.get(int(self.path["index"]))
        if found is None:
            raise FakeGiteaRefused(404, GONE)
        return found

    def needs(self, level: str) -> None:
        """Require a permission. Raise FakeGiteaRefused for callers without it."""
        if not self.repository.may(self.asker.login, level):
            raise FakeGiteaRefused(403, f"user should have a permission to {level}")

    def page(self, all_: Sequence[T]) -> list[T]:
        """Return the requested page."""
        size = min(int(self.query.get("limit", 30)), self.world.page_max)
        at = (max(1, int(self.query.get("page", 1))) - 1) * size
        self.headers["X-Total-Count"] = str(len(all_))
        return list(all_[at : at + size])


Answered = tuple[int, Any]


class FakeGiteaRoute(NamedTuple):
    """Declare one call."""

    method: str
    template: str
    answer: Callable[[FakeGiteaCall], Answered]


def _user(call: FakeGiteaCall) -> Answered:
    return 200, call.shows.user(call.asker)


def _pulls(call: FakeGiteaCall) -> Answered:
    wanted = call.query.get("state", "open")
    found = [one for one in call.repository.pulls.values() if wanted in ("all", one.state)]
    if call.query.get("sort") != "oldest":
        found.reverse()
    return 200, [call.shows.pull(one, asks=False) for one in call.page(found)]


def _pull(call: FakeGiteaCall) -> Answered:
    return 200, call.shows.pull(call.pull)


def _reviews(call: FakeGiteaCall) -> Answered:
    pull = call.pull
    return 200, [call.shows.review(pull, one) for one in call.page(pull.reviews)]


def _review(call: FakeGiteaCall) -> Answered:
    body = call.body
    notes = tuple((one["path"], int(one["new_position"]), one["body"]) for one in body.get("comments") or ())
    known = {one.path for one in hosts.files_of(call.pull, hosts.heads(call.repository)[call.pull.base_ref])}
    # Gitea breaks inside at a comment on a file that the pull request does not change.
    if any(path not in known for path, _, _ in notes):
        raise FakeGiteaRefused(500, "fatal: no such path in the diff")
    event = {"": "COMMENT"}.get(body.get("event", ""), body.get("event", ""))
    if event not in ("APPROVED", "REQUEST_CHANGES", "COMMENT"):
        raise FakeGiteaRefused(422, f"unknown event {event}")
    one = call.acts.review(call.pull, call.asker, event, body.get("body", ""), body.get("commit_id", ""), notes)
    return 200, call.shows.review(call.pull, one)


def _change(call: FakeGiteaCall) -> Answered:
    if call.body.get("state") == "closed" and call.pull.state == "open":
        call.acts.close(call.pull, call.asker)
    return 201, call.shows.pull(call.pull)


def _merge(call: FakeGiteaCall) -> Answered:
    body = call.body
    if body["Do"] == "manually-merged":
        call.acts.mark_merged(call.pull, call.asker, body.get("MergeCommitID", ""))
        return 200, None
    if body.get("force_merge") or body.get("merge_when_checks_succeed"):
        raise FakeGiteaRefused(422, "nobody who gates asks for that")
    title, text = body.get("MergeTitleField", ""), body.get("MergeMessageField", "")
    call.acts.merge(call.pull, call.asker, body["Do"], body.get("head_commit_id", ""), title, text)
    return 200, None


def _comments(call: FakeGiteaCall) -> Answered:
    since = call.query.get("since")
    at_s = int(datetime.fromisoformat(since).timestamp()) if since else 0
    found = [one for one in call.pull.comments if one.updated_s >= at_s]
    call.headers["X-Total-Count"] = str(len(found))
    return 200, [call.shows.comment(call.pull, one) for one in found]


def _comment(call: FakeGiteaCall) -> Answered:
    if not call.body["body"]:
        raise FakeGiteaRefused(422, "[Body]: Required")
    return 201, call.shows.comment(call.pull, call.acts.comment(call.pull, call.asker, call.body["body"]))


def _edit_comment(call: FakeGiteaCall) -> Answered:
    for pull in call.repository.pulls.values():
        for one in pull.comments:
            if one.id == int(call.path["id"]):
                if one.user is not call.asker:
                    raise FakeGiteaRefused(403, "")
                call.acts.edit_comment(pull, call.asker, one, call.body["body"])
                return 200, call.shows.comment(pull, one)
    raise FakeGiteaRefused(404, GONE)


def _labels(call: FakeGiteaCall) -> Answered:
    return 200, [call.shows.label(one) for one in call.page([*call.repository.labels.values()])]


def _make_label(call: FakeGiteaCall) -> Answered:
    call.needs("write")
    name = call.body["name"]
    one = FakeGitHubLabel(next(call.world.ids), name, call.body["color"].removeprefix("#"))
    call.repository.labels[name] = one
    return 201, call.shows.label(one)


def _no_labels(call: FakeGiteaCall) -> Answered:
    if call.path["org"] not in call.world.accounts or call.world.accounts[call.path["org"]].kind != "Organization":
        raise FakeGiteaRefused(404, GONE)
    return 200, call.page([])


def _labels_of(call: FakeGiteaCall) -> Answered:
    return 200, [call.shows.label(one) for one in call.pull.labels]


def _put_labels(call: FakeGiteaCall) -> Answered:
    call.needs("write")
    known = {one.id: one for one in call.repository.labels.values()}
    if any(one not in known for one in call.body["labels"]):
        raise FakeGiteaRefused(404, GONE)
    for id in call.body["labels"]:
        call.acts.label(call.pull, call.asker, known[id])
    return 200, [call.shows.label(one) for one in call.pull.labels]


def _take_label(call: FakeGiteaCall) -> Answered:
    call.needs("write")
    found = next((one for one in call.pull.labels if one.id == int(call.path["id"])), None)
    if found is None:
        raise FakeGiteaRefused(422, "label does not exist")
    call.acts.label(call.pull, call.asker, found, off=True)
    return 204, None


def _combined(call: FakeGiteaCall) -> Answered:
    sha, found = call.path["ref"], model.newest(call.repository, call.path["ref"])
    if not hosts.has(call.repository, sha):
        raise FakeGiteaRefused(404, GONE)
    worst = ("error", "failure", "warning", "pending", "success")
    states = {one.state for one in found}
    combined: Shown = {
        "state": next((one for one in worst if one in states), "pending"), "sha": sha, "total_count": len(found),
        "statuses": [call.shows.status(call.repository, sha, one) for one in call.page(found)],
        "repository": call.shows.repository(call.repository), "commit_url": "", "url": "",
    }  # fmt: skip
    return 200, combined


def _status(call: FakeGiteaCall) -> Answered:
    call.needs("write")
    body, sha = call.body, call.path["sha"]
    if body["state"] not in ("pending", "success", "error", "failure", "warning"):
        raise FakeGiteaRefused(422, "unknown state")
    one = call.acts.status(
        call.repository, call.asker, sha, body["state"], body.get("context", "default"), body.get("description", ""),
        body.get("target_url", ""),
    )  # fmt: skip
    return 201, call.shows.status(call.repository, sha, one)


def _branches(call: FakeGiteaCall) -> Answered:
    names = sorted(hosts.heads(call.repository))
    return 200, [call.shows.branch(call.repository, name, call.asker) for name in call.page(names)]


def _branch(call: FakeGiteaCall) -> Answered:
    if call.path["branch"] not in hosts.heads(call.repository):
        raise FakeGiteaRefused(404, GONE)
    return 200, call.shows.branch(call.repository, call.path["branch"], call.asker)


def _protections(call: FakeGiteaCall) -> Answered:
    call.needs("admin")
    return 200, [call.shows.protection(one) for one in call.repository.protections]


def _commit(call: FakeGiteaCall) -> Answered:
    if not hosts.has(call.repository, call.path["sha"]):
        raise FakeGiteaRefused(404, GONE)
    one, at = hosts.opened(call.repository)[call.path["sha"]], call.shows.api
    tree = {"url": f"{at}/git/trees/{one.tree_id}", "sha": str(one.tree_id)}
    return 200, {
        "url": at, "sha": str(one.id), "html_url": at, "author": None, "committer": None, "parents": [],
        "commit": {"url": at, "message": one.message, "tree": tree},
    }  # fmt: skip


def _permission(call: FakeGiteaCall) -> Answered:
    name = call.path["collaborator"]
    if call.asker.login != name:
        call.needs("admin")
    if name not in call.world.accounts:
        raise FakeGiteaRefused(404, GONE)
    role = call.repository.role(name)
    return 200, {"permission": role, "role_name": role, "user": call.shows.user(call.world.accounts[name])}


_REPO = "/repos/{owner}/{repo}"
ROUTES = [
    FakeGiteaRoute("GET", "/user", _user),
    FakeGiteaRoute("GET", "/orgs/{org}/labels", _no_labels),
    FakeGiteaRoute("GET", f"{_REPO}/pulls", _pulls),
    FakeGiteaRoute("GET", f"{_REPO}/pulls/{{index}}", _pull),
    FakeGiteaRoute("PATCH", f"{_REPO}/pulls/{{index}}", _change),
    FakeGiteaRoute("GET", f"{_REPO}/pulls/{{index}}/reviews", _reviews),
    FakeGiteaRoute("POST", f"{_REPO}/pulls/{{index}}/reviews", _review),
    FakeGiteaRoute("POST", f"{_REPO}/pulls/{{index}}/merge", _merge),
    FakeGiteaRoute("GET", f"{_REPO}/issues/{{index}}/comments", _comments),
    FakeGiteaRoute("POST", f"{_REPO}/issues/{{index}}/comments", _comment),
    FakeGiteaRoute("PATCH", f"{_REPO}/issues/comments/{{id}}", _edit_comment),
    FakeGiteaRoute("GET", f"{_REPO}/issues/{{index}}/labels", _labels_of),
    FakeGiteaRoute("POST", f"{_REPO}/issues/{{index}}/labels", _put_labels),
    FakeGiteaRoute("DELETE", f"{_REPO}/issues/{{index}}/labels/{{id}}", _take_label),
    FakeGiteaRoute("GET", f"{_REPO}/labels", _labels),
    FakeGiteaRoute("POST", f"{_REPO}/labels", _make_label),
    FakeGiteaRoute("GET", f"{_REPO}/commits/{{ref}}/status", _combined),
    FakeGiteaRoute("POST", f"{_REPO}/statuses/{{sha}}", _status),
    FakeGiteaRoute("GET", f"{_REPO}/branches", _branches),
    FakeGiteaRoute("GET", f"{_REPO}/branches/{{branch}}", _branch),
    FakeGiteaRoute("GET", f"{_REPO}/branch_protections", _protections),
    FakeGiteaRoute("GET", f"{_REPO}/git/commits/{{sha}}", _commit),
    FakeGiteaRoute("GET", f"{_REPO}/collaborators/{{collaborator}}/permission", _permission),
]
