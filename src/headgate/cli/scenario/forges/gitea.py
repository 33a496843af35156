"""The stand-in for Gitea, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges.host import (
    AUTHORS,
    HEADGATE,
    REVIEWER,
    SECRET,
    TENANT,
    StandIn,
)
from headgate.testing.forges.gitea.acts import GiteaPageActions
from headgate.testing.forges.gitea.people import Gitea, gitea

SETTINGS = """\
[connection hub]
driver = gitea
baseurl = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
user = {headgate}
"""


class OnGitea(StandIn):
    """See `StandIn`."""

    def __init__(self, hub: Gitea) -> None:
        super().__init__(hub.url, GiteaPageActions(hub.acts))
        self.hub = hub

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        one = self.hub.repository(project, files)
        self.hub.protect(one, approvals=1, contexts=(f"{TENANT}/gate",), mergers=frozenset({HEADGATE}))
        one.roles = {HEADGATE: "admin", REVIEWER: "write", **dict.fromkeys(AUTHORS, "write")}

    def settle(self) -> str:
        self.hub.world.mergeability_asks = 0  # postponed work is tried again after some seconds
        for login in (HEADGATE, REVIEWER, *AUTHORS):
            self.hub.world.account(login)
        token = self.hub.token(HEADGATE)
        return SETTINGS.format(url=self.url, token=token, secret=SECRET, headgate=HEADGATE)

    def hook(self, gate: str) -> None:
        self.hub.hook(gate, SECRET)

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.repositories[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.repositories[project].git_dir

    def token(self, who: str) -> str:
        return self.hub.token(who)


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in."""
    async with gitea(root / "gitea") as hub:
        yield OnGitea(hub)
