"""The stand-in for Gitea, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario.forges.host import (
    AUTHORS,
    HEADGATE,
    OWNER,
    REVIEWER,
    SECRET,
    TENANT,
    StandIn,
    by_branch,
    marked,
)
from headgate.testing.forges.gitea.desk import GiteaDesk
from headgate.testing.forges.gitea.people import Gitea, gitea
from headgate.testing.forges.pages import Seen

SETTINGS = """\
[connection hub]
driver = gitea
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
user = {headgate}
"""


@dataclass(slots=True)
class OnGitea:
    """See `StandIn`."""

    hub: Gitea
    connection: str = "hub"
    branch: str = "main"
    authors: Sequence[str] = AUTHORS
    reviewer: str = REVIEWER

    @property
    def desk(self) -> GiteaDesk:
        return GiteaDesk(self.hub.acts)

    @property
    def url(self) -> str:
        return self.hub.url

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",), mergers=frozenset({HEADGATE}))
        one.roles = {HEADGATE: "admin", REVIEWER: "write", **dict.fromkeys(AUTHORS, "write")}

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # what is put off is tried again after some seconds
        for login in (HEADGATE, REVIEWER, *AUTHORS):
            self.hub.world.account(login)
        token = self.hub.token(HEADGATE)
        return SETTINGS.format(url=self.url, token=token, secret=SECRET, headgate=HEADGATE)

    def hook(self, gate: str) -> None:
        self.hub.hook(gate, SECRET)

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        self.push(who, project, topic, files, title)
        return await self.desk.propose(f"{project}:{topic}", who, title, text)

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.repositories[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.repositories[project].git_dir

    def said(self, seen: Seen, pipeline: str) -> tuple[str, str]:
        return marked(seen, pipeline)

    def doors(self) -> Sequence[str]:
        ada = f"{AUTHORS[0]}:{self.hub.token(AUTHORS[0])}"
        return by_branch(f"{self.url.replace('://', f'://{ada}@')}/{OWNER}app.git")


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide it."""
    async with gitea(root / "gitea") as hub:
        yield OnGitea(hub)
