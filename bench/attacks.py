"""Measure the effect of an attack on neighbours: the time until their changes have landed, quiet and attacked, in one
run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headgate.cli.terminal.screen import TextTable
from headgate.testing.repositories import run_git
from tests.hostile.arena import ATTACKER, Arena

ROUNDS = 7
FLOOD = 300
SETTLE_S = 3.0
"""Duration of an attack before anybody else proposes something."""

_CHECKED = "- project: {check: {jobs: [attack]}}\n"
_JOB = "- job: {name: attack, run: jobs/attack}\n"


def _script(text: str) -> Callable[[Arena], None]:
    def begin(arena: Arena) -> None:
        for number in range(3):
            arena.attack(f"attack{number}", f"#!/bin/sh\n{text}\n")

    return begin


def _configured(text: str) -> Callable[[Arena], None]:
    def begin(arena: Arena) -> None:
        for number in range(3):
            arena.propose(ATTACKER, f"attack{number}", {"zuul.yaml": text, "jobs/attack": "#!/bin/sh\n"})

    return begin


def _patterns(arena: Arena) -> None:
    """Propose jobs whose patterns take exponential time on the names of the files that they come with."""
    text = "- job: {name: attack, run: jobs/attack, files: '^(?!z)(a+)+b$'}\n" + _CHECKED
    for number in range(3):
        arena.propose(ATTACKER, f"attack{number}", {"zuul.yaml": text, "a" * 40: "", "jobs/attack": "#!/bin/sh\n"})


def _flood(arena: Arena) -> None:
    """Propose many changes, all in one push."""
    work = arena.repositories.work(ATTACKER)
    arena.propose(ATTACKER, "first", {"first": "x\n"})
    refs = []
    for number in range(FLOOD):
        # Amended, so that each proposal is a single commit on the same head.
        run_git("commit", "-q", "--allow-empty", "--amend", "-m", f"flood {number}", at=work)
        refs.append(f"{run_git('rev-parse', 'HEAD', at=work)}:refs/for/master/flood{number}")
    run_git("push", "-q", "origin", *refs, at=work)


ATTACKS: dict[str, Callable[[Arena], None]] = {
    "jobs that fork without end": _script("f() { f & f; }; f; sleep 60"),
    "jobs that take all memory": _script("tail -c +1 /dev/zero | tail -c 1"),
    "jobs that burn all processors": _script("for i in 1 2 3 4; do (while :; do :; done) & done; sleep 60"),
    f"{FLOOD} proposals in one push": _flood,
    "5,000 jobs in one proposal": _configured(
        "".join(f"- job: {{name: j{n}, run: jobs/attack}}\n" for n in range(5_000))
        + f"- project: {{check: {{jobs: [{', '.join(f'j{n}' for n in range(5_000))}]}}}}\n"
    ),
    "a pattern that never ends": _patterns,
    "50 MB of configuration": _configured(_JOB + _CHECKED + "# " + "x" * 50_000_000 + "\n"),
}


def measure(rounds: int = ROUNDS) -> TextTable:
    """Play each attack in an arena of its own; return medians, in seconds, of `rounds` landings of two neighbours."""
    title = "What neighbours notice: seconds until their changes have landed"
    table = TextTable("attack", "quiet", "attacked", "ratio", "slowest", title=title)
    for name, begin in ATTACKS.items():
        with tempfile.TemporaryDirectory() as root, Arena(Path(root)) as arena:
            # The first landing fills caches, and is not counted.
            arena.neighbours_land()
            quiet = [arena.neighbours_land() for _ in range(rounds)]
            begin(arena)
            time.sleep(SETTLE_S)
            attacked = [arena.neighbours_land(deadline_s=600.0) for _ in range(rounds)]
        before, after = statistics.median(quiet), statistics.median(attacked)
        table.add_row(name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}", f"{max(attacked):.2f}")
    return table
