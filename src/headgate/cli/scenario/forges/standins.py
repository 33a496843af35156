"""Provide the stand-ins for Gitea, GitHub, GitLab and Pagure, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, HEADGATE, REVIEWER, SECRET, TENANT, StandIn
from headgate.testing.forges.gitea.acts import GiteaPageActions
from headgate.testing.forges.gitea.people import Gitea, gitea
from headgate.testing.forges.github.actions import GitHubPageActions
from headgate.testing.forges.github.model import App
from headgate.testing.forges.github.people import GitHub, github
from headgate.testing.forges.gitlab.acts import GitLabPageActions
from headgate.testing.forges.gitlab.model import DEVELOPER, MAINTAINER
from headgate.testing.forges.gitlab.people import GitLab, gitlab
from headgate.testing.forges.pagure.acts import PagurePageActions
from headgate.testing.forges.pagure.people import Pagure, pagure

GITEA = """\
[connection hub]
driver = gitea
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
user = {headgate}
"""
GITHUB = """\
[connection hub]
driver = github
server = {url}
canonical_hostname = demo.example
app_id = {app}
app_key = {key}
webhook_token = {secret}
"""
GITLAB = """\
[connection lab]
driver = gitlab
server = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
"""
PAGURE = """\
[connection hub]
driver = pagure
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
app_name = Headgate
"""


class OnGitea(StandIn):
    """Represent Gitea by its stand-in; see `StandIn`."""

    def __init__(self, hub: Gitea) -> None:
        super().__init__(hub.url, GiteaPageActions(hub.acts))
        self.hub = hub

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",), mergers=frozenset({HEADGATE}))
        one.roles = {HEADGATE: "admin", REVIEWER: "write", **dict.fromkeys(AUTHORS, "write")}

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # postponed work is retried after a few seconds
        for login in (HEADGATE, REVIEWER, *AUTHORS):
            self.hub.world.account(login)
        token = self.hub.token(HEADGATE)
        return GITEA.format(url=self.url, token=token, secret=SECRET, headgate=HEADGATE)

    def hook(self, gate: str) -> None:
        self.hub.hook(gate, SECRET)

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.repositories[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.repositories[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.token(who)


@asynccontextmanager
async def gitea_host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in for Gitea."""
    async with gitea(root / "gitea") as hub:
        yield OnGitea(hub)


class OnGitHub(StandIn):
    """Represent GitHub by its stand-in; see `StandIn`."""

    def __init__(self, hub: GitHub, app: App, key: Path) -> None:
        """Create the venue. `key` is the file with the app's key."""
        super().__init__(hub.url, GitHubPageActions(hub.forge))
        self.hub, self.app, self.key = hub, app, key

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",))
        one.roles = dict.fromkeys((REVIEWER, *AUTHORS), "write")

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # postponed work is retried after a few seconds
        self.hub.install(self.app, "acme")
        for login in (REVIEWER, *AUTHORS):
            self.hub.person(login)
        self.key.write_text(self.hub.keys[self.app.id])
        return GITHUB.format(url=self.url, app=self.app.id, key=self.key, secret=SECRET)

    def hook(self, gate: str) -> None:
        self.app.hook_url = gate

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.repositories[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.repositories[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.token(who)


@asynccontextmanager
async def github_host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in for GitHub."""
    async with github(root / "github") as hub:
        yield OnGitHub(hub, hub.app(hook_secret=SECRET), root / "app.pem")


class OnGitLab(StandIn):
    """Represent GitLab by its stand-in; see `StandIn`."""

    connection = "lab"

    def __init__(self, hub: GitLab) -> None:
        super().__init__(hub.url, GitLabPageActions(hub.acts))
        self.hub = hub

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.project(project, files)
        one.approvals = 1
        one.members = {HEADGATE: MAINTAINER, REVIEWER: DEVELOPER, **dict.fromkeys(AUTHORS, DEVELOPER)}

    def settle(self) -> str:
        for username in (REVIEWER, *AUTHORS):
            self.hub.person(username)
        token = self.hub.bot(HEADGATE)
        return GITLAB.format(url=self.url, token=token, secret=SECRET)

    def hook(self, gate: str) -> None:
        for project in self.hub.world.projects.values():
            self.hub.hook(project, gate, SECRET)

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.projects[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.projects[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.bot(who)


@asynccontextmanager
async def gitlab_host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in for GitLab."""
    async with gitlab(root / "gitlab") as hub:
        yield OnGitLab(hub)


class OnPagure(StandIn):
    """Represent Pagure by its stand-in; see `StandIn`."""

    def __init__(self, hub: Pagure) -> None:
        super().__init__(hub.url, PagurePageActions(hub.acts))
        self.hub = hub

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.project(project, files)
        one.access = {HEADGATE: "admin", REVIEWER: "commit", **dict.fromkeys(AUTHORS, "commit")}

    def settle(self) -> str:
        for login in (HEADGATE, REVIEWER, *AUTHORS):
            self.hub.world.account(login)
        return PAGURE.format(url=self.url, token=self.hub.token(HEADGATE))

    def hook(self, gate: str) -> None:
        for one in self.hub.world.projects.values():
            one.options["Web-hooks"] = gate

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        """Propose the change from a fork: Pagure protects no branch, so every branch of the project itself counts
        as configuration."""
        person, at = self.hub.person(who), self.hub.world.projects[project]
        fork = self.hub.world.projects.get(f"forks/{who}/{project}") or person.fork(at)
        return PagurePageActions(self.hub.acts).path(person.propose(at, topic, files, title, text, home=fork))

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.projects[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.projects[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.token(who)


@asynccontextmanager
async def pagure_host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in for Pagure."""
    async with pagure(root / "pagure") as hub:
        yield OnPagure(hub)
