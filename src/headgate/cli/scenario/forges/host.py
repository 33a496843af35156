"""Play the demonstration on a forge or its stand-in, and declare the interface that it needs."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path
from typing import Protocol

from headgate.cli.launch.process import Process
from headgate.cli.scenario import files
from headgate.cli.scenario.play import DemoChange
from headgate.cli.terminal.screen import Printing
from headgate.testing.forges.pages import PageActions, PageChange

OWNER = "acme/"
"""Prefix of the repositories' names."""
TENANT = "example"
"""Name of the tenant, the same as on the pages below docs/how-to."""
AUTHORS, REVIEWER = ("ada", "cleo"), "bob"
HEADGATE, SECRET = "headgate", "open sesame"
"""Login of Headgate, and the secret of webhooks."""
LOOK_INTERVAL_S = 0.1
CHECKED_TIMEOUT_S, HEARD_TIMEOUT_S = 90.0, 30.0
_BADLY = frozenset({"failure", "failed", "error"})
_ENDED = _BADLY | {"success"}
"""Final states of a check."""
TENANTS = """\
- tenant:
    name: {tenant}
    exclude-unprotected-branches: true
    source:
      {connection}:
        config-projects:
          - {owner}config: {{load-branch: {branch}}}
        untrusted-projects:
          - {owner}core
          - {owner}api
          - {owner}app
"""


class Host(Protocol):
    """Declare what the demonstration needs from a forge on which Headgate has an account."""

    @property
    def actions(self) -> PageActions: ...
    @property
    def url(self) -> str:
        """Return the address of the forge's pages, without a trailing slash."""
        ...

    @property
    def connection(self) -> str:
        """Return the name of the connection that the pipelines use."""
        ...

    @property
    def branch(self) -> str:
        """Return the default branch of the repositories."""
        ...

    @property
    def authors(self) -> Sequence[str]: ...
    @property
    def reviewer(self) -> str: ...
    async def create(self, project: str, files: Mapping[str, str]) -> None:
        """Make a repository."""

    def settle(self) -> str:
        """Grant permissions, and protect branches; return the connection's section of the settings."""
        ...

    def hook(self, gate: str) -> None:
        """Make the forge send its events to Headgate, whose pages are at this address."""

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        """Propose a change; return the path of its page."""
        ...

    def verdict(self, seen: PageChange, pipeline: str) -> tuple[str, str]:
        """Return the state that the change's page shows for a pipeline (empty: none yet), and Headgate's message
        there."""
        ...

    def clone(self, project: str) -> Path: ...
    def next_steps(self) -> Sequence[str]:
        """Return lines that say how to propose a change yourself."""
        ...


class StandIn(ABC):
    """Represent a forge whose changes are pushed branches."""

    connection, branch = "hub", "main"
    authors: Sequence[str] = AUTHORS
    reviewer = REVIEWER

    def __init__(self, url: str, actions: PageActions) -> None:
        self.url, self.actions = url, actions

    @abstractmethod
    async def create(self, project: str, files: Mapping[str, str]) -> None:
        """Make a repository with these files."""

    @abstractmethod
    def settle(self) -> str:
        """Grant permissions, and protect branches; return the section of the settings for the connection."""

    @abstractmethod
    def hook(self, gate: str) -> None:
        """Register Headgate's webhook at the forge."""

    @abstractmethod
    def clone(self, project: str) -> Path:
        """Return the path of the repository's git directory, or of a clone."""

    @abstractmethod
    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        """Push a branch with one commit on the default branch."""

    @abstractmethod
    def token(self, who: str) -> str:
        """Return the token that this user gives git instead of a password."""

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        """Push a branch, and propose it as a change; return the path of its page."""
        self.push(who, project, topic, files, title)
        return await self.actions.propose(f"{project}:{topic}", who, title, text)

    def verdict(self, seen: PageChange, pipeline: str) -> tuple[str, str]:
        """Return the state that the checks or statuses of the pipeline show, and Headgate's comment if it failed."""
        state = next((mark.state for mark in seen.marks if mark.name == f"{TENANT}/{pipeline}"), "")
        comments = [remark.text for remark in seen.remarks if remark.text.startswith(f"**{pipeline}: ")]
        return state, comments[-1].partition("<!--")[0].strip() if comments else ""

    def next_steps(self) -> Sequence[str]:
        """Return lines that say how to clone a repository and propose a change yourself."""
        own = f"{AUTHORS[0]}:{self.token(AUTHORS[0])}"
        return (
            f"To propose a change of your own: git clone {self.url.replace('://', f'://{own}@')}/{OWNER}app.git",
            "commit to a branch, push it, and open the change on that page; approve it as somebody else.",
        )


