"""The stand-in for GitHub, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, REVIEWER, SECRET, TENANT, StandIn
from headgate.testing.forges.github.actions import GitHubPageActions
from headgate.testing.forges.github.people import GitHub, github
from headgate.testing.forges.github.state import App

SETTINGS = """\
[connection hub]
driver = github
server = {url}
canonical_hostname = demo.example
app_id = {app}
app_key = {key}
webhook_token = {secret}
"""


class OnGitHub(StandIn):
    """See `StandIn`."""

    def __init__(self, hub: GitHub, app: App, key: Path) -> None:
        """Take `key`, the file with the key of the app."""
        super().__init__(hub.url, GitHubPageActions(hub.forge))
        self.hub, self.app, self.key = hub, app, key

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",))
        one.roles = dict.fromkeys((REVIEWER, *AUTHORS), "write")

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # postponed work is tried again after some seconds
        self.hub.install(self.app, "acme")
        for login in (REVIEWER, *AUTHORS):
            self.hub.person(login)
        self.key.write_text(self.hub.keys[self.app.id])
        return SETTINGS.format(url=self.url, app=self.app.id, key=self.key, secret=SECRET)

    def hook(self, gate: str) -> None:
        self.app.hook_url = gate

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.repositories[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.repositories[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.token(who)


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in."""
    async with github(root / "github") as hub:
        yield OnGitHub(hub, hub.app(hook_secret=SECRET), root / "app.pem")
