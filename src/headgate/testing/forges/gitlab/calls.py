"""Answer the calls of the API that the stand-in has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab import model
from headgate.testing.forges.gitlab.acts import FakeGitLabActs, FakeGitLabRefused
from headgate.testing.forges.gitlab.views import FakeGitLabShows, Shown

_STATES = frozenset({"pending", "running", "success", "failed", "canceled", "skipped"})


@dataclass(slots=True)
class FakeGitLabCall:
    """Represent one request to the API."""

    world: model.FakeGitLabWorld
    acts: FakeGitLabActs
    shows: FakeGitLabShows
    who: model.FakeGitLabUser
    named: dict[str, str]
    query: dict[str, str]
    body: Shown
    address: str
    """Address of this call, without its query."""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> model.FakeGitLabProject:
        """Return the project that the path names. Raise FakeGitLabRefused."""
        name = self.named["project"]
        found = self.world.projects.get(name)
        # The API accepts a project's path or its id.
        if found is None and name.isdecimal():
            found = next((one for one in self.world.projects.values() if one.id == int(name)), None)
        # A refusal must not reveal that a private project exists.
        if found is None or (found.private and not found.level(self.who)):
            raise FakeGitLabRefused(404, "404 Project Not Found")
        return found

    @property
    def request(self) -> model.FakeGitLabMergeRequest:
        """Return the merge request that the path names. Raise FakeGitLabRefused."""
        found = self.project.requests.get(int(self.named["iid"]))
        if found is None:
            raise FakeGitLabRefused(404, "404 Not found")
        return found

    def needs(self, level: int) -> None:
        """Require a level of access. Raise FakeGitLabRefused."""
        if self.project.level(self.who) < level:
            raise FakeGitLabRefused(403, "403 Forbidden")

    def page(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return one page, by number or after the last row that the caller has: GitLab offers both."""
        size = min(int(self.query.get("per_page", "20")), 100)
        keyset = self.query.get("pagination") == "keyset"
        at = int(self.query.get("cursor", "0")) if keyset else (int(self.query.get("page", "1")) - 1) * size
        more = at + size < len(rows)
        if more:
            further = {"cursor": at + size} if keyset else {"page": at // size + 2}
            query = "&".join(f"{k}={v}" for k, v in {**self.query, **further}.items())
            self.headers["Link"] = f'<{self.address}?{query}>; rel="next"'
        # As at GitLab, keyset pagination has no total.
        if not keyset:
            self.headers |= {"X-Total": str(len(rows)), "X-Per-Page": str(size)}
            self.headers["X-Next-Page"] = str(at // size + 2) if more else ""
        return rows[at : at + size]


Handler = Callable[[FakeGitLabCall], tuple[int, Any]]


class FakeGitLabRoute(NamedTuple):
    method: str
    template: str
    handler: Handler


def _user(call: FakeGitLabCall) -> tuple[int, Any]:
    return 200, call.shows.user(call.who)


def _project(call: FakeGitLabCall) -> tuple[int, Any]:
    return 200, call.shows.project(call.project)


def _branches(call: FakeGitLabCall) -> tuple[int, Any]:
    project = call.project
    rows = [
        {
            "name": name,
            "commit": {"id": sha},
            "protected": name in project.protected,
            "default": name == project.default_branch,
        }
        for name, sha in sorted(hosts.heads(project).items())
    ]
    return 200, call.page(rows)


def _protected(call: FakeGitLabCall) -> tuple[int, Any]:
    call.needs(model.DEVELOPER)
    rows = [
        {
            "name": one.branch,
            "push_access_levels": [{"access_level": one.push}],
            "merge_access_levels": [{"access_level": one.merge}],
        }
        for one in call.project.protected.values()
    ]
    return 200, call.page(rows)


def _member(call: FakeGitLabCall) -> tuple[int, Any]:
    project = call.project
    for one in call.world.users.values():
        if one.id == int(call.named["user"]) and project.level(one):
            return 200, {**call.shows.user(one), "access_level": project.level(one)}
    raise FakeGitLabRefused(404, "404 Not found")


def _requests(call: FakeGitLabCall) -> tuple[int, Any]:
    found = [one for one in call.project.requests.values() if one.state == call.query.get("state", one.state)]
    order = call.query.get("order_by", "created_at")
    found.sort(key=lambda one: (one.updated_s if order == "updated_at" else one.created_s, one.iid))
    if call.query.get("sort", "desc") == "desc":
        found.reverse()
    return 200, [call.shows.request(one, call.who, asks=False) for one in call.page(found)]


def _request(call: FakeGitLabCall) -> tuple[int, Any]:
    return 200, call.shows.request(call.request, call.who)


def _change(call: FakeGitLabCall) -> tuple[int, Any]:
    call.needs(model.DEVELOPER)
    add, remove = (tuple(filter(None, call.body.get(key, "").split(","))) for key in ("add_labels", "remove_labels"))
    call.acts.label(call.request, call.who, add, remove)
    if call.body.get("state_event") == "close":
        call.acts.close(call.request, call.who)
    return 200, call.shows.request(call.request, call.who)


def _merge(call: FakeGitLabCall) -> tuple[int, Any]:
    body = call.body
    call.acts.merge(
        call.request,
        call.who,
        body.get("sha", ""),
        bool(body.get("squash")),
        body.get("merge_commit_message", ""),
        body.get("squash_commit_message", ""),
    )
    return 200, call.shows.request(call.request, call.who)


def _approvals(call: FakeGitLabCall) -> tuple[int, Any]:
    return 200, call.shows.approvals(call.request, call.who)


def _approve(call: FakeGitLabCall) -> tuple[int, Any]:
    call.acts.approve(call.request, call.who, call.body.get("sha", ""))
    return 201, call.shows.approvals(call.request, call.who)


def _unapprove(call: FakeGitLabCall) -> tuple[int, Any]:
    call.acts.unapprove(call.request, call.who)
    return 201, call.shows.approvals(call.request, call.who)


def _notes(call: FakeGitLabCall) -> tuple[int, Any]:
    rows = sorted(call.request.notes, key=lambda one: one.id, reverse=call.query.get("sort", "desc") == "desc")
    return 200, [call.shows.note(one) for one in call.page(rows)]


def _note(call: FakeGitLabCall) -> tuple[int, Any]:
    made = call.acts.note(call.request, call.who, call.body["body"])
    # A comment that has only quick actions makes no note.
    return (201, call.shows.note(made)) if made is not None else (202, {"summary": ["Done."]})


def _renote(call: FakeGitLabCall) -> tuple[int, Any]:
    note = _named(call)
    if note.author is not call.who:
        raise FakeGitLabRefused(403, "403 Forbidden")
    call.acts.renote(call.request, note, call.body["body"])
    return 200, call.shows.note(note)


def _named(call: FakeGitLabCall) -> model.Note:
    for one in call.request.notes:
        if one.id == int(call.named["note"]):
            return one
    raise FakeGitLabRefused(404, "404 Not found")


def _statuses(call: FakeGitLabCall) -> tuple[int, Any]:
    project, sha, wanted = call.project, call.named["sha"], int(call.query.get("pipeline_id", "0"))
    pipelines = [(ref, id) for (commit, ref), id in project.pipelines.items() if commit == sha]
    rows = [job for ref, id in pipelines if wanted in (0, id) for job in project.jobs(sha, ref)]
    return 200, [call.shows.status(one) for one in call.page(rows)]


def _say_status(call: FakeGitLabCall) -> tuple[int, Any]:
    call.needs(model.DEVELOPER)
    project, sha, body = call.project, call.named["sha"], call.body
    if not hosts.has(project, sha):
        raise FakeGitLabRefused(404, "404 Commit Not Found")
    if body["state"] not in _STATES:
        raise FakeGitLabRefused(400, "state does not have a valid value")
    if len(body.get("description") or "") > 255:
        raise FakeGitLabRefused(400, "description is too long (maximum is 255 characters)")
    # GitLab attaches a status to a pipeline, which is of a commit and a ref.
    ref = body.get("ref") or next((name for name, tip in hosts.heads(project).items() if tip == sha), "")
    if not ref:
        raise FakeGitLabRefused(404, "404 References for commit Not Found")
    if body.get("pipeline_id") and project.pipeline(sha, ref) != body["pipeline_id"]:
        raise FakeGitLabRefused(404, "404 Pipeline Not Found")
    name = body.get("name") or body.get("context") or "default"
    made = call.acts.status(
        project, call.who, sha, ref, name, body["state"], body.get("description"), body.get("target_url")
    )
    return 201, call.shows.status(made)


_P = "/projects/{project}"
_M = _P + "/merge_requests/{iid}"
ROUTES = (
    FakeGitLabRoute("GET", "/user", _user),
    FakeGitLabRoute("GET", _P, _project),
    FakeGitLabRoute("GET", _P + "/repository/branches", _branches),
    FakeGitLabRoute("GET", _P + "/protected_branches", _protected),
    FakeGitLabRoute("GET", _P + "/members/all/{user}", _member),
    FakeGitLabRoute("GET", _P + "/merge_requests", _requests),
    FakeGitLabRoute("GET", _M, _request),
    FakeGitLabRoute("PUT", _M, _change),
    FakeGitLabRoute("PUT", _M + "/merge", _merge),
    FakeGitLabRoute("GET", _M + "/approvals", _approvals),
    FakeGitLabRoute("POST", _M + "/approve", _approve),
    FakeGitLabRoute("POST", _M + "/unapprove", _unapprove),
    FakeGitLabRoute("GET", _M + "/notes", _notes),
    FakeGitLabRoute("POST", _M + "/notes", _note),
    FakeGitLabRoute("PUT", _M + "/notes/{note}", _renote),
    FakeGitLabRoute("GET", _P + "/repository/commits/{sha}/statuses", _statuses),
    FakeGitLabRoute("POST", _P + "/statuses/{sha}", _say_status),
)
SEES = model.REPORTER
"""Lowest access level that can read a private project's code."""
