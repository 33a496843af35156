"""The stand-in for Pagure, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, HEADGATE, REVIEWER, StandIn
from headgate.testing.forges.pagure.acts import PagurePageActions
from headgate.testing.forges.pagure.people import Pagure, pagure

SETTINGS = """\
[connection hub]
driver = pagure
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
app_name = Headgate
"""


class OnPagure(StandIn):
    """See `StandIn`."""

    def __init__(self, hub: Pagure) -> None:
        super().__init__(hub.url, PagurePageActions(hub.acts))
        self.hub = hub

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.project(project, files)
        one.access = {HEADGATE: "admin", REVIEWER: "commit", **dict.fromkeys(AUTHORS, "commit")}

    def settle(self) -> str:
        for login in (HEADGATE, REVIEWER, *AUTHORS):
            self.hub.world.account(login)
        return SETTINGS.format(url=self.url, token=self.hub.token(HEADGATE))

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
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in."""
    async with pagure(root / "pagure") as hub:
        yield OnPagure(hub)
