"""The stand-in from outside: made, served, and used by people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from headgate.testing.forges.gitea.acts import FakeGiteaActs
from headgate.testing.forges.gitea.post import FakeGiteaPost
from headgate.testing.forges.gitea.server import FakeGiteaServer
from headgate.testing.forges.gitea.state import (
    FakeGiteaHook,
    FakeGiteaProtection,
    FakeGiteaPull,
    FakeGiteaRepository,
    FakeGiteaReview,
    FakeGiteaToken,
    FakeGiteaWorld,
)
from headgate.testing.forges.gitea.views import FakeGiteaShows
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.mail import Mail, Postman
from headgate.testing.forges.github.server import FakeGitHubFault
from headgate.testing.forges.github.state import FakeGitHubAccount, FakeGitHubComment, FakeGitHubLabel
from headgate.testing.forges.http import on_a_port, put

PATH = "/code"
"""Path below which the stand-in is served, as many instances are."""


@dataclass(frozen=True, slots=True)
class FakeGiteaPerson:
    """Act as a person who uses the forge in a browser and with git."""

    acts: FakeGiteaActs
    account: FakeGitHubAccount

    def push(
        self,
        repository: FakeGiteaRepository,
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
        commit = put(repository, branch, base, files, message, self.account, now_s, merges)
        self.acts.pushed(repository, self.account, before)
        return commit

    def propose(
        self,
        repository: FakeGiteaRepository,
        branch: str,
        files: Mapping[str, str | None],
        title: str = "A change",
        body: str = "",
        *,
        base: str = "",
        fork: FakeGiteaRepository | None = None,
    ) -> FakeGiteaPull:
        """Push a branch with one commit and open a pull request from it."""
        base, home = base or repository.default_branch, fork or repository
        if fork is not None:
            hosts.bring(repository, fork, hosts.heads(repository)[base], f"refs/heads/{base}")
        self.push(home, branch, files, title, base=base)
        return self.open(repository, branch, title, body, base=base, fork=fork)

    def open(
        self,
        repository: FakeGiteaRepository,
        branch: str,
        title: str = "A change",
        body: str = "",
        *,
        base: str = "",
        fork: FakeGiteaRepository | None = None,
    ) -> FakeGiteaPull:
        """Open a pull request from a branch that is there."""
        base = base or repository.default_branch
        return self.acts.open(repository, fork or repository, branch, base, self.account, title, body)

    def fork(self, repository: FakeGiteaRepository) -> FakeGiteaRepository:
        """Return a fork of one's own."""
        made = make_repository(
            self.acts.world, f"{self.account.login}/{repository.name}", {}, repository.default_branch
        )
        for branch, tip in hosts.heads(repository).items():
            hosts.bring(repository, made, tip, f"refs/heads/{branch}")
        return made

    def review(
        self,
        pull: FakeGiteaPull,
        state: Literal["APPROVED", "REQUEST_CHANGES", "COMMENT"] = "APPROVED",
        body: str = "Said",
    ) -> FakeGiteaReview:
        """Review a pull request."""
        return self.acts.review(pull, self.account, state, body)

    def ask(self, pull: FakeGiteaPull, of: FakeGiteaPerson) -> None:
        """Ask somebody for a review."""
        self.acts.request_review(pull, self.account, of.account)

    def comment(self, pull: FakeGiteaPull, body: str) -> FakeGitHubComment:
        """Comment on it."""
        return self.acts.comment(pull, self.account, body)

    def label(self, pull: FakeGiteaPull, *names: str, off: bool = False) -> None:
        """Put labels on, or take them off."""
        for name in names:
            label = pull.repository.labels.setdefault(name, FakeGitHubLabel(next(self.acts.world.ids), name))
            self.acts.label(pull, self.account, label, off=off)

    def close(self, pull: FakeGiteaPull) -> None:
        """Close it without merging."""
        self.acts.close(pull, self.account)

    def reopen(self, pull: FakeGiteaPull) -> None:
        """Open it again."""
        self.acts.reopen(pull, self.account)

    def edit(self, pull: FakeGiteaPull, **what: str) -> None:
        """Change title, body or base."""
        self.acts.edit(pull, self.account, **what)

    def status(self, pull: FakeGiteaPull, context: str, state: str = "success") -> None:
        """Give its head a status, as another program does."""
        self.acts.status(pull.repository, self.account, pull.head_sha, state, context, "", "")


