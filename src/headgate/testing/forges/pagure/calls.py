"""The calls of the API that the stand-in answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.testing.forges.github import hosting
from headgate.testing.forges.github.state import Account
from headgate.testing.forges.pagure.acts import Acts, Refused
from headgate.testing.forges.pagure.shown import Shown, Shows
from headgate.testing.forges.pagure.state import Project, Request, Token, World


@dataclass(slots=True)
class Call:
    """One request."""

    world: World
    shows: Shows
    acts: Acts
    token: Token | None
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]

    @property
    def project(self) -> Project:
        """Return the one that the path names.  Raise Refused."""
        name = self.path["project"]
        found = self.world.projects.get(name.replace("fork/", "forks/", 1) if name.startswith("fork/") else name)
        asker = self.token.account.login if self.token is not None and not self.token.revoked else ""
        if found is None or (found.private and not self.world.level(found, asker)):
            raise Refused(404, "Project not found", "ENOPROJECT")
        return found

    @property
    def request(self) -> Request:
        """Return the pull request that the path names.  Raise Refused."""
        project = self.project
        if not project.options["pull_requests"]:
            raise Refused(404, "Pull-Request have been deactivated for this project", "EPULLREQUESTSDISABLED")
        found = project.requests.get(int(self.path["id"]))
        if found is None:
            raise Refused(404, "Pull-Request not found", "ENOREQ")
        return found

    def asker(self, acl: str = "") -> Account:
        """Return who asks with a token that may do this.  Raise Refused."""
        if self.token is None or self.token.revoked:
            why = f"Invalid or expired token. Please visit {self.shows.web}/settings#nav-api-tab to get or renew yours."
            raise Refused(401, why, "EINVALIDTOK")
        if acl and acl not in self.token.acls:
            raise Refused(401, "Invalid or expired token.", "EINVALIDTOK", f"Missing ACLs: {acl}")
        return self.token.account


Answered = tuple[int, Any]


class Route(NamedTuple):
    """One call."""

    method: str
    template: str
    answer: Callable[[Call], Answered]


def _whoami(call: Call) -> Answered:
    return 200, {"username": call.asker().login}


def _project(call: Call) -> Answered:
    return 200, call.shows.project(call.project)


def _options(call: Call) -> Answered:
    _modifies(call)
    return 200, {"settings": call.project.options, "status": "ok"}


def _hook_token(call: Call) -> Answered:
    _modifies(call)
    return 200, {"webhook": {"token": call.project.hook_token}}


def _modifies(call: Call) -> None:
    if call.world.level(call.project, call.asker("modify_project").login) not in ("owner", "admin"):
        raise Refused(401, "You are not allowed to view the options of this project", "EMODIFYPROJECTNOTALLOWED")


def _group(call: Call) -> Answered:
    if call.path["group"] not in call.world.groups:
        raise Refused(404, "Group not found", "ENOGROUP")
    return 200, {"name": call.path["group"], "members": sorted(call.world.groups[call.path["group"]])}


def _requests(call: Call) -> Answered:
    wanted = call.query.get("status", "Open")
    found = [one for one in call.project.requests.values() if wanted in ("all", one.status)][::-1]
    size = min(int(call.query.get("per_page", 20)), call.world.page_max)
    page = int(call.query.get("page", 1))
    pages = -(-len(found) // size)
    shown = [call.shows.request(one) for one in found[(page - 1) * size : page * size]]
    paging: Shown = {"page": page, "pages": pages, "per_page": size, "first": "", "last": "", "next": "", "prev": ""}
    return 200, {"requests": shown, "total_requests": len(found), "pagination": paging, "args": call.query}


def _request(call: Call) -> Answered:
    return 200, call.shows.request(call.request)


def _flags(call: Call) -> Answered:
    return 200, {"flags": [call.shows.flag(one) for one in call.request.flags]}


def _flag(call: Call) -> Answered:
    asker = call.asker("pull_request_flag")
    flag, word = call.acts.flag_request(call.request, asker, call.form)
    return 200, {"flag": call.shows.flag(flag), "message": f"Flag {word}", "uid": flag.uid, "user": asker.login}


def _comment(call: Call) -> Answered:
    asker = call.asker("pull_request_comment")
    if not call.form.get("comment", "").strip():
        errors = {"comment": ["This field is required."]}
        raise Refused(400, "Invalid or incomplete input submitted", "EINVALIDREQ", errors)
    call.acts.comment(call.request, asker, call.form["comment"])
    return 200, {"message": "Comment added"}


def _merge(call: Call) -> Answered:
    asker = call.asker("pull_request_merge")
    return 200, {"message": call.acts.merge(call.request, asker)}


def _stats(call: Call) -> Answered:
    request = call.request
    found = hosting.files_of(request, hosting.heads(request.project)[request.branch])
    return 200, {one.path: {"lines_added": one.added, "lines_removed": one.deleted, "status": "M"} for one in found}


def _has(call: Call) -> str:
    if not hosting.has(call.project, call.path["commit"]):
        raise Refused(404, "Commit not found in this git repository", "ENOCOMMIT")
    return call.path["commit"]


def _commit_flags(call: Call) -> Answered:
    found = call.project.flags.get(_has(call), [])
    return 200, {"flags": [call.shows.flag(one) for one in found], "total_flags": len(found)}


def _commit_flag(call: Call) -> Answered:
    asker, commit = call.asker("commit_flag"), _has(call)
    flag, word = call.acts.flag(call.project.flags.setdefault(commit, []), asker, call.form)
    call.acts.post.tell(call.project, asker, f"commit.flag.{word}", flag=call.shows.flag(flag))
    shown = call.shows.flag(flag) | {"commit_hash": commit}
    return 200, {"flag": shown, "message": f"Flag {word}", "uid": flag.uid}


def _branches(call: Call) -> Answered:
    heads = hosting.heads(call.project)
    with_commits = call.query.get("with_commits", "").lower() in ("true", "1")
    return 200, {"branches": heads if with_commits else sorted(heads), "total_branches": len(heads)}


_PULL = "/{project}/pull-request/{id}"
ROUTES = [
    Route("POST", "/-/whoami", _whoami),
    Route("GET", "/group/{group}", _group),
    Route("GET", "/{project}/options", _options),
    Route("GET", "/{project}/webhook/token", _hook_token),
    Route("GET", "/{project}/git/branches", _branches),
    Route("GET", "/{project}/c/{commit}/flag", _commit_flags),
    Route("POST", "/{project}/c/{commit}/flag", _commit_flag),
    Route("GET", "/{project}/pull-requests", _requests),
    Route("GET", f"{_PULL}/flag", _flags),
    Route("POST", f"{_PULL}/flag", _flag),
    Route("POST", f"{_PULL}/comment", _comment),
    Route("POST", f"{_PULL}/merge", _merge),
    Route("GET", f"{_PULL}/diffstats", _stats),
    Route("GET", _PULL, _request),
    Route("GET", "/{project}", _project),
]
"""What is named precisely goes before what stands for anything there."""
