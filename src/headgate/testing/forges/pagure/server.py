"""Serve the stand-in for Pagure: the calls of its API, pages and git, with tokens, limits and faults."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import web

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.model import FakeGitHubAccount
from headgate.testing.forges.github.server import FakeGitHubExchange, FakeGitHubFault, as_json, failed, fault_at
from headgate.testing.forges.pages import FakePages
from headgate.testing.forges.pagure import model
from headgate.testing.forges.pagure.acts import FakePagureActs, FakePagureRefused, PagurePageActions

API = "/api/0"
FORM = "application/x-www-form-urlencoded"
_NAME = r"(?:fork/[^/]+/)?(?:[^/]+/)?[^/]+"
_GIT = re.compile(r"/(?P<project>.+?)(?:\.git)/(?P<path>info/refs|git-upload-pack|git-receive-pack)")

Answered = tuple[int, Any]
"""Status and JSON."""


@dataclass(slots=True)
class FakePagureCall:
    """Represent one request."""

    world: model.FakePagureWorld
    shows: model.FakePagureShows
    acts: FakePagureActs
    token: model.FakePagureToken | None
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]

    @property
    def project(self) -> model.FakePagureProject:
        """Return the repository that the path names. Raise FakePagureRefused."""
        name = self.path["project"]
        # Addresses begin with `fork/`, but the full names of forks begin with `forks/`.
        found = self.world.projects.get(name.replace("fork/", "forks/", 1) if name.startswith("fork/") else name)
        asker = self.token.account.login if self.token is not None and not self.token.revoked else ""
        # To everybody without access, a private project looks like a missing one.
        if found is None or (found.private and not self.world.level(found, asker)):
            raise FakePagureRefused(404, "Project not found", "ENOPROJECT")
        return found

    @property
    def request(self) -> model.FakePagureRequest:
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
    paging: model.Shown = {
        "page": page,
        "pages": pages,
        "per_page": size,
        "first": "",
        "last": "",
        "next": "",
        "prev": "",
    }
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
# The first match counts, so the project, whose name matches nearly every path, comes last.
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


@dataclass(slots=True)
class FakePagureServer:
    """Serve requests."""

    world: model.FakePagureWorld
    shows: model.FakePagureShows
    acts: FakePagureActs
    path: str
    """Path prefix, as of an instance below another site."""
    log: list[FakeGitHubExchange] = field(default_factory=list)
    """All API calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Requests in a form that Pagure does not accept."""
    faults: list[FakeGitHubFault] = field(default_factory=list)
    after_s: int = 0
    """Seconds in the Retry-After header of a 429, as of a proxy before Pagure."""
    quiet_until_s: float = 0.0
    """Time until which requests are answered with 429."""
    _routes: list[tuple[re.Pattern[str], FakePagureRoute]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for route in ROUTES:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.template))
            pattern = pattern.replace("(?P<project>[^/]+)", f"(?P<project>{_NAME})")
            self._routes.append((re.compile(pattern.replace("(?P<id>[^/]+)", "(?P<id>[0-9]+)")), route))

    def application(self) -> web.Application:
        """Return the application for aiohttp."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", self.path + API + "/{rest:.*}", self._rest)
        FakePages(PagurePageActions(self.acts)).add(app, self.path + "/{project:.+}/pull-request/{number}")
        app.router.add_route("*", self.path + "/{rest:.+}", self._git)
        return app

    def limit(self, seconds: int, after_s: int | None = None) -> None:
        """Answer 429 for this long; `after_s` is the Retry-After, if it differs."""
        self.after_s = seconds if after_s is None else after_s
        self.quiet_until_s = self.world.clock.now_s() + seconds

    async def _rest(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removeprefix(self.path + API)
        for pattern, route in self._routes:
            found = pattern.fullmatch(path)
            if found is not None and route.method == request.method:
                break
        else:
            return as_json(404, {"error": "Not found", "error_code": "ENOCODE"})
        fault = fault_at(self.faults, route.method, route.template)
        if fault is not None and not fault.done:
            return await failed(fault)
        # Recorded, because Pagure reads forms alone, and its answer would only name missing fields.
        if request.method == "POST" and request.content_type != FORM:
            self.wrong.append(f"{route.template}: a form is sent as {request.content_type}")
        form = {name: str(value) for name, value in (await request.post()).items()}
        named = {name: unquote(text) for name, text in found.groupdict().items()}
        answer = self._answer(request, route, named, form)
        # The request was carried out, but its answer is lost.
        return await failed(fault) if fault is not None else answer

    def _answer(
        self, request: web.Request, route: FakePagureRoute, named: dict[str, str], form: dict[str, str]
    ) -> web.StreamResponse:
        headers: dict[str, str] = {}
        answer: Any
        try:
            if self.quiet_until_s > self.world.clock.now_s():
                headers = {"Retry-After": str(self.after_s)}
                raise FakePagureRefused(429, "Too Many Requests")
            token = self._token(request)
            call = FakePagureCall(self.world, self.shows, self.acts, token, named, dict(request.query), form)
            status, answer = route.answer(call)
        except FakePagureRefused as refused:
            status, answer = refused.status, {"error": refused.message, "error_code": refused.code}
            if refused.errors is not None:
                answer["errors"] = refused.errors
        self.log.append(FakeGitHubExchange(route.method, route.template, dict(request.query), form, status, answer))
        # Pagure's page for its own errors is not JSON, even in the API.
        if status == 500:
            return web.Response(status=500, text="<html>Fatal Error (500)</html>", content_type="text/html")
        return as_json(status, answer, headers)

    def _token(self, request: web.Request) -> model.FakePagureToken | None:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        # Pagure's scheme is `token`, not `Bearer`.
        return self.world.tokens.get(text) if kind == "token" else None

    async def _git(self, request: web.Request) -> web.StreamResponse:
        """Allow everybody to read public repositories, and committers to push, with a token as password."""
        found = _GIT.fullmatch(request.path.removeprefix(self.path))
        project = self.world.projects.get(found["project"]) if found is not None else None
        if found is None or project is None or project.private:
            return web.Response(status=404, text="Not found")
        writes = "git-receive-pack" in (found["path"], request.query.get("service"))
        who, before = self._password(request), hosts.heads(project)
        if writes and who is None:
            headers = {"WWW-Authenticate": 'Basic realm="Pagure"'}
            return web.Response(status=401, text="Log in with an API token", headers=headers)
        if writes and who is not None and not self.world.commits(project, who.login):
            return web.Response(status=403, text="You may not push here")
        # Only Pagure itself writes the refs of pull requests.
        answer = await hosts.serve_git(request, project, found["path"], lambda ref: ref.startswith("refs/pull/"))
        if found["path"] == "git-receive-pack" and who is not None:
            self.acts.pushed(project, who, before)
        return answer

    def _password(self, request: web.Request) -> FakeGitHubAccount | None:
        """Return the user who logs in as git does, with a token that may commit."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        # git sends the token as the password, with any user name.
        token_text = base64.b64decode(text).decode().partition(":")[2] if kind == "Basic" else ""
        token = self.world.tokens.get(token_text)
        return token.account if token is not None and not token.revoked and "commit" in token.acls else None