def make_repository(
    world: FakeGiteaWorld, full_name: str, files: Mapping[str, str], branch: str = "main"
) -> FakeGiteaRepository:
    """Make a repository with one commit; without files it has none."""
    owner, _, name = full_name.partition("/")
    account = world.accounts.get(owner) or world.account(owner, "Organization")
    git_dir = world.root / f"{next(world.ids)}-{name}.git"
    hosts.make(git_dir, branch)
    now_s = world.clock.now_s()
    made = FakeGiteaRepository(next(world.ids), account, name, git_dir, branch, created_s=now_s)
    world.repositories[full_name] = made
    if files:
        put(made, branch, branch, files, "Begin", account, now_s)
    return made


@dataclass(slots=True)
class Gitea:
    """Imitate Gitea. Actions take effect at once; webhooks follow, and `mail.delivered` waits for them."""

    url: str
    """Address with its path."""
    world: FakeGiteaWorld
    mail: Mail
    server: FakeGiteaServer
    acts: FakeGiteaActs

    def person(self, login: str, **roles: str) -> FakeGiteaPerson:
        """Return somebody; `roles`: repository (with __ for /) -> level."""
        account = self.world.account(login)
        for repository, role in roles.items():
            self.world.repositories[repository.replace("__", "/")].roles[login] = role
        return FakeGiteaPerson(self.acts, account)

    def repository(self, full_name: str, files: Mapping[str, str], branch: str = "main") -> FakeGiteaRepository:
        """Make a repository."""
        return make_repository(self.world, full_name, files, branch)

    def token(self, login: str) -> str:
        """Return a token of somebody."""
        text = f"{next(self.world.ids):040x}"
        self.world.tokens[text] = FakeGiteaToken(self.world.account(login))
        return text

    def hook(self, url: str, secret: str, *, forgejo: bool = False) -> FakeGiteaHook:
        """Add a webhook of all repositories."""
        one = FakeGiteaHook(url, secret, forgejo)
        self.world.hooks.append(one)
        return one

    def protect(self, repository: FakeGiteaRepository, name: str = "main", **how: Any) -> FakeGiteaProtection:
        """Protect branches; see state.Protection."""
        one = FakeGiteaProtection(name, **how)
        repository.protections.append(one)
        return one

    def rename(self, repository: FakeGiteaRepository, name: str) -> None:
        """Give a repository another name; the old one leads there."""
        old = repository.full_name
        repository.name = name
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        self.world.moved[old] = repository.full_name

    def transfer(self, repository: FakeGiteaRepository, to: FakeGitHubAccount) -> None:
        """Give a repository to somebody else; the old name leads there."""
        old, repository.owner = repository.full_name, to
        del self.world.repositories[old]
        self.world.repositories[repository.full_name] = repository
        self.world.moved.pop(repository.full_name, None)
        self.world.moved[old] = repository.full_name

    def remove_fork(self, repository: FakeGiteaRepository) -> None:
        """Delete a fork that pull requests come from; they stay."""
        del self.world.repositories[repository.full_name]
        for one in self.world.repositories.values():
            for pull in one.pulls.values():
                if pull.head_repository is repository:
                    pull.head_repository = None

    def fail(self, method: str = "", template: str = "", times: int = 1, **how: Any) -> FakeGitHubFault:
        """Let the next calls of a kind go wrong; see server.FakeGitHubFault."""
        one = FakeGitHubFault(method, template, times, **how)
        self.server.faults.append(one)
        return one


@asynccontextmanager
async def gitea(root: Path, path: str = PATH) -> AsyncIterator[Gitea]:
    """Provide a Gitea on a free port of 127.0.0.1, below `path`, that keeps its repositories below `root`."""
    world = FakeGiteaWorld(root)
    mail = Mail(world.clock)
    servers: list[FakeGiteaServer] = []

    def application(url: str) -> web.Application:
        shows = FakeGiteaShows(world, url)
        servers.append(FakeGiteaServer(world, shows, FakeGiteaActs(world, FakeGiteaPost(world, shows, mail)), path))
        return servers[0].application()

    async with on_a_port(path, application) as url, Postman(mail):
        try:
            yield Gitea(url, world, mail, servers[0], servers[0].acts)
        finally:
            for fault in servers[0].faults:
                fault.until.set()
