"""The server of the stand-in: who asks, limits, what a test wants to go wrong."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.server import FakeGitHubExchange, FakeGitHubFault
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.http import as_json, failed, fault_at
from headgate.testing.forges.pages import FakePages
from headgate.testing.forges.pagure.actions import PagurePageActions
from headgate.testing.forges.pagure.acts import FakePagureActs, FakePagureRefused
from headgate.testing.forges.pagure.calls import ROUTES, FakePagureCall, FakePagureRoute
from headgate.testing.forges.pagure.state import FakePagureToken, FakePagureWorld
from headgate.testing.forges.pagure.views import FakePagureShows

API = "/api/0"
_NAME = r"(?:fork/[^/]+/)?(?:[^/]+/)?[^/]+"
_GIT = re.compile(r"/(?P<project>.+?)(?:\.git)/(?P<path>info/refs|git-upload-pack|git-receive-pack)")
FORM = "application/x-www-form-urlencoded"


@dataclass(slots=True)
class FakePagureServer:
    """Serve requests."""

    world: FakePagureWorld
    shows: FakePagureShows
    acts: FakePagureActs
    path: str
    """Path prefix, as of an instance below another site."""
    log: list[FakeGitHubExchange] = field(default_factory=list)
    """All API calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Requests in a form that Pagure does not read."""
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
        """Answer for this long that there are too many requests; `after_s` is the Retry-After, if it differs."""
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
        if status == 500:
            return web.Response(status=500, text="<html>Fatal Error (500)</html>", content_type="text/html")
        return as_json(status, answer, headers)

    def _token(self, request: web.Request) -> FakePagureToken | None:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        return self.world.tokens.get(text) if kind == "token" else None

    async def _git(self, request: web.Request) -> web.StreamResponse:
        """Let everybody read what is public, and those who may commit push, with a token as password."""
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
        answer = await hosts.serve_git(request, project, found["path"], lambda ref: ref.startswith("refs/pull/"))
        if found["path"] == "git-receive-pack" and who is not None:
            self.acts.pushed(project, who, before)
        return answer

    def _password(self, request: web.Request) -> FakeGitHubAccount | None:
        """Return who logs in as git does, with a token that may commit."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        token_text = base64.b64decode(text).decode().partition(":")[2] if kind == "Basic" else ""
        token = self.world.tokens.get(token_text)
        return token.account if token is not None and not token.revoked and "commit" in token.acls else None
