"""Clones of the demonstration's repositories, in which changes are merged and tested as people do without a gate."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.adapters.process.joblog import Excerpt
from headgate.cli.scenario import files
from headgate.testing.repositories import run_git


class Merged(NamedTuple):
    """Represent one change that is merged into a clone."""

    project: str
    title: str
    content: Mapping[str, str]


class Trial:
    """Run the tests of all repositories on the heads of their branches, with changes merged into them."""

    def __init__(self, root: Path, clone: Callable[[str], Path]) -> None:
        """Set up the trial: `clone` returns what to clone for a project; clones are below `root` while tests run."""
        self._root, self._clone = root, clone

    def failures(self, *changes: Merged) -> Sequence[str]:
        """Return the lines that say why tests fail with these changes merged by git; empty if all pass. Raise
        RuntimeError when git refuses to merge."""
        with tempfile.TemporaryDirectory(dir=self._root) as name:
            place = Path(name)
            for project in files.CODE:
                run_git("clone", "-q", str(self._clone(project)), str(place / project), at=place)
            for change in changes:
                self._merge(place / change.project, change)
            return self._tested(place)

    def _merge(self, clone: Path, change: Merged) -> None:
        run_git("checkout", "-q", "-b", "change", at=clone)
        for path, text in change.content.items():
            (clone / path).write_text(text)
        run_git("add", "-A", at=clone)
        run_git("commit", "-q", "-m", change.title, at=clone)
        run_git("checkout", "-q", "-", at=clone)
        run_git("merge", "-q", "--no-ff", "-m", f"Merge: {change.title}", "change", at=clone)

    def _tested(self, place: Path) -> Sequence[str]:
        path = ":".join(str(place / project) for project in files.CODE)
        found: list[str] = []
        for project in files.CODE:
            done = subprocess.run(
                [sys.executable, "-B", "-m", "unittest", "discover", "-p", "test_*.py"],
                cwd=place / project,
                # Without the user's environment, whose PYTHONPATH might have other modules of these names.
                env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode:
                excerpt = Excerpt()
                excerpt.begin()
                excerpt.hear(done.stdout.splitlines())
                excerpt.settle()
                found += excerpt.text().splitlines() or [f"the tests of {project} end with {done.returncode}"]
        return found