def pipelines(forge: str) -> str:
    """Return the pipelines on the how-to page of a forge."""
    return (resources("headgate.cli.scenario.forges") / f"{forge}.yaml").read_text()


@dataclass(slots=True)
class Hosted:
    """Run the demonstration at a forge; see `Venue`."""

    host: Host
    say: Printing
    settings: str = ""
    tenant: str = TENANT
    _paths: dict[DemoChange, str] = field(default_factory=dict)
    _printed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Path of a change -> the lines already printed about it."""
    _turns: Iterator[int] = field(default_factory=itertools.count)

    @property
    def tenants(self) -> str:
        return TENANTS.format(tenant=TENANT, connection=self.host.connection, owner=OWNER, branch=self.host.branch)

    async def build(self) -> None:
        config = files.config(pipelines(self.host.actions.forge.lower()), OWNER)
        for name, content in (("config", config), *files.CODE.items()):
            await self.host.create(f"{OWNER}{name}", content)
        self.settings = self.host.settle()

    async def attend(self, system: Process) -> None:
        self.say(f"The {self.host.actions.kind} is at {self.host.url}/")
        self.host.hook(f"{system.context.pages.url}/api/connection/{self.host.connection}/payload")

    async def propose(
        self, project: str, topic: str, content: Mapping[str, str], title: str, needs: DemoChange | None
    ) -> DemoChange:
        who = self.host.authors[next(self._turns) % len(self.host.authors)]
        text = "" if needs is None else f"Depends-On: {self._url(needs)}"
        made = DemoChange(project, topic)
        self._paths[made] = await self.host.propose(who, f"{OWNER}{project}", topic, content, title, text)
        self.say(f"  {who} opens {self._url(made)} : {title}")
        return made

    async def checked(self, changes: Sequence[DemoChange]) -> None:
        for change in changes:
            await self._until(change, lambda seen: self.host.verdict(seen, "check")[0] in _ENDED, CHECKED_TIMEOUT_S)

    async def approve(self, change: DemoChange) -> None:
        await self.host.actions.approve(self._paths[change], self.host.reviewer)
        self.say(f"  {self.host.reviewer} approves {self._url(change)}")

    async def heard(self, change: DemoChange) -> None:
        await self._until(change, lambda seen: bool(self.host.verdict(seen, "gate")[0]), HEARD_TIMEOUT_S)

    async def _until(self, change: DemoChange, holds: Callable[[PageChange], bool], patience_s: float) -> None:
        """Wait until the condition holds or the time is up; the outcome of the demonstration shows a failure."""
        end_s, path = time.monotonic() + patience_s, self._paths[change]
        while time.monotonic() < end_s:
            if holds((await self._seen())[path]):
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self, change: DemoChange) -> tuple[str, str]:
        seen = (await self._seen())[self._paths[change]]
        if seen.state == "merged":
            return "landed", ""
        state, why = self.host.verdict(seen, "gate")
        # The state may arrive before the comment that explains it: if so, query again.
        return ("rejected", f"{self._url(change)}\n{why}") if state in _BADLY and why else ("", "")

    def clone(self, project: str) -> Path:
        return self.host.clone(f"{OWNER}{project}")

    def next_steps(self) -> Sequence[str]:
        return (
            "",
            f"The {self.host.actions.kind} stays at {self.host.url}/",
            *self.host.next_steps(),
        )

    async def _seen(self) -> dict[str, PageChange]:
        """Return every change by its path, and print what is new about it."""
        found = {one.path: one for one in await self.host.actions.seen()}
        for path, one in found.items():
            news = (
                *(f"{mark.name} {mark.state}" for mark in one.marks),
                *((one.state,) if one.state != "open" else ()),
            )
            for word in news:
                if word not in self._printed.get(path, ()):
                    self.say(f"  {one.name}: {word}", "dim")
            self._printed[path] = news
        return found

    def _url(self, change: DemoChange) -> str:
        return f"{self.host.url}{self._paths[change].removeprefix(self.host.actions.root)}"
