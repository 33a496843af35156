"""A process that is killed at any moment and started again loses nothing and does nothing twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.testing.repositories import run_git

from .headgate import Headgate, wait_for


@pytest.mark.parametrize("store", ["sqlite", "zookeeper", "etcd"], indirect=True)
def test_ten_changes_through_five_kills(headgate: Headgate) -> None:
    repositories, chance = headgate.repositories, random.Random(7)
    commits: dict[tuple[str, str], str] = {}
    broken = {3, 7}
    for number in range(10):
        project = ("code/api", "code/lib")[number % 2]
        files = {f"file{number}": "x\n", **({"BROKEN": "x\n"} if number in broken else {})}
        commits[project, f"t{number}"] = repositories.propose(project, f"t{number}", files)
    for project, topic in commits:
        repositories.approve(project, topic)
    for _ in range(5):
        time.sleep(chance.uniform(0.1, 1.2))
        headgate.kill()
        headgate.start()

    def notes() -> dict[str, str]:
        found = {t: repositories.note(p, c).partition("Headgate (gate):")[2] for (p, t), c in commits.items()}
        return found if all(found.values()) else {}

    told = wait_for("every change has an end", notes)
    landed = {topic for topic, note in told.items() if "Landed on master as" in note}
    assert landed == {f"t{n}" for n in range(10) if n not in broken}
    wait_for("the gate is empty", lambda: not headgate.items("gate"))
    for project in ("code/api", "code/lib"):
        log = run_git("log", "--first-parent", "--format=%s", "master", at=repositories.hub / project)
        merges = [line for line in log.splitlines() if line.startswith("Merge ")]
        assert len(merges) == len(set(merges)) == sum(t in landed for p, t in commits if p == project)
    assert headgate.stop() == 0
    command = [str(Path(sys.executable).with_name("headgate")), "map", "check", "--store", headgate.store]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
