"""Define where the demonstration plays: plain git, or a stand-in for a forge."""

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
        """Return the sections of its connections."""
        ...

    @property
    def tenants(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    async def build(self) -> None:
        """Make the repositories."""

    async def attend(self, whole: Process) -> None:
        """Know that Headgate runs, and where."""

    async def propose(
        self, project: str, topic: str, content: Mapping[str, str], title: str, needs: DemoChange | None
    ) -> DemoChange:
        """Propose a change on the head as it is now."""
        ...

    async def checked(self, changes: Sequence[DemoChange]) -> None:
        """Wait until each has been checked, where people wait for that."""

    async def approve(self, change: DemoChange) -> None:
        """Approve it."""

    async def heard(self, change: DemoChange) -> None:
        """Wait until Headgate knows that it is approved."""

    async def look(self, change: DemoChange) -> tuple[str, str]:
        """Return what became of it (landed, rejected or nothing yet), and what Headgate says of it."""
        ...

    def clone(self, project: str) -> Path:
        """Return what to clone, to see what landed."""
        ...

    def doors(self) -> Sequence[str]:
        """Return lines that say what people can look at and do afterwards."""
        ...
