"""Serve the stand-in for GitLab, with conditional requests, limits and faults."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from aiohttp import web

from headgate.testing.forges.github import hosts
from headgate.testing.forges.gitlab import calls
from headgate.testing.forges.gitlab.acts import FakeGitLabActs, FakeGitLabRefused, GitLabPageActions
from headgate.testing.forges.gitlab.model import DEVELOPER, FakeGitLabProject, FakeGitLabUser, FakeGitLabWorld
from headgate.testing.forges.gitlab.views import FakeGitLabShows
from headgate.testing.forges.pages import FakePages

API = "/api/v4"
LIMIT, WINDOW_S = 2_000, 60
_GIT = re.compile(r"/(?P<project>.+?)(?:\.git)?/(?P<path>info/refs|git-upload-pack|git-receive-pack)")


@dataclass(frozen=True, slots=True)
class FakeGitLabExchange:
    """Record one call with its answer."""

    method: str
    template: str
    query: dict[str, str]
    body: Any
    status: int


@dataclass(slots=True)
class FakeGitLabFault:
    """Make the next calls of a kind fail."""

    method: str
    template: str
    """Path template; empty: all requests; `git`."""
    times: int
    status: int = 502
    done: bool = False
    """Whether the request takes effect and only the answer is lost."""


@dataclass(slots=True)
class FakeGitLabLimits:
    """Limit every caller within a window of time."""

    world: FakeGitLabWorld
    limit: int = LIMIT
    used: dict[str, int] = field(default_factory=dict)
    quiet: dict[str, float] = field(default_factory=dict)
    """Username -> time until which its requests are refused."""

    after_s: int = 60
    """Seconds in the Retry-After header of such a refusal."""

    def punish(self, username: str, seconds: int, after_s: int = 60) -> None:
        """Refuse the user's requests for a while."""
        self.quiet[username], self.after_s = self.world.clock.now_s() + seconds, after_s

    def punished(self, username: str) -> bool:
        """Return whether the user's requests are refused."""
        return self.quiet.get(username, 0.0) > self.world.clock.now_s()

    def headers(self, username: str) -> dict[str, str]:
        """Return the headers of every answer that describe the rate limit."""
        used = self.used[username] = self.used.get(username, 0) + 1
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Observed": str(used),
            "RateLimit-Remaining": str(max(0, self.limit - used)),
            "RateLimit-Reset": str(int(self.world.clock.now_s()) + WINDOW_S),
        }


class _Moved(Exception):
    """Report that the path of a project changed."""


