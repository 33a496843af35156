"""The server of the stand-in: who asks, limits, renamed repositories, what a test wants to go wrong."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import msgspec
from aiohttp import web

from headgate.testing.forges.gitea import rules
from headgate.testing.forges.gitea.actions import GiteaPageActions
from headgate.testing.forges.gitea.acts import FakeGiteaActs, FakeGiteaRefused
from headgate.testing.forges.gitea.calls import ROUTES, FakeGiteaCall, FakeGiteaRoute
from headgate.testing.forges.gitea.state import FakeGiteaRepository, FakeGiteaWorld
from headgate.testing.forges.gitea.views import FakeGiteaShows
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.server import FakeGitHubExchange, FakeGitHubFault
from headgate.testing.forges.github.state import FakeGitHubAccount
from headgate.testing.forges.http import as_json, failed, fault_at
from headgate.testing.forges.pages import FakePages

API = "/api/v1"


@dataclass(slots=True)
class FakeGiteaServer:
    """Serve requests."""

    world: FakeGiteaWorld
    shows: FakeGiteaShows
    acts: FakeGiteaActs
    path: str
    """Path prefix, as of an instance below another site."""
    judge: Callable[[FakeGitHubExchange], None] | None = None
    """Checks each exchange; raises when Gitea's own description does not allow it."""
    log: list[FakeGitHubExchange] = field(default_factory=list)
    """All REST calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Errors that the judge found."""
    faults: list[FakeGitHubFault] = field(default_factory=list)
    after_s: int = 0
    """Seconds in the Retry-After header of a 429."""
    quiet_until_s: float = 0.0
    """Time until which requests are answered with 429."""
    _routes: list[tuple[re.Pattern[str], FakeGiteaRoute]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Precise paths come before those that stand for anything there.
        for route in sorted(ROUTES, key=lambda one: one.template.count("{")):
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.template))
            self._routes.append((re.compile(pattern.replace("(?P<branch>[^/]+)", "(?P<branch>.+)")), route))

    def application(self) -> web.Application:
        """Return the application for aiohttp."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", self.path + API + "/{rest:.*}", self._rest)
        FakePages(GiteaPageActions(self.acts)).add(app, self.path + "/{owner}/{name}/pulls/{number}")
        git = "/{owner}/{name}/{path:(info/refs|git-upload-pack|git-receive-pack)}"
        app.router.add_route("*", self.path + git, self._git)
        return app

    def limit(self, seconds: int, after_s: int | None = None) -> None:
        """Answer for this long that there are too many requests; `after_s` is the Retry-After, if it differs."""
        self.after_s = seconds if after_s is None else after_s
        self.quiet_until_s = self.world.clock.now_s() + seconds

    # --- REST

    async def _rest(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removeprefix(self.path + API)
        for pattern, route in self._routes:
            found = pattern.fullmatch(path)
            if found is not None and route.method == request.method:
                break
        else:
            return as_json(404, {"message": "404 page not found"})
        fault = fault_at(self.faults, route.method, route.template)
        if fault is not None and not fault.done:
            return await failed(fault)
        body = await request.read()
        answer = self._answer(request, route, {name: unquote(value) for name, value in found.groupdict().items()}, body)
        return await failed(fault) if fault is not None else answer

    def _answer(self, request: web.Request, route: FakeGiteaRoute, named: dict[str, str], body: bytes) -> web.Response:
        headers: dict[str, str] = {}
        document = None
        try:
            document = msgspec.json.decode(body) if body else None
            asker = self._asker(request)
            if self.quiet_until_s > self.world.clock.now_s():
                headers = {"Retry-After": str(self.after_s)}
                raise FakeGiteaRefused(429, "Too Many Requests")
            new = self.world.moved.get(f"{named.get('owner')}/{named.get('repo')}")
            if new is not None:
                old = f"/repos/{named['owner']}/{named['repo']}"
                headers = {"Location": str(request.url).replace(old, f"/repos/{new}")}
                # 307 keeps method and body of a write; after a 301, clients may turn it into a GET.
                raise FakeGiteaRefused(301 if route.method == "GET" else 307, "Moved")
            call = FakeGiteaCall(self.world, self.shows, self.acts, asker, named, dict(request.query), document)
            status, answer = route.answer(call)
            headers = call.headers
        except FakeGiteaRefused as refused:
            status, answer = refused.status, {"message": str(refused), "url": f"{self.shows.web}/api/swagger"}
        except (KeyError, TypeError, ValueError) as error:
            status, answer = 422, {"message": repr(error), "url": f"{self.shows.web}/api/swagger"}
        self._judged(FakeGitHubExchange(route.method, route.template, dict(request.query), document, status, answer))
        return as_json(status, answer, headers)

    def _asker(self, request: web.Request) -> FakeGitHubAccount:
        """Return the caller. Raise FakeGiteaRefused."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            text = base64.b64decode(text).decode().partition(":")[2]
        found = self.world.tokens.get(text)
        if found is None or found.revoked:
            raise FakeGiteaRefused(401, "invalid username, password or token")
        return found.account

    def _judged(self, exchange: FakeGitHubExchange) -> None:
        self.log.append(exchange)
        if self.judge is not None:
            try:
                self.judge(exchange)
            except Exception as error:
                self.wrong.append(f"{exchange.method} {exchange.template} {exchange.status}: {error}")

    # --- git

    async def _git(self, request: web.Request) -> web.StreamResponse:
        full_name = f"{request.match_info['owner']}/{request.match_info['name'].removesuffix('.git')}"
        path = request.match_info["path"]
        writes = "git-receive-pack" in (path, request.query.get("service"))
        try:
            asker = self._asker(request)
            if full_name in self.world.moved:
                place = str(request.url).replace(full_name, self.world.moved[full_name])
                return web.Response(status=301, headers={"Location": place})
            found = self.world.repositories.get(full_name)
            if found is None or not found.may(asker.login, "read"):
                raise FakeGiteaRefused(404, "Not found.")
            if writes and not found.may(asker.login, "write"):
                raise FakeGiteaRefused(403, "User permission denied for writing.")
        except FakeGiteaRefused as refused:
            headers = {"WWW-Authenticate": 'Basic realm="Gitea"'} if refused.status == 401 else {}
            return web.Response(status=refused.status, text=str(refused), headers=headers)
        before = hosts.heads(found) if writes else {}
        answer = await hosts.serve_git(request, found, path, lambda ref: _refuses(found, ref, asker))
        if path == "git-receive-pack":
            self.acts.pushed(found, asker, before)
        return answer


def _refuses(repository: FakeGiteaRepository, ref: str, who: FakeGitHubAccount) -> bool:
    """Say whether a push of a ref is refused: those of pull requests, and protected branches."""
    rule = rules.protection_of(repository, ref.removeprefix("refs/heads/"))
    return ref.startswith("refs/pull/") or (rule is not None and who.login not in rule.pushers)
