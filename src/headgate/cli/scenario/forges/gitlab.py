"""The stand-in for GitLab, for the demonstration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario.forges.host import AUTHORS, HEADGATE, OWNER, REVIEWER, SECRET, StandIn, by_branch, marked
from headgate.testing.forges.gitlab.desk import GitLabDesk
from headgate.testing.forges.gitlab.people import GitLab, gitlab
from headgate.testing.forges.gitlab.state import DEVELOPER, MAINTAINER
from headgate.testing.forges.pages import Seen

SETTINGS = """\
[connection lab]
driver = gitlab
server = {url}
canonical_hostname = demo.example
api_token = {token}
webhook_token = {secret}
"""


@dataclass(slots=True)
class OnGitLab:
    """See `StandIn`."""

    hub: GitLab
    connection: str = "lab"
    branch: str = "main"
    authors: Sequence[str] = AUTHORS
    reviewer: str = REVIEWER

    @property
    def desk(self) -> GitLabDesk:
        return GitLabDesk(self.hub.acts)

    @property
    def url(self) -> str:
        return self.hub.url

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

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        self.push(who, project, topic, files, title)
        return await self.desk.propose(f"{project}:{topic}", who, title, text)

    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        self.hub.person(who).push(self.hub.world.projects[project], branch, files, message)

    def clone(self, project: str) -> Path:
        return self.hub.world.projects[project].git_dir

    def said(self, seen: Seen, pipeline: str) -> tuple[str, str]:
        return marked(seen, pipeline)

    def doors(self) -> Sequence[str]:
        ada = f"{AUTHORS[0]}:{self.hub.bot(AUTHORS[0])}"
        return by_branch(f"{self.url.replace('://', f'://{ada}@')}/{OWNER}app.git")


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[StandIn]:
    """Provide it."""
    async with gitlab(root / "gitlab") as hub:
        yield OnGitLab(hub)
