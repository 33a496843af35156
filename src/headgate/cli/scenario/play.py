"""The play: changes are proposed and approved at a venue, and what became of each is read there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario import files
from headgate.cli.scenario.venue import Proposed, Venue

OUTCOME_TIMEOUT_S = 90.0
LOOK_INTERVAL_S = 0.1


@dataclass(slots=True)
class Played:
    """One proposed change, what should become of it, and what did."""

    change: Proposed
    expected: str
    """landed | rejected"""
    outcome: str = "lost"
    note: str = ""


class Play:
    def __init__(self, root: Path, venue: Venue, say: Callable[[str], None]) -> None:
        self.changes: list[Played] = []
        self._root, self._venue, self._say = root, venue, say

    async def _propose(
        self,
        project: str,
        topic: str,
        content: dict[str, str],
        title: str,
        expected: str = "landed",
        needs: Proposed | None = None,
    ) -> Proposed:
        change = await self._venue.propose(project, topic, content, title, needs)
        self.changes.append(Played(change, expected))
        return change

    async def propose(self) -> None:
        """All of them, each on the heads as they are now."""
        by = self._venue.proposes
        self._say(f"{by}two changes that have nothing to do with each other")
        await self._propose("core", "docs", {"README": "Arithmetic.\n"}, "Say what core is")
        await self._propose("app", "docs", {"README": "The application.\n"}, "Say what app is")
        self._say(f"{by}two changes that pass alone but break together, and one behind them")
        await self._propose("core", "rename-add", {"core.py": files.RENAMED}, "Rename add to plus; nobody uses it")
        uses = {"api.py": files.USES_ADD, "test_api.py": files.TEST_ADD}
        await self._propose("api", "perimeter", uses, "Compute perimeters with core.add", "rejected")
        await self._propose("app", "license", {"LICENSE": "Do what you like.\n"}, "Add a licence")
        self._say(f"{by}a pair across repositories, the second with a Depends-On footer")
        sub = {"core_sub.py": files.WITH_SUB, "test_own_sub.py": files.TEST_SUB}
        first = await self._propose("core", "sub", sub, "Subtract")
        gap = {"api_gap.py": files.USES_SUB, "test_gap.py": files.TEST_GAP}
        await self._propose("api", "gap", gap, "Compute gaps", needs=first)
        self._say(f"{by}a change that breaks its own configuration")
        await self._propose("app", "broken", {"zuul.yaml": files.BROKEN}, "Run a job that does not exist", "rejected")

    async def approve(self) -> None:
        """One after the other, as people do.  Repositories are watched each on its own: what is approved at one moment
        may be seen in another order, and that decides which of two that break each other fails."""
        await self._venue.checked([played.change for played in self.changes])
        self._say(f"{self._venue.proposes}all of them are approved")
        for played in self.changes:
            await self._venue.approve(played.change)
            if played is not self.changes[-1]:
                await self._venue.heard(played.change)

    async def outcomes(self) -> None:
        """Wait until it is told of each change that it landed or was rejected."""
        end = time.monotonic() + OUTCOME_TIMEOUT_S
        while time.monotonic() < end and any(played.outcome == "lost" for played in self.changes):
            for played in self.changes:
                if played.outcome == "lost":
                    await self._look(played)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self, played: Played) -> None:
        outcome, played.note = await self._venue.look(played.change)
        if outcome:
            played.outcome = outcome
            self._say(f"{outcome}: {played.change}")

    def heads_pass(self) -> bool:
        """Return the tests of the head of every branch, run here and now."""
        checkout = self._root / "heads"
        for name in files.CODE:
            clone = ["git", "clone", "-q", str(self._venue.clone(name)), str(checkout / name)]
            subprocess.run(clone, check=True, capture_output=True)
        good = True
        path = ":".join(str(checkout / name) for name in files.CODE)
        for name in files.CODE:
            done = subprocess.run(
                [sys.executable, "-m", "unittest", "discover", "-p", "test_*.py"],
                cwd=checkout / name,
                env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                check=False,
                text=True,
            )
            self._say(f"head of {name}: tests {'pass' if done.returncode == 0 else 'FAIL'}")
            good = good and done.returncode == 0
        return good
