"""The play: changes are proposed and approved by git alone, and what became of each is read from git alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.cli.scenario import files
from headgate.testing.repositories import Repositories

OUTCOME_TIMEOUT_S = 90.0
LOOK_INTERVAL_S = 0.1
SEEN_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Played:
    """One proposed change, what should become of it, and what did."""

    project: str
    topic: str
    commit: str
    expected: str
    """landed | rejected"""
    outcome: str = "lost"
    note: str = ""


class Play:
    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        self.repositories = Repositories(root)
        self.changes: list[Played] = []
        self._say = say

    def build(self) -> None:
        """The four repositories."""
        for name, content in (("config", files.CONFIG), ("core", files.CORE), ("api", files.API), ("app", files.APP)):
            self.repositories.create(name, content)

    def _propose(
        self, project: str, topic: str, content: dict[str, str], message: str, expected: str = "landed"
    ) -> None:
        commit = self.repositories.propose(project, topic, content, message)
        self.changes.append(Played(project, topic, commit, expected))

    def propose(self) -> None:
        """All of them, each on the heads as they are now."""
        self._say("git push: two changes that have nothing to do with each other")
        self._propose("core", "docs", {"README": "Arithmetic.\n"}, "Say what core is")
        self._propose("app", "docs", {"README": "The application.\n"}, "Say what app is")
        self._say("git push: two changes that pass alone but break together, and one behind them")
        self._propose("core", "rename-add", {"core.py": files.RENAMED}, "Rename add to plus; nobody uses it")
        uses = {"api.py": files.USES_ADD, "test_api.py": files.TEST_ADD}
        self._propose("api", "perimeter", uses, "Compute perimeters with core.add", "rejected")
        self._propose("app", "license", {"LICENSE": "Do what you like.\n"}, "Add a licence")
        self._say("git push: a pair across repositories, the second with a Depends-On footer")
        sub = {"core_sub.py": files.WITH_SUB, "test_own_sub.py": files.TEST_SUB}
        self._propose("core", "sub", sub, "Subtract")
        gap = {"api_gap.py": files.USES_SUB, "test_gap.py": files.TEST_GAP}
        self._propose("api", "gap", gap, "Compute gaps\n\nDepends-On: core/master/sub")
        self._say("git push: a change that breaks its own configuration")
        self._propose("app", "broken", {"zuul.yaml": files.BROKEN}, "Run a job that does not exist", "rejected")

    async def approve(self, seen: Callable[[str], Awaitable[None]]) -> None:
        """One after the other, as people do: repositories are watched each on its own, so that approvals pushed at one
        moment may be seen in another order.  `seen` waits until Headgate knows that a commit is approved."""
        self._say("git push: all of them are approved")
        for change in self.changes:
            await asyncio.to_thread(self.repositories.approve, change.project, change.topic)
            with suppress(TimeoutError):
                async with asyncio.timeout(SEEN_TIMEOUT_S):
                    await seen(change.commit)

    async def outcomes(self) -> None:
        """Waits until git says of each change that it landed or was rejected."""
        end = time.monotonic() + OUTCOME_TIMEOUT_S
        while time.monotonic() < end and any(change.outcome == "lost" for change in self.changes):
            for change in self.changes:
                if change.outcome == "lost":
                    await asyncio.to_thread(self._look, change)
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _look(self, change: Played) -> None:
        note = self.repositories.note(change.project, change.commit)
        _, found, gate = note.partition("Headgate (gate):")
        if not found:
            return
        change.note = gate.split("\nHeadgate (")[0].strip()
        change.outcome = "landed" if "Landed on master as " in gate else "rejected"
        self._say(f"{change.outcome}: {change.project} {change.topic}")

    def heads_pass(self) -> bool:
        """Return the tests of the head of every branch, run here and now."""
        checkout = self.repositories.root / "heads"
        for name in ("core", "api", "app"):
            clone = ["git", "clone", "-q", str(self.repositories.hub / name), str(checkout / name)]
            subprocess.run(clone, check=True, capture_output=True)
        good = True
        path = ":".join(str(checkout / name) for name in ("core", "api", "app"))
        for name in ("core", "api", "app"):
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
