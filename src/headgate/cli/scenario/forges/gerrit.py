"""Run the demonstration at a real Gerrit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.scenario.forges.host import OWNER, Host
from headgate.testing.forges.gerrit import GerritPageActions, front, path
from headgate.testing.forges.pages import PageChange
from headgate.testing.servers.gerrit import LocalGerrit, gerrit, missing
from headgate.testing.servers.gerritpeople import NAMES, PASSWORD, Clone, ReviewingPeople
from headgate.testing.servers.program import free_ports

SETTINGS = """\
[connection review]
driver = gerrit
server = 127.0.0.1
canonical_hostname = demo.example
baseurl = {url}
user = headgate
password = {password}
port = {port}
sshkey = {key}
known_hosts = {known_hosts}
poll_delay = 2
"""


@dataclass(slots=True)
class OnGerrit:
    """Run the demonstration's projects and people at a local Gerrit; see `Host`."""

    server: LocalGerrit
    root: Path
    url: str
    """URL of the server in front of Gerrit."""
    connection: str = "review"
    branch: str = "master"
    authors: Sequence[str] = NAMES[:1]
    reviewer: str = NAMES[1]
    _clones: dict[tuple[str, str], Clone] = field(default_factory=dict)

    @property
    def people(self) -> ReviewingPeople:
        return ReviewingPeople(self.server.url)

    @property
    def actions(self) -> GerritPageActions:
        return GerritPageActions(self.people, OWNER)

    async def create(self, project: str, files: Mapping[str, str]) -> None:
        def made() -> None:
            self.people.project(project)
            Clone(self.people.admin, project, self.root / "admin" / project).pushes(files)

        await asyncio.to_thread(made)

    def settle(self) -> str:
        known_hosts = self.root / "known_hosts"
        known_hosts.write_text("".join(f"{line}\n" for line in self.server.host_keys))
        return SETTINGS.format(
            url=self.url, password=PASSWORD, port=self.server.ssh_port, key=self.server.key, known_hosts=known_hosts
        )

    def hook(self, gate: str) -> None:
        """Do nothing: Headgate listens to Gerrit's events."""

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        key = (who, project)
        if key not in self._clones:
            self._clones[key] = Clone(getattr(self.people, who), project, self.root / who / project)
        message = f"{title}\n\n{text}".strip()
        made = await asyncio.to_thread(self._clones[key].proposes, files, message)
        return path(project, made.number)

    def verdict(self, seen: PageChange, pipeline: str) -> tuple[str, str]:
        """See `Host`; the gate accepts no change whose check failed."""
        marks = {mark.name: mark.state for mark in seen.marks}
        state = marks.get(f"headgate:{pipeline}", "") or (marks.get("headgate:check", "") if pipeline == "gate" else "")
        state = "" if state == "success" and f"headgate:{pipeline}" not in marks else state
        return state, [remark.text for remark in seen.remarks if remark.who == "headgate"][-1] if state else ""

    def clone(self, project: str) -> Path:
        return self.server.site / "git" / f"{project}.git"

    def next_steps(self) -> Sequence[str]:
        clone = f"{self.url.replace('://', f'://{NAMES[0]}:{PASSWORD}@')}/a/{OWNER}app"
        return (
            f"To propose a change of your own: git clone {clone}",
            "commit with a Change-Id, push to refs/for/master, and approve it on its page as somebody else.",
        )


@asynccontextmanager
async def gerrit_host(root: Path) -> AsyncIterator[Host]:
    """Start Gerrit. Raise UserError if it is not installed."""
    if missing():
        raise UserError(missing())
    port = free_ports(1)[0]
    with ExitStack() as stack:
        opened = gerrit(root / "gerrit", web_url=f"http://127.0.0.1:{port}/")
        server = await asyncio.to_thread(stack.enter_context, opened)
        actions = GerritPageActions(ReviewingPeople(server.url), OWNER)
        async with front(actions, server.url, port) as url:
            yield OnGerrit(server, root, url)
