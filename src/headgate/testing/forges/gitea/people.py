"""Make and serve a stand-in for Gitea, with tokens, limits and faults, and act as the people who use it."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from aiohttp import web

from headgate.testing.forges.gitea import model
from headgate.testing.forges.gitea.acts import FakeGiteaActs, FakeGiteaRefused, GiteaPageActions
from headgate.testing.forges.gitea.calls import ROUTES, FakeGiteaCall, FakeGiteaRoute
from headgate.testing.forges.gitea.views import FakeGiteaPost, FakeGiteaShows
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github import server as github_server
from headgate.testing.forges.github.mail import Mail, Postman
from headgate.testing.forges.github.model import FakeGitHubAccount, FakeGitHubComment, FakeGitHubLabel
from headgate.testing.forges.pages import FakePages

API = "/api/v1"
PATH = "/code"
"""Path below which the stand-in is served, as many instances are."""


@dataclass(slots=True)
class FakeGiteaServer:
    """Serve requests."""

    world: model.FakeGiteaWorld
    shows: FakeGiteaShows
    acts: FakeGiteaActs
    path: str
    """Path prefix, as of an instance below another site."""
    judge: Callable[[github_server.FakeGitHubExchange], None] | None = None
    """Checks each request and answer; raises when Gitea's own API description does not allow it."""
    log: list[github_server.FakeGitHubExchange] = field(default_factory=list)
    """All REST calls, in order."""
    wrong: list[str] = field(default_factory=list)
    """Errors that the judge found."""
    faults: list[github_server.FakeGitHubFault] = field(default_factory=list)
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
        """Answer 429 for this long; `after_s` is the Retry-After, if it differs."""
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
            return github_server.as_json(404, {"message": "404 page not found"})
        fault = github_server.fault_at(self.faults, route.method, route.template)
        if fault is not None and not fault.done:
            return await github_server.failed(fault)
        body = await request.read()
        answer = self._answer(request, route, {name: unquote(value) for name, value in found.groupdict().items()}, body)
        # The request was carried out, but its answer is lost.
        return await github_server.failed(fault) if fault is not None else answer

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
        self._judged(
            github_server.FakeGitHubExchange(
                route.method, route.template, dict(request.query), document, status, answer
            )
        )
        return github_server.as_json(status, answer, headers)

    def _asker(self, request: web.Request) -> FakeGitHubAccount:
        """Return the caller. Raise FakeGiteaRefused."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            text = base64.b64decode(text).decode().partition(":")[2]
        found = self.world.tokens.get(text)
        if found is None or found.revoked:
            raise FakeGiteaRefused(401, "invalid username, password or token")
        return found.account

    def _judged(self, exchange: github_server.FakeGitHubExchange) -> None:
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


def _refuses(repository: model.FakeGiteaRepository, ref: str, who: FakeGitHubAccount) -> bool:
    """Return whether a push of a ref is refused: refs of pull requests, and protected branches."""
    rule = model.protection_of(repository, ref.removeprefix("refs/heads/"))
    # Only Gitea itself writes the refs of pull requests.
    return ref.startswith("refs/pull/") or (rule is not None and who.login not in rule.pushers)


@dataclass(frozen=True, slots=True)
class FakeGiteaPerson:
    """Act as a person who uses the forge in a browser and with git."""

    acts: FakeGiteaActs
    account: FakeGitHubAccount

    def push(
        self,
        repository: model.FakeGiteaRepository,
        branch: str,
        files: Mapping[str, str | None],
        message: str = "Change",
        *,
        base: str | None = None,
        merges: str | None = None,
    ) -> str:
        """Put a commit on a branch, which begins at `base` when it is new; return it.  `merges`: another parent."""
        before, now_s = hosts.heads(repository), self.acts.world.clock.now_s()
        base = base or repository.default_branch
        commit = github_server.put(repository, branch, base, files, message, self.account, now_s, merges)
        self.acts.pushed(repository, self.account, before)
        return commit

    def propose(
        self,
        repository: model.FakeGiteaRepository,
        branch: str,
        files: Mapping[str, str | None],
        title: str = "A change",
        body: str = "",
        *,
        base: str = "",
        fork: model.FakeGiteaRepository | None = None,
    ) -> model.FakeGiteaPull:
        """Push a branch with one commit and open a pull request from it."""
        base, home = base or repository.default_branch, fork or repository
        if fork is not None:
            hosts.bring(repository, fork, hosts.heads(repository)[base], f"refs/heads/{base}")
        self.push(home, branch, files, title, base=base)
        return self.open(repository, branch, title, body, base=base, fork=fork)

    def open(
        self,
        repository: model.FakeGiteaRepository,
        branch: str,
        title: str = "A change",
        body: str = "",
        *,
        base: str = "",
        fork: model.FakeGiteaRepository | None = None,
    ) -> model.FakeGiteaPull:
        """Open a pull request from an existing branch."""
        base = base or repository.default_branch
        return self.acts.open(repository, fork or repository, branch, base, self.account, title, body)

    def fork(self, repository: model.FakeGiteaRepository) -> model.FakeGiteaRepository:
        """Make a fork of the repository, and return it."""
        made = make_repository(
            self.acts.world, f"{self.account.login}/{repository.name}", {}, repository.default_branch
        )
        for branch, tip in hosts.heads(repository).items():
            hosts.bring(repository, made, tip, f"refs/heads/{branch}")
        return made

    def review(
        self,
        pull: model.FakeGiteaPull,
        state: Literal["APPROVED", "REQUEST_CHANGES", "COMMENT"] = "APPROVED",
        body: str = "Said",
    ) -> model.FakeGiteaReview:
        """Review a pull request."""
        return self.acts.review(pull, self.account, state, body)

    def ask(self, pull: model.FakeGiteaPull, of: FakeGiteaPerson) -> None:
        """Request a review."""
        self.acts.request_review(pull, self.account, of.account)

    def comment(self, pull: model.FakeGiteaPull, body: str) -> FakeGitHubComment:
        """Comment on it."""
        return self.acts.comment(pull, self.account, body)

    def label(self, pull: model.FakeGiteaPull, *names: str, off: bool = False) -> None:
        """Add labels, or remove them."""
        for name in names:
            label = pull.repository.labels.setdefault(name, FakeGitHubLabel(next(self.acts.world.ids), name))
            self.acts.label(pull, self.account, label, off=off)

    def close(self, pull: model.FakeGiteaPull) -> None:
        """Close it without merging."""
        self.acts.close(pull, self.account)

    def reopen(self, pull: model.FakeGiteaPull) -> None:
        """Open it again."""
        self.acts.reopen(pull, self.account)

    def edit(self, pull: model.FakeGiteaPull, **what: str) -> None:
        """Change title, body or base."""
        self.acts.edit(pull, self.account, **what)

    def status(self, pull: model.FakeGiteaPull, context: str, state: str = "success") -> None:
        """Set a status of its head, as another program does."""
        self.acts.status(pull.repository, self.account, pull.head_sha, state, context, "", "")


def make_repository(
    world: model.FakeGiteaWorld, full_name: str, files: Mapping[str, str], branch: str = "main"
) -> model.FakeGiteaRepository:
    """Make a repository with one commit; without files it has none."""
    owner, _, name = full_name.partition("/")
    account = world.accounts.get(owner) or world.account(owner, "Organization")
    git_dir = world.root / f"{next(world.ids)}-{name}.git"
    hosts.make(git_dir, branch)
    now_s = world.clock.now_s()
    made = model.FakeGiteaRepository(next(world.ids), account, name, git_dir, branch, created_s=now_s)
    world.repositories[full_name] = made
    if files:
        github_server.put(made, branch, branch, files, "Begin", account, now_s)
    return made


@dataclass(slots=True)
class Gitea:
    """Imitate Gitea. Actions take effect immediately; webhooks follow, and `mail.delivered` waits for them."""

    url: str
    """Address with its path."""
    world: model.FakeGiteaWorld
    mail: Mail
    server: FakeGiteaServer
    acts: FakeGiteaActs

    def person(self, login: str, **roles: str) -> FakeGiteaPerson:
        """Return a new person; `roles` maps repositories (with __ for /) to access levels."""
        account = self.world.account(login)
        for repository, role in roles.items():
            self.world.repositories[repository.replace("__", "/")].roles[login] = role
        return FakeGiteaPerson(self.acts, account)

    def repository(self, full_name: str, files: Mapping[str, str], branch: str = "main") -> model.FakeGiteaRepository:
        """Make a repository."""
        return make_repository(self.world, full_name, files, branch)

    def token(self, login: str) -> str:
        """Return a new token of a person."""
        text = f"{next(self.world.ids):040x}"
        self.world.tokens[text] = model.FakeGiteaToken(self.world.account(login))
        return text

    def hook(self, url: str, secret: str, *, forgejo: bool = False) -> model.FakeGiteaHook:
        """Add a webhook of all repositories."""
        one = model.FakeGiteaHook(url, secret, forgejo)
        self.world.hooks.append(one)
        return one

    def protect(
        self, repository: model.FakeGiteaRepository, name: str = "main", **how: Any
    ) -> model.FakeGiteaProtection:
        """Protect branches; see `FakeGiteaProtection`."""
        one = model.FakeGiteaProtection(name, **how)
        repository.protections.append(one)
        return one

    def rename(self, repository: model.FakeGiteaRepository, name: str) -> None:
        """Rename a repository; the old name redirects to it."""
        old = repository.full_name
        repository.name = name
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        # If the new name is a former name of another repository, that redirect ends.
        self.world.moved.pop(repository.full_name, None)
        self.world.moved[old] = repository.full_name

    def transfer(self, repository: model.FakeGiteaRepository, to: FakeGitHubAccount) -> None:
        """Move a repository to another owner; the old name redirects to it."""
        old, repository.owner = repository.full_name, to
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        # If the new name is a former name of another repository, that redirect ends.
        self.world.moved.pop(repository.full_name, None)
        self.world.moved[old] = repository.full_name

    def remove_fork(self, repository: model.FakeGiteaRepository) -> None:
        """Delete a fork that pull requests come from; they stay."""
        del self.world.repositories[repository.full_name]
        for one in self.world.repositories.values():
            for pull in one.pulls.values():
                if pull.head_repository is repository:
                    pull.head_repository = None

    def fail(self, method: str = "", template: str = "", times: int = 1, **how: Any) -> github_server.FakeGitHubFault:
        """Make the next calls of a kind fail; see `FakeGitHubFault`."""
        one = github_server.FakeGitHubFault(method, template, times, **how)
        self.server.faults.append(one)
        return one


@asynccontextmanager
async def gitea(root: Path, path: str = PATH) -> AsyncIterator[Gitea]:
    """Provide a Gitea on a free port of 127.0.0.1, below `path`, that keeps its repositories below `root`."""
    world = model.FakeGiteaWorld(root)
    mail = Mail(world.clock)
    servers: list[FakeGiteaServer] = []

    def application(url: str) -> web.Application:
        shows = FakeGiteaShows(world, url)
        servers.append(FakeGiteaServer(world, shows, FakeGiteaActs(world, FakeGiteaPost(world, shows, mail)), path))
        return servers[0].application()

    async with github_server.on_a_port(path, application) as url, Postman(mail):
        try:
            yield Gitea(url, world, mail, servers[0], servers[0].acts)
        finally:
            # This releases requests that hang on purpose; the cleanup would wait for them.
            for fault in servers[0].faults:
                fault.until.set()
