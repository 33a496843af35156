"""The stand-in for Pagure, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, HEADGATE, OWNER, REVIEWER, StandIn, by_branch, marked
from headgate.testing.forges.pages import Seen
from headgate.testing.forges.pagure.desk import PagureDesk
from headgate.testing.forges.pagure.people import Pagure, pagure

SETTINGS = """\
[connection hub]
driver = pagure
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
app_name = Headgate
"""


@dataclass(slots=True)
class OnPagure:
    """See `StandIn`."""

    hub: Pagure
    connection: str = "hub"
    branch: str = "main"
    authors: Sequence[str] = AUTHORS
    reviewer: str = REVIEWER

    @property
    def desk(self) -> PagureDesk:
        return PagureDesk(self.hub.acts)

    @property
    def url(self) -> str:
        return self.hub.url

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
        """Propose it from a fork: no branch is protected at Pagure, so each of the project itself configures."""
        person, at = self.hub.person(who), self.hub.world.projects[project]
        fork = self.hub.world.projects.get(f"forks/{who}/{project}") or person.fork(at)
        return self.desk.path(person.propose(at, topic, files, title, text, home=fork))

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.projects[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.projects[project].git_dir

    def said(self, seen: Seen, pipeline: str) -> tuple[str, str]:
        return marked(seen, pipeline)

    def doors(self) -> Sequence[str]:
        ada = f"{AUTHORS[0]}:{self.hub.token(AUTHORS[0])}"
        return by_branch(f"{self.url.replace('://', f'://{ada}@')}/{OWNER}app.git")


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide it."""
    async with pagure(root / "pagure") as hub:
        yield OnPagure(hub)
