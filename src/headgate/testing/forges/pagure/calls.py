"""The calls of the API that the stand-in answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.pagure.acts import FakePagureActs, FakePagureRefused
from headgate.testing.forges.pagure.state import FakePagureProject, FakePagureRequest, FakePagureToken, FakePagureWorld
from headgate.testing.forges.pagure.views import FakePagureShows, Shown


@dataclass(slots=True)
class FakePagureCall:
    """Represent one request."""

    world: FakePagureWorld
    shows: FakePagureShows
    acts: FakePagureActs
    token: FakePagureToken | None
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]

    @property
    def project(self) -> FakePagureProject:
        """Return the one that the path names.  Raise FakePagureRefused."""
        name = self.path["project"]
        found = self.world.projects.get(name.replace("fork/", "forks/", 1) if name.startswith("fork/") else name)
        asker = self.token.account.login if self.token is not None and not self.token.revoked else ""
        if found is None or (found.private and not self.world.level(found, asker)):
            raise FakePagureRefused(404, "Project not found", "ENOPROJECT")
        return found

    @property
    def request(self) -> FakePagureRequest:
        """Return the pull request that the path names.  Raise FakePagureRefused."""
        project = self.project
        if not project.options["pull_requests"]:
            raise FakePagureRefused(404, "Pull-Request have been deactivated for this project", "EPULLREQUESTSDISABLED")
        found = project.requests.get(int(self.path["id"]))
        if found is None:
            raise FakePagureRefused(404, "Pull-Request not found", "ENOREQ")
        return found

    def asker(self, acl: str = "") -> FakeGitHubAccount:
        """Return the owner of a token that permits this. Raise FakePagureRefused."""
        if self.token is None or self.token.revoked:
            why = f"Invalid or expired token. Please visit {self.shows.web}/settings#nav-api-tab to get or renew yours."
            raise FakePagureRefused(401, why, "EINVALIDTOK")
        if acl and acl not in self.token.acls:
            # Pagure gives a missing right the status and code of an invalid token; only `errors` differs.
            raise FakePagureRefused(401, "Invalid or expired token.", "EINVALIDTOK", f"Missing ACLs: {acl}")
        return self.token.account


Answered = tuple[int, Any]


class FakePagureRoute(NamedTuple):
    """Declare one call."""

    method: str
    template: str
    answer: Callable[[FakePagureCall], Answered]


def _whoami(call: FakePagureCall) -> Answered:
    return 200, {"username": call.asker().login}


def _project(call: FakePagureCall) -> Answered:
    return 200, call.shows.project(call.project)


def _options(call: FakePagureCall) -> Answered:
    _modifies(call)
    return 200, {"settings": call.project.options, "status": "ok"}


def _hook_token(call: FakePagureCall) -> Answered:
    _modifies(call)
    return 200, {"webhook": {"token": call.project.hook_token}}


def _modifies(call: FakePagureCall) -> None:
    if call.world.level(call.project, call.asker("modify_project").login) not in ("owner", "admin"):
        raise FakePagureRefused(
            401, "You are not allowed to view the options of this project", "EMODIFYPROJECTNOTALLOWED"
        )


def _group(call: FakePagureCall) -> Answered:
    if call.path["group"] not in call.world.groups:
        raise FakePagureRefused(404, "Group not found", "ENOGROUP")
    return 200, {"name": call.path["group"], "members": sorted(call.world.groups[call.path["group"]])}


def _requests(call: FakePagureCall) -> Answered:
    wanted = call.query.get("status", "Open")
    found = [one for one in call.project.requests.values() if wanted in ("all", one.status)][::-1]
    size = min(int(call.query.get("per_page", 20)), call.world.page_max)
    page = int(call.query.get("page", 1))
    pages = -(-len(found) // size)
    shown = [call.shows.request(one) for one in found[(page - 1) * size : page * size]]
    paging: Shown = {"page": page, "pages": pages, "per_page": size, "first": "", "last": "", "next": "", "prev": ""}
    return 200, {"requests": shown, "total_requests": len(found), "pagination": paging, "args": call.query}


def _request(call: FakePagureCall) -> Answered:
    return 200, call.shows.request(call.request)


def _flags(call: FakePagureCall) -> Answered:
    return 200, {"flags": [call.shows.flag(one) for one in call.request.flags]}


def _flag(call: FakePagureCall) -> Answered:
    asker = call.asker("pull_request_flag")
    flag, word = call.acts.flag_request(call.request, asker, call.form)
    return 200, {"flag": call.shows.flag(flag), "message": f"Flag {word}", "uid": flag.uid, "user": asker.login}


def _comment(call: FakePagureCall) -> Answered:
    asker = call.asker("pull_request_comment")
    if not call.form.get("comment", "").strip():
        errors = {"comment": ["This field is required."]}
        raise FakePagureRefused(400, "Invalid or incomplete input submitted", "EINVALIDREQ", errors)
    call.acts.comment(call.request, asker, call.form["comment"])
    return 200, {"message": "Comment added"}


def _merge(call: FakePagureCall) -> Answered:
    asker = call.asker("pull_request_merge")
    return 200, {"message": call.acts.merge(call.request, asker)}


def _stats(call: FakePagureCall) -> Answered:
    request = call.request
    found = hosts.files_of(request, hosts.heads(request.project)[request.branch])
    return 200, {one.path: {"lines_added": one.added, "lines_removed": one.deleted, "status": "M"} for one in found}


def _has(call: FakePagureCall) -> str:
    if not hosts.has(call.project, call.path["commit"]):
        raise FakePagureRefused(404, "Commit not found in this git repository", "ENOCOMMIT")
    return call.path["commit"]


def _commit_flags(call: FakePagureCall) -> Answered:
    found = call.project.flags.get(_has(call), [])
    return 200, {"flags": [call.shows.flag(one) for one in found], "total_flags": len(found)}


def _commit_flag(call: FakePagureCall) -> Answered:
    asker, commit = call.asker("commit_flag"), _has(call)
    flag, word = call.acts.flag(call.project.flags.setdefault(commit, []), asker, call.form)
    call.acts.post.tell(call.project, asker, f"commit.flag.{word}", flag=call.shows.flag(flag))
    shown = call.shows.flag(flag) | {"commit_hash": commit}
    return 200, {"flag": shown, "message": f"Flag {word}", "uid": flag.uid}


def _branches(call: FakePagureCall) -> Answered:
    heads = hosts.heads(call.project)
    with_commits = call.query.get("with_commits", "").lower() in ("true", "1")
    return 200, {"branches": heads if with_commits else sorted(heads), "total_branches": len(heads)}


_PULL = "/{project}/pull-request/{id}"
ROUTES = [
    FakePagureRoute("POST", "/-/whoami", _whoami),
    FakePagureRoute("GET", "/group/{group}", _group),
    FakePagureRoute("GET", "/{project}/options", _options),
    FakePagureRoute("GET", "/{project}/webhook/token", _hook_token),
    FakePagureRoute("GET", "/{project}/git/branches", _branches),
    FakePagureRoute("GET", "/{project}/c/{commit}/flag", _commit_flags),
    FakePagureRoute("POST", "/{project}/c/{commit}/flag", _commit_flag),
    FakePagureRoute("GET", "/{project}/pull-requests", _requests),
    FakePagureRoute("GET", f"{_PULL}/flag", _flags),
    FakePagureRoute("POST", f"{_PULL}/flag", _flag),
    FakePagureRoute("POST", f"{_PULL}/comment", _comment),
    FakePagureRoute("POST", f"{_PULL}/merge", _merge),
    FakePagureRoute("GET", f"{_PULL}/diffstats", _stats),
    FakePagureRoute("GET", _PULL, _request),
    FakePagureRoute("GET", "/{project}", _project),
]
"""All routes; exact paths come before patterns."""
