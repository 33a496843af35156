"""Declare what the demonstration needs of its venue: plain git, a forge or its stand-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headgate.cli.launch.process import Process


@dataclass(frozen=True, slots=True)
class DemoChange:
    """Name a change of the demonstration."""

    project: str
    topic: str

    def __str__(self) -> str:
        return f"{self.project} {self.topic}"


class Venue(Protocol):
    """Declare where people propose and approve, and read the results."""

    @property
    def settings(self) -> str:
        """Return the sections of its connections for the settings file."""
        ...

    @property
    def tenants(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    async def build(self) -> None:
        """Make the repositories."""

    async def attend(self, system: Process) -> None:
        """Take note that Headgate runs, and at which address."""

    async def propose(
        self, project: str, topic: str, content: Mapping[str, str], title: str, needs: DemoChange | None
    ) -> DemoChange:
        """Propose a change on the current head."""
        ...

    async def checked(self, changes: Sequence[DemoChange]) -> None:
        """Wait until each change has been checked, on venues where people wait for that."""

    async def approve(self, change: DemoChange) -> None:
        """Approve the change."""

    async def heard(self, change: DemoChange) -> None:
        """Wait until Headgate has seen the approval."""

    async def look(self, change: DemoChange) -> tuple[str, str]:
        """Return the outcome of the change (landed, rejected, or empty for none yet), and Headgate's message about
        it."""
        ...

    def clone(self, project: str) -> Path:
        """Return the URL to clone in order to see what landed."""
        ...

    def next_steps(self) -> Sequence[str]:
        """Return lines about what people can look at and do afterwards."""
        ...
