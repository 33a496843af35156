"""The stand-in for GitLab, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, HEADGATE, REVIEWER, SECRET, StandIn
from headgate.testing.forges.gitlab.acts import GitLabPageActions
from headgate.testing.forges.gitlab.people import GitLab, gitlab
from headgate.testing.forges.gitlab.state import DEVELOPER, MAINTAINER

SETTINGS = """\
[connection lab]
driver = gitlab
server = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
"""


class OnGitLab(StandIn):
    """See `StandIn`."""

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
        return SETTINGS.format(url=self.url, token=token, secret=SECRET)

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
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide the stand-in."""
    async with gitlab(root / "gitlab") as hub:
        yield OnGitLab(hub)
