"""Declare what the demonstration needs of a forge or its stand-in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headgate.testing.forges.pages import PageActions, PageChange

OWNER = "acme/"
"""Prefix of the repositories' names."""
TENANT = "example"
"""Name of the tenant, the same as on the pages below docs/how-to."""
AUTHORS, REVIEWER = ("ada", "cleo"), "bob"
HEADGATE, SECRET = "headgate", "open sesame"


class Host(Protocol):
    """Declare what the demonstration needs of a forge, in which Headgate has an account."""

    @property
    def actions(self) -> PageActions: ...
    @property
    def url(self) -> str:
        """Return the address of the forge's pages, without a slash at the end."""
        ...

    @property
    def connection(self) -> str:
        """Return the name of the connection in the pipelines."""
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
        """Give everybody their rights, and protect branches; return the connection's section of the settings."""
        ...

    def hook(self, gate: str) -> None:
        """Let the forge deliver its events to Headgate, whose pages are at this address."""

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        """Propose a change; return the path of its page."""
        ...

    def verdict(self, seen: PageChange, pipeline: str) -> tuple[str, str]:
        """Return the state that the change's page shows for a pipeline (empty: none yet), and Headgate's message
        about it."""
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
        """See `Host`."""

    @abstractmethod
    def settle(self) -> str:
        """See `Host`."""

    @abstractmethod
    def hook(self, gate: str) -> None:
        """See `Host`."""

    @abstractmethod
    def clone(self, project: str) -> Path:
        """See `Host`."""

    @abstractmethod
    def push(self, who: str, project: str, branch: str, files: Mapping[str, str], message: str) -> None:
        """Push a branch with one commit on the default branch."""

    @abstractmethod
    def token(self, who: str) -> str:
        """Return the token that this user shows git in place of a password."""

    async def propose(self, who: str, project: str, topic: str, files: Mapping[str, str], title: str, text: str) -> str:
        """See `Host`."""
        self.push(who, project, topic, files, title)
        return await self.actions.propose(f"{project}:{topic}", who, title, text)

    def verdict(self, seen: PageChange, pipeline: str) -> tuple[str, str]:
        """Return the state that the checks or statuses of the pipeline show, and Headgate's comment if it failed."""
        state = next((mark.state for mark in seen.marks if mark.name == f"{TENANT}/{pipeline}"), "")
        comments = [remark.text for remark in seen.remarks if remark.text.startswith(f"**{pipeline}: ")]
        return state, comments[-1].partition("<!--")[0].strip() if comments else ""

    def next_steps(self) -> Sequence[str]:
        """See `Host`."""
        own = f"{AUTHORS[0]}:{self.token(AUTHORS[0])}"
        return (
            f"To propose a change of your own: git clone {self.url.replace('://', f'://{own}@')}/{OWNER}app.git",
            "commit to a branch, push it, and open the change on that page; approve it as somebody else.",
        )
