"""Serve the stand-in for GitHub, with conditional requests, limits and faults; others use its helpers."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from headgate.testing.forges.github import access, calls, hosts, pulls, rules
from headgate.testing.forges.github.actions import GitHubPageActions
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.graph import FakeGitHubGraph
from headgate.testing.forges.github.model import FakeGitHubAccount, FakeGitHubRepository
from headgate.testing.forges.github.query import BadQuery, read, run
from headgate.testing.forges.github.views import Shown
from headgate.testing.forges.pages import FakePages
from headgate.testing.servers.program import free_ports

API, GRAPHQL = "/api/v3", "/api/graphql"
_SAFE = "[^/]+"


@dataclass(frozen=True, slots=True)
class FakeGitHubExchange:
    """Record one call with its answer, as API descriptions express it."""

    method: str
    template: str
    query: dict[str, str]
    request: Any
    status: int
    answer: Any
    text: str = ""
    """Text of a GraphQL query; empty for other requests."""


@dataclass(slots=True)
class FakeGitHubFault:
    """Make the next calls of a kind fail."""

    method: str
    template: str
    """Path template, as in GitHub's description; empty: all requests; `graphql`; `git`."""
    times: int
    status: int = 502
    done: bool = False
    """Whether the request takes effect and only the answer is lost."""
    hangs: bool = False
    until: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class FakeGitHubServer:
    """Serve requests."""

    forge: access.FakeGitHubForge
    judge: Callable[[FakeGitHubExchange], None] | None = None
    """Checks each request and answer; raises when GitHub's own API description does not allow it."""
    log: list[FakeGitHubExchange] = field(default_factory=list)
    """All REST and GraphQL calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Errors that the judge found, and failures of the stand-in itself."""
    faults: list[FakeGitHubFault] = field(default_factory=list)
    _routes: list[tuple[re.Pattern[str], access.FakeGitHubRoute]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Try precise paths before those with placeholders, which would match them, too.
        for route in sorted((*calls.ROUTES, *pulls.ROUTES), key=lambda r: r.template.count("{")):
            pattern = re.sub(r"\\{(\w+)\\}", rf"(?P<\1>{_SAFE})", re.escape(route.template))
            # Names of branches may have slashes; every other part of a path ends at the next one.
            if "{branch}" in route.template:
                pattern = pattern.replace(f"(?P<branch>{_SAFE})", "(?P<branch>.+)")
            self._routes.append((re.compile(pattern), route))

    def application(self) -> web.Application:
        """Return the application for aiohttp."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post(GRAPHQL, self._graphql)
        app.router.add_route("*", API + "/{rest:.*}", self._rest)
        FakePages(GitHubPageActions(self.forge)).add(app, "/{owner}/{name}/pull/{number}")
        app.router.add_route("*", "/{owner}/{name}/{path:(info/refs|git-upload-pack|git-receive-pack)}", self._git)
        return app

    async def _rest(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.raw_path.partition("?")[0].removeprefix(API).strip("/")
        route, named = self._route(request.method, self._by_name(path))
        if route is None:
            return as_json(404, {"message": "Not Found", "documentation_url": access.DOCS, "status": "404"})
        fault = fault_at(self.faults, route.method, route.template)
        if fault is not None and not fault.done:
            return await failed(fault, "Unicorn!")
        body = await request.read()
        # With `done`, the request takes effect and only its answer is lost, as when a connection breaks.
        answer = self._answer(request, route, named, body)
        return await failed(fault, "Unicorn!") if fault is not None else answer

    def _by_name(self, path: str) -> str:
        """Return a path with a repository's name instead of its number, because redirections contain numbers."""
        number, _, rest = path.removeprefix("/repositories/").partition("/")
        for one in self.forge.world.repositories.values() if number != path else ():
            if str(one.id) == number:
                return f"/repos/{one.full_name}" + (f"/{rest}" if rest else "")
        return path

    def _route(self, method: str, path: str) -> tuple[access.FakeGitHubRoute | None, dict[str, str]]:
        for pattern, route in self._routes:
            found = pattern.fullmatch(path)
            if found is not None and route.method == method:
                return route, {k: unquote(v) for k, v in found.groupdict().items()}
        return None, {}

    def _answer(
        self, request: web.Request, route: access.FakeGitHubRoute, named: dict[str, str], body: bytes
    ) -> web.Response:
        who, resource = access.FakeGitHubCaller(None), "core"
        headers: dict[str, str] = {}
        document = None
        try:
            document = msgspec.json.decode(body) if body else None
            who = access.caller(self.forge.world, request.headers.get("Authorization", ""))
            self._moved(request, route, named)
            self._limited(who, resource)
            call = access.FakeGitHubCall(
                self.forge, who, named, dict(request.query), document, f"{self.forge.shows.web}{request.path}"
            )
            if route.makes:
                self.forge.limits.makes(who.key)
            status, answer = route.handler(call)
            # The handler may have added links to other pages.
            headers = call.headers
        except msgspec.DecodeError:
            status, answer = 400, {"message": "Problems parsing JSON", "documentation_url": access.DOCS}
        except _Moved as moved:
            status, answer = 301, {"message": "Moved Permanently", "url": str(moved), "documentation_url": access.DOCS}
            headers = {"Location": str(moved)}
        except FakeGitHubRefused as refused:
            status, answer, headers = self._refusal(who, refused, resource)
        # A request that lacks a member or has a wrong type fails in the handler; GitHub returns 422 to those.
        except (KeyError, TypeError, ValueError) as error:
            status, answer = 422, {"message": f"Invalid request.\n\n{error!r}", "documentation_url": access.DOCS}
        self._judged(FakeGitHubExchange(route.method, route.template, dict(request.query), document, status, answer))
        return self._sent(request, who, status, answer, headers, resource)

    def _moved(self, request: web.Request, route: access.FakeGitHubRoute, named: dict[str, str]) -> None:
        """Redirect requests for a repository's former name."""
        new = self.forge.world.moved.get(f"{named.get('owner')}/{named.get('repo')}")
        if new is not None:
            found = self.forge.world.repositories[new]
            path = route.template.replace("/repos/{owner}/{repo}", f"/repositories/{found.id}")
            for name, value in named.items():
                path = path.replace(f"{{{name}}}", value)
            raise _Moved(f"{self.forge.shows.api}{path}")

    def _limited(self, who: access.FakeGitHubCaller, resource: str) -> None:
        if self.forge.limits.secondary(who.key):
            raise FakeGitHubRefused(403, access.SECONDARY)
        if self.forge.limits.spent(who.key, resource):
            raise FakeGitHubRefused(403, access.PRIMARY.format(who.key))

    def _refusal(
        self, who: access.FakeGitHubCaller, refused: FakeGitHubRefused, resource: str
    ) -> tuple[int, Shown, dict[str, str]]:
        headers = {}
        after_s = self.forge.limits.after_s
        # Other refusals do not have this header.
        if refused.message == access.SECONDARY and after_s is not None:
            headers["Retry-After"] = str(after_s)
        answer: Shown = {"message": refused.message, "documentation_url": access.DOCS, "status": str(refused.status)}
        if refused.status == 422:
            answer["errors"] = [{"resource": "any", "code": "custom", "message": refused.message}]
        # GitHub's description of these answers has no `status`.
        if refused.status in (405, 409):
            del answer["status"]
        return refused.status, answer, headers

    def _sent(
        self,
        request: web.Request,
        who: access.FakeGitHubCaller,
        status: int,
        answer: Any,
        headers: dict[str, str],
        resource: str,
    ) -> web.Response:
        body = msgspec.json.encode(answer) if answer is not None else b""
        # Unchanged answers do not count against the limit.
        if request.method == "GET" and status == 200:
            # The tag also depends on the token, so that a new one of the same app knows none of the old tags.
            token = request.headers.get("Authorization", "").encode()
            headers["ETag"] = f'W/"{hashlib.sha256(token + body).hexdigest()}"'
            if request.headers.get("If-None-Match") == headers["ETag"]:
                self.log[-1] = _unchanged(self.log[-1])
                return web.Response(status=304, headers={**headers, **self.forge.limits.headers(who.key, resource)})
        if status != 304:
            self.forge.limits.of(who.key, resource).used += 1
        headers = {**headers, **self.forge.limits.headers(who.key, resource), "X-GitHub-Request-Id": "0"}
        if answer is None:
            return web.Response(status=status, headers=headers)
        return web.Response(status=status, headers=headers, body=body, content_type="application/json")

    def _judged(self, exchange: FakeGitHubExchange) -> None:
        self.log.append(exchange)
        if self.judge is not None:
            try:
                self.judge(exchange)
            except Exception as error:
                self.wrong.append(f"{exchange.method} {exchange.template} {exchange.status}: {error}")

    async def _graphql(self, request: web.Request) -> web.StreamResponse:
        fault = fault_at(self.faults, "POST", "graphql")
        if fault is not None and not fault.done:
            return await failed(fault, "Unicorn!")
        body = await request.json()
        who, status = access.FakeGitHubCaller(None), 200
        headers: dict[str, str] = {}
        answer: Shown
        try:
            who = access.caller(self.forge.world, request.headers.get("Authorization", ""))
            # GraphQL has no anonymous access, unlike REST.
            if who.account is None:
                raise FakeGitHubRefused(401, "This endpoint requires you to be authenticated.")
            if self.forge.limits.secondary(who.key):
                raise FakeGitHubRefused(403, access.SECONDARY)
            if self.forge.limits.spent(who.key, "graphql"):
                # GraphQL reports an exhausted budget with status 200, unlike REST.
                answer = {"errors": [{"type": "RATE_LIMITED", "message": access.PRIMARY.format(who.key)}]}
            else:
                answer = self._queried(who, body)
                self.forge.limits.of(who.key, "graphql").used += 1
        except FakeGitHubRefused as refused:
            status, answer, headers = self._refusal(who, refused, "graphql")
        variables = body.get("variables") or {}
        self._judged(FakeGitHubExchange("POST", "graphql", {}, variables, status, answer, body.get("query", "")))
        headers = {**headers, **self.forge.limits.headers(who.key, "graphql")}
        return as_json(status, answer, headers)

    def _queried(self, who: access.FakeGitHubCaller, body: Shown) -> Shown:
        graph = FakeGitHubGraph(self.forge.world, self.forge.limits, who, self.forge.shows.web)
        try:
            data = run(read(body["query"]), graph.root(), body.get("variables") or {})
        except BadQuery as error:
            return {"errors": [{"message": str(error)}]}
        # GitHub answers null for what is missing, and adds an error.
        lost = [name for name, value in data.items() if value is None]
        if not lost:
            return {"data": data}
        errors = [{"type": "NOT_FOUND", "path": [name], "message": f"Could not resolve to a {name}."} for name in lost]
        return {"data": data, "errors": errors}

    async def _git(self, request: web.Request) -> web.StreamResponse:
        fault = fault_at(self.faults, request.method, "git")
        if fault is not None and not fault.done:
            return await failed(fault, "Unicorn!")
        # git appends no `.git` itself, and people write URLs with and without it.
        name = request.match_info["name"].removesuffix(".git")
        full_name = f"{request.match_info['owner']}/{name}"
        path = request.match_info["path"]
        writes = "git-receive-pack" in (path, request.query.get("service"))
        try:
            who = access.caller(self.forge.world, request.headers.get("Authorization", ""))
            found = self.forge.world.repository(self.forge.world.moved.get(full_name, full_name))
            if found is None or not who.sees(found):
                # Git sends its credentials only after a 401.
                raise FakeGitHubRefused(404 if who.account else 401, "Repository not found.")
            if writes and not who.may(found, "contents", "write"):
                raise FakeGitHubRefused(403 if who.account else 401, "Permission to the repository denied.")
        except FakeGitHubRefused as refused:
            headers = {"WWW-Authenticate": 'Basic realm="GitHub"'} if refused.status == 401 else {}
            return web.Response(status=refused.status, text=refused.message, headers=headers)
        before = hosts.heads(found) if writes else {}
        answer = await hosts.serve_git(request, found, path, lambda ref: self._refuses(found, ref, who))
        if path == "git-receive-pack":
            self.forge.pulls.pushed(found, who.asker.account, before)
        return await failed(fault, "Unicorn!") if fault is not None else answer

    def _refuses(self, repository: FakeGitHubRepository, ref: str, who: access.FakeGitHubCaller) -> bool:
        """Return whether a push of a ref is refused: refs of pull requests, and protected branches."""
        branch = ref.removeprefix("refs/heads/")
        # Only GitHub itself writes these refs.
        if ref.startswith("refs/pull/"):
            return True
        protection = rules.protection_of(repository, branch)
        asker = who.asker
        if protection is not None:
            admin = repository.role(asker.account.login) == "admin" and not protection.enforce_admins
            named = protection.pushers is not None and asker.among(protection.pushers)
            wants = protection.contexts or protection.approvals is not None or protection.locked
            if not admin and ((protection.pushers is not None and not named) or (wants and not named)):
                return True
        blocking = {"pull_request", "required_status_checks", "update", "merge_queue"}
        found: Iterator[bool] = (
            asker.among(ruleset.bypass) is None and any(rule["type"] in blocking for rule in ruleset.rules)
            for ruleset in rules.rulesets_of(repository, branch)
        )
        return any(found)


class _Moved(Exception):
    """Report that a repository was renamed."""


def _unchanged(one: FakeGitHubExchange) -> FakeGitHubExchange:
    return FakeGitHubExchange(one.method, one.template, one.query, one.request, 304, None)


def as_json(status: int, answer: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in JSON; None: it has no body."""
    if answer is None:
        return web.Response(status=status, headers=headers)
    body = msgspec.json.encode(answer)
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def fault_at(faults: Sequence[FakeGitHubFault], method: str, template: str) -> FakeGitHubFault | None:
    """Return the fault planned for a call, if any, and count it."""
    for one in faults:
        if one.times and one.method in ("", method) and one.template in ("", template):
            one.times -= 1
            return one
    return None


async def failed(fault: FakeGitHubFault, text: str = "Bad Gateway") -> web.StreamResponse:
    """Answer as the fault specifies, with a page that contains `text`."""
    if fault.hangs:
        await fault.until.wait()
    return web.Response(status=fault.status, text=f"<html>{text}</html>", content_type="text/html")


def put(
    repository: hosts.HostedRepository,
    branch: str,
    base: str,
    files: Mapping[str, str | None],
    message: str,
    who: FakeGitHubAccount,
    now_s: float,
    merges: str | None = None,
) -> str:
    """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
    heads = hosts.heads(repository)
    parents = [one for one in (heads.get(branch) or heads.get(base), merges) if one]
    commit = hosts.commit(repository, parents, files, message, hosts.signature(who, now_s))
    hosts.point(repository, f"refs/heads/{branch}", commit)
    return commit


@asynccontextmanager
async def on_a_port(path: str, make: Callable[[str], web.Application]) -> AsyncIterator[str]:
    """Serve on a free port of 127.0.0.1 what `make` returns for an address, below `path`; provide the address."""
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}{path}"
    runner = web.AppRunner(make(url), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield url
    finally:
        await runner.cleanup()