@dataclass(slots=True)
class FakeGitLabServer:
    """Serve requests."""

    world: FakeGitLabWorld
    acts: FakeGitLabActs
    shows: FakeGitLabShows
    limits: FakeGitLabLimits
    log: list[FakeGitLabExchange] = field(default_factory=list)
    """All API calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Failures of the stand-in itself."""
    faults: list[FakeGitLabFault] = field(default_factory=list)
    _routes: list[tuple[re.Pattern[str], calls.FakeGitLabRoute]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for route in calls.ROUTES:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.template))
            self._routes.append((re.compile(pattern), route))

    def application(self) -> web.Application:
        """Return the application for aiohttp."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", API + "/{rest:.*}", self._rest)
        FakePages(GitLabPageActions(self.acts)).add(app, "/{project:.+}/-/merge_requests/{number}")
        app.router.add_route("*", "/{rest:.*}", self._git)
        return app

    def _fault(self, method: str, template: str) -> FakeGitLabFault | None:
        for one in self.faults:
            if one.times and one.method in ("", method) and one.template in ("", template):
                one.times -= 1
                return one
        return None

    async def _rest(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removeprefix(API)
        for pattern, route in self._routes:
            found = pattern.fullmatch(path)
            if found is not None and route.method == request.method:
                break
        else:
            return _json(404, {"error": "404 Not Found"})
        fault = self._fault(route.method, route.template)
        if fault is not None and not fault.done:
            return _broken(fault)
        named = {name: unquote(value) for name, value in found.groupdict().items()}
        answer = self._answer(request, route, named, await request.read())
        # The request was carried out, but its answer is lost.
        return _broken(fault) if fault is not None else answer

    def _answer(
        self, request: web.Request, route: calls.FakeGitLabRoute, named: dict[str, str], body: bytes
    ) -> web.Response:
        username, headers, document = "", dict[str, str](), None
        answer: Any
        try:
            document = msgspec.json.decode(body) if body else {}
            who = self._caller(request.headers.get("Authorization", ""))
            username = who.username
            if self.limits.punished(username):
                retry = {"Retry-After": str(self.limits.after_s), **self.limits.headers(username)}
                self.log.append(FakeGitLabExchange(route.method, route.template, dict(request.query), document, 429))
                return web.Response(status=429, text="Retry later\n", headers=retry)
            self._moved(route, named)
            # Links to further pages must keep `%2F` in the path of a project.
            address = f"{self.shows.web}{request.path if '%' not in request.raw_path else request.raw_path}"
            query = dict(request.query)
            call = calls.FakeGitLabCall(
                self.world, self.acts, self.shows, who, named, query, document, address.partition("?")[0]
            )
            status, answer = route.handler(call)
            headers = call.headers
        except _Moved as moved:
            status, answer, headers = (
                301,
                {"message": f"This resource has been moved to {moved}"},
                {"Location": str(moved)},
            )
        except FakeGitLabRefused as refused:
            status = refused.status
            answer = (
                {"error": "invalid_token", "error_description": refused.message}
                if refused.plain
                else {"message": refused.message}
            )
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            status, answer = 400, {"error": f"{error!r}"}
            # A malformed request is a defect of the client under test, so the tests check this list.
            self.wrong.append(f"{route.method} {route.template}: {error!r}")
        self.log.append(FakeGitLabExchange(route.method, route.template, dict(request.query), document, status))
        return self._sent(request, username, status, answer, headers)

    def _caller(self, header: str) -> FakeGitLabUser:
        """Return the user of a token. Raise FakeGitLabRefused."""
        token = self.world.tokens.get(_bearer(header))
        if token is None:
            raise FakeGitLabRefused(401, "401 Unauthorized")
        if token.revoked:
            raise FakeGitLabRefused(401, "Token was revoked. You have to re-authorize from the user.", plain=True)
        return token.user

    def _moved(self, route: calls.FakeGitLabRoute, named: dict[str, str]) -> None:
        """Redirect reads of a project's former path; writes there are refused."""
        new = self.world.moved.get(named.get("project", ""))
        if new is None:
            return
        # GitLab redirects reads of a moved project, but refuses writes.
        if route.method != "GET":
            raise FakeGitLabRefused(405, "Non GET methods are not allowed for moved projects")
        path = route.template.replace("{project}", str(self.world.projects[new].id))
        for name, value in named.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        raise _Moved(f"{self.shows.web}{API}{path}")

    def _sent(
        self, request: web.Request, username: str, status: int, answer: Any, headers: dict[str, str]
    ) -> web.Response:
        body = msgspec.json.encode(answer)
        headers = {**headers, **self.limits.headers(username)}
        if request.method == "GET" and status == 200:
            headers["ETag"] = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
        return web.Response(status=status, headers=headers, body=body, content_type="application/json")

    async def _git(self, request: web.Request) -> web.StreamResponse:
        fault = self._fault(request.method, "git")
        found = _GIT.fullmatch(request.path)
        if fault is not None or found is None:
            return _broken(fault) if fault is not None else web.Response(status=404)
        project = self.world.projects.get(self.world.moved.get(found["project"], found["project"]))
        writes = "git-receive-pack" in (found["path"], request.query.get("service"))
        try:
            who = self._git_caller(request.headers.get("Authorization", ""))
            if project is None or (project.private and (who is None or project.level(who) < calls.SEES)):
                raise FakeGitLabRefused(
                    401 if who is None else 404, "The project you were looking for could not be found."
                )
            if writes and (who is None or project.level(who) < DEVELOPER):
                raise FakeGitLabRefused(
                    401 if who is None else 403, "You are not allowed to push code to this project."
                )
        except FakeGitLabRefused as refused:
            headers = {"WWW-Authenticate": 'Basic realm="GitLab"'} if refused.status == 401 else {}
            return web.Response(status=refused.status, text=refused.message, headers=headers)
        # The heads before the push show later which branches it moved.
        before = hosts.heads(project) if writes else {}
        answer = await hosts.serve_git(request, project, found["path"], lambda ref: _refuses(project, ref, who))
        if found["path"] == "git-receive-pack" and who is not None:
            self.acts.pushed(project, who, before)
        return answer

    def _git_caller(self, header: str) -> FakeGitLabUser | None:
        kind, _, text = header.partition(" ")
        if kind.lower() != "basic":
            return None
        password = base64.b64decode(text).decode().partition(":")[2]
        # git sends the token as the password, with any user name.
        return self._caller(f"Bearer {password}")


def _refuses(project: FakeGitLabProject, ref: str, who: FakeGitLabUser | None) -> bool:
    """Return whether a push of a ref is refused."""
    # Only GitLab itself writes the refs of merge requests.
    if ref.startswith("refs/merge-requests/") or who is None:
        return True
    return ref.startswith("refs/heads/") and not project.may_push(who, ref.removeprefix("refs/heads/"))


def _bearer(header: str) -> str:
    kind, _, text = header.partition(" ")
    return text if kind.lower() == "bearer" else ""


def _broken(fault: FakeGitLabFault) -> web.Response:
    return web.Response(status=fault.status, text="<html>GitLab is not responding</html>", content_type="text/html")


def _json(status: int, answer: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")
