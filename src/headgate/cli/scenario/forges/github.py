"""The stand-in for GitHub, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, OWNER, REVIEWER, SECRET, TENANT, StandIn, by_branch, marked
from headgate.testing.forges.github.desk import GitHubDesk
from headgate.testing.forges.github.people import GitHub, github
from headgate.testing.forges.github.state import App
from headgate.testing.forges.pages import Seen

SETTINGS = """\
[connection hub]
driver = github
server = {url}
canonical_hostname = demo.example
app_id = {app}
app_key = {key}
webhook_token = {secret}
"""


@dataclass(slots=True)
class OnGitHub:
    """See `StandIn`."""

    hub: GitHub
    app: App
    key: Path
    """The file with the key of the app."""
    connection: str = "hub"
    branch: str = "main"
    authors: Sequence[str] = AUTHORS
    reviewer: str = REVIEWER

    @property
    def desk(self) -> GitHubDesk:
        return GitHubDesk(self.hub.forge)

    @property
    def url(self) -> str:
        return self.hub.url

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",))
        one.roles = dict.fromkeys((REVIEWER, *AUTHORS), "write")

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # what is put off is tried again after some seconds
        self.hub.install(self.app, "acme")
        for login in (REVIEWER, *AUTHORS):
            self.hub.person(login)
        self.key.write_text(self.hub.keys[self.app.id])
        return SETTINGS.format(url=self.url, app=self.app.id, key=self.key, secret=SECRET)

    def hook(self, gate: str) -> None:
        self.app.hook_url = gate

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
    async with github(root / "github") as hub:
        yield OnGitHub(hub, hub.app(hook_secret=SECRET), root / "app.pem")
