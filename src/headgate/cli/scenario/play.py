"""Play the demonstration at a venue: two changes without a gate, then eight through a gate, each with its outcome."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pygit2

from headgate.adapters.process.joblog import Excerpt
from headgate.adapters.process.returns import RESULT_VARIABLE
from headgate.cli.launch.process import Process
from headgate.cli.scenario import files
from headgate.testing.repositories import run_git

OUTCOME_TIMEOUT_S = 90.0
LOOK_INTERVAL_S = 0.1
SERIAL_CHANGES = 4
"""Number of changes to test one by one, beginning with the first; all of them would take too long for a
demonstration."""
SERIAL_JOBS = (files.UNIT, files.TOGETHER)
"""Scripts of the jobs that each of these changes runs in the gate, in order."""
_REASONS = (re.compile(r"\w+Error: .+"), re.compile(r".+: error: .+"))
"""Match the line of an answer that names the error."""
_REASON_END = "; "
"""Text at which such a line is cut: a hint may follow, which the complete answer has."""


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
        """Return the sections for the settings file that declare its connections."""
        ...

    @property
    def tenants(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    async def build(self) -> None:
        """Make the repositories."""

    async def attend(self, system: Process) -> None:
        """Record that Headgate is running, and its address."""

    async def propose(
        self, project: str, topic: str, content: Mapping[str, str], title: str, needs: DemoChange | None
    ) -> DemoChange:
        """Propose a change on the current head, and return it."""
        ...

    async def checked(self, changes: Sequence[DemoChange]) -> None:
        """Wait until each change has been checked, if people at this venue wait for that."""

    async def approve(self, change: DemoChange) -> None:
        """Approve the change."""

    async def heard(self, change: DemoChange) -> None:
        """Wait until Headgate has seen the approval."""

    async def look(self, change: DemoChange) -> tuple[str, str]:
        """Return the outcome of the change (landed, rejected, or empty for none yet), and Headgate's message about
        it."""
        ...

    def clone(self, project: str) -> Path:
        """Return the repository to clone to see what landed."""
        ...

    def next_steps(self) -> Sequence[str]:
        """Return lines that suggest what to look at and do next."""
        ...


class Merged(NamedTuple):
    """Represent one change that is merged into a clone."""

    project: str
    title: str
    content: Mapping[str, str]


RENAME = Merged("core", "Rename add to plus; nobody uses it", {"core.py": files.RENAMED})
PERIMETER = Merged("api", "Compute perimeters with core.add", {"api.py": files.USES_ADD, "test_api.py": files.TEST_ADD})


def cloned(source: Path, place: Path) -> None:
    """Make a clone of a repository of this machine."""
    pygit2.clone_repository(str(source), str(place))


def merge(clone: Path, change: Merged) -> None:
    """Merge the change into the branch of a clone. Raise RuntimeError if git refuses."""
    repository = pygit2.Repository(clone)
    head, index, ada = repository.head.target, pygit2.Index(), pygit2.Signature("Ada", "ada@example.org")
    index.read_tree(repository[head].peel(pygit2.Tree))
    for path, text in change.content.items():
        index.add(pygit2.IndexEntry(path, repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB))
    commit = repository.create_commit(None, ada, ada, change.title, index.write_tree(repository), [head])
    run_git("merge", "-q", "--no-ff", "-m", f"Merge: {change.title}", str(commit), at=clone)


class Trial:
    """Run the tests of all repositories on the heads of their branches, with changes merged into them."""

    def __init__(self, root: Path, clone: Callable[[str], Path]) -> None:
        """Set up the trial: `clone` returns the repository to clone for a project; clones are below `root` while tests
        run."""
        self._root, self._clone = root, clone

    def failures(self, *changes: Merged) -> Sequence[str]:
        """Return the lines that say why tests fail with these changes merged by git; empty if all pass. Raise
        RuntimeError if git refuses to merge."""
        with tempfile.TemporaryDirectory(dir=self._root) as name:
            place = Path(name)
            for project in files.CODE:
                cloned(self._clone(project), place / project)
            for change in changes:
                merge(place / change.project, change)
            return self._tested(place)

    def _tested(self, place: Path) -> Sequence[str]:
        modules = [file.stem for project in files.CODE for file in sorted((place / project).glob("test_*.py"))]
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", *modules],
            cwd=place,
            # Ignore the user's environment: its PYTHONPATH might contain other modules of these names.
            env={"PYTHONPATH": ":".join(str(place / project) for project in files.CODE), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if not done.returncode:
            return []
        excerpt = Excerpt()
        excerpt.begin()
        excerpt.hear(done.stdout.splitlines())
        excerpt.settle()
        return excerpt.text().splitlines() or [f"the tests ended with status {done.returncode}"]


class SerialTester:
    """Merge changes and run their jobs one after the other, each on top of those that passed."""

    def __init__(self, place: Path, clone: Callable[[str], Path]) -> None:
        """Set up the tester with clones of all repositories, in their current state, below `place`. A call of `clone`
        returns what to clone for a project."""
        self._place, self._source = place, place / "src" / "demo.example"
        self._source.mkdir(parents=True)
        for project in files.CODE:
            cloned(clone(project), self._source / project)
        self._scripts = [place / f"job{number}" for number in range(len(SERIAL_JOBS))]
        for script, text in zip(self._scripts, SERIAL_JOBS, strict=True):
            script.write_text(text.replace("{owner}", ""))

    def passes(self, change: Merged) -> bool:
        """Run the jobs of the change, and return whether all pass; if so, it stays merged."""
        clone = self._source / change.project
        merge(clone, change)
        good = all(self._run(script, clone) for script in self._scripts)
        if not good:
            run_git("reset", "-q", "--hard", "HEAD^", at=clone)
        return good

    def _run(self, script: Path, clone: Path) -> bool:
        command = ["sh", str(script)]
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONDONTWRITEBYTECODE": "1",  # Python notices no change within a second
            "ZUUL_SRC_ROOT": str(self._source.parent),
            RESULT_VARIABLE: str(self._place / "results.json"),
        }
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, check=False)
        return done.returncode == 0


@dataclass(slots=True)
class Played:
    """Record one proposed change, the expected outcome and the real one."""

    change: DemoChange
    proposed: Merged
    expected: str
    """Expected outcome: landed | rejected"""
    outcome: str = "lost"
    note: str = ""

    @property
    def shown(self) -> bool:
        """Return whether the outcome is known and gets a line of its own; all other changes share one line."""
        return self.outcome == "rejected" or (self.outcome == "landed" and self.proposed == RENAME)

    @property
    def reason(self) -> str:
        """Return the line of the answer that names the error; empty if there is none."""
        lines = [line.strip() for line in self.note.splitlines()]
        found = next((line for form in _REASONS for line in lines if form.fullmatch(line)), "")
        return found.partition(_REASON_END)[0]


class DemoPlay:
    """Play the parts of the demonstration, one method each."""

    def __init__(self, root: Path, venue: Venue, say: Callable[[str], None]) -> None:
        self.changes: list[Played] = []
        self._venue, self._say = venue, say
        self._trial = Trial(root, venue.clone)

    async def _propose(
        self,
        project: str,
        topic: str,
        content: dict[str, str],
        title: str,
        expected: str = "landed",
        needs: DemoChange | None = None,
    ) -> DemoChange:
        change = await self._venue.propose(project, topic, content, title, needs)
        self.changes.append(Played(change, Merged(project, title, content), expected))
        return change

    def without_gate(self) -> bool:
        """Merge the two changes that break each other, as people do without a gate, and print the result. Return
        whether the tests fail with both, and with neither alone."""
        self._say("Three repositories depend on each other: app calls api, and api calls core.")
        self._say("Two people write one change each; each change alone passes all tests:")
        good = True
        for change in (RENAME, PERIMETER):
            failures = self._trial.failures(change)
            good = good and not failures
            self._say(f"  {change.project:4}  {change.title:36}  {'FAILS' if failures else 'passes'}")
        self._say("Without a gate, both are merged. Git sees no conflict, but master now fails:")
        lines = self._trial.failures(RENAME, PERIMETER)
        for line in lines[:2]:
            self._say(f"  {line}")
        return good and bool(lines)

    async def propose(self) -> None:
        """Propose all changes, each on the current heads."""
        await self._propose("core", "docs", {"README": "Arithmetic.\n"}, "Say what core is")
        await self._propose("app", "docs", {"README": "The application.\n"}, "Say what app is")
        await self._propose(RENAME.project, "rename-add", dict(RENAME.content), RENAME.title)
        await self._propose(PERIMETER.project, "perimeter", dict(PERIMETER.content), PERIMETER.title, "rejected")
        await self._propose("app", "license", {"LICENSE": "Do what you like.\n"}, "Add a licence")
        # Propose a change after the one that it depends on, because its footer contains the other's address.
        sub = {"core_sub.py": files.WITH_SUB, "test_own_sub.py": files.TEST_SUB}
        first = await self._propose("core", "sub", sub, "Subtract")
        gap = {"api_gap.py": files.USES_SUB, "test_gap.py": files.TEST_GAP}
        await self._propose("api", "gap", gap, "Compute gaps; depends on the change to core", needs=first)
        await self._propose("app", "broken", {"zuul.yaml": files.BROKEN}, "Run a job that nobody defined", "rejected")

    async def answers(self) -> None:
        """Approve all changes, and wait for the outcome of each."""
        await self._approve()
        await self._outcomes()

    async def _approve(self) -> None:
        """Approve the changes one after the other, waiting until Headgate has seen each. Repositories are watched
        separately, so changes that are approved at the same moment may be seen in any order, and the order decides
        which of two conflicting changes fails."""
        await self._venue.checked([played.change for played in self.changes])
        for played in self.changes:
            await self._venue.approve(played.change)
            # Do not wait for the last one: no later approval could overtake it.
            if played is not self.changes[-1]:
                await self._venue.heard(played.change)

    async def _outcomes(self) -> None:
        """Wait until each change has landed or was rejected."""
        end = time.monotonic() + OUTCOME_TIMEOUT_S
        while time.monotonic() < end and any(played.outcome == "lost" for played in self.changes):
            waiting = [played for played in self.changes if played.outcome == "lost"]
            # Query the last change first: if it has an outcome, those ahead of it have theirs, too, and are printed
            # before it.
            for played in reversed(waiting):
                outcome, played.note = await self._venue.look(played.change)
                played.outcome = outcome or "lost"
            for played in waiting:
                self._show(played)
            await asyncio.sleep(LOOK_INTERVAL_S)
        if quiet := [str(played.change) for played in self.changes if not played.shown and played.outcome != "lost"]:
            self._say(f"  landed    {', '.join(quiet)}")

    def _show(self, played: Played) -> None:
        if played.shown:
            self._say(f"  {played.outcome:8}  {played.change.project:4}  {played.proposed.title}")
            if played.reason:
                self._say(f"    {played.reason}")

    def heads_fail(self) -> Sequence[str]:
        """Test the heads of all repositories together, and return the lines that say why tests fail."""
        return self._trial.failures()
