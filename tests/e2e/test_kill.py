"""Test that a process that is killed at any moment and started again loses nothing and does nothing twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories, run_git
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import any_moment, wait_for

from .headgate import SETTINGS, Headgate

SEED = int(os.environ.get("KILL_SEED", "7"))
PROJECTS = ("code/api", "code/lib")
BROKEN = {3, 7}
MOMENTS = (0, 0, 1, 2, 4)
"""One kill each: after so many builds have begun since the previous start, and a moment more."""
RELEASED = (0, 2, 4, 6, 8)
"""At that kill, so many changes have a job that may end. The jobs behind wait, so that the gate is at work. The last
change is killed more often than a job has attempts: a kill is not an attempt."""

UNIT = """#!/bin/sh
umask 0  # every build has a user of its own, and all of them write here
commit=$(git rev-parse HEAD)
echo "$ZUUL_CHANGE $commit" >> OUTSIDE/begun
while ! test -e "OUTSIDE/release-$ZUUL_CHANGE"; do sleep 0.05; done
test ! -e BROKEN || exit 1
echo "$ZUUL_CHANGE $commit" >> OUTSIDE/passed
"""
STORE = "session_timeout = 2\n"
EXECUTOR = "builds = 16\ntrusted_rw_paths = {outside}\nuntrusted_rw_paths = {outside}\n"


class Ten:
    """Propose changes that one queue tests together, whose jobs report and wait outside."""

    def __init__(self, headgate: Headgate, outside: Path) -> None:
        self.headgate, self.outside = headgate, outside
        self.commits: dict[tuple[str, str], str] = {}

    def propose(self) -> None:
        repositories = self.headgate.repositories
        for number in range(10):
            project, topic = PROJECTS[number % 2], f"t{number}"
            files = {f"file{number}": "x\n", **({"BROKEN": "x\n"} if number in BROKEN else {})}
            self.commits[project, topic] = repositories.propose(project, topic, files)
        for project, topic in self.commits:
            repositories.approve(project, topic)

    def release(self, count: int) -> None:
        for number in range(count):
            (self.outside / f"release-t{number}").touch()

    def lines_of(self, name: str) -> list[str]:
        """Return `<topic> <commit>` of each job that has `begun` or `passed`."""
        file = self.outside / name
        return file.read_text().splitlines() if file.exists() else []

    def notes(self) -> dict[str, str]:
        """Return topic -> the gate's note on it, if there is one."""
        note = self.headgate.repositories.note
        found = {
            topic: note(project, c).partition("Headgate (gate):")[2] for (project, topic), c in self.commits.items()
        }
        return {topic: text for topic, text in found.items() if text}


@pytest.fixture
def ten(tmp_path: Path, store: str) -> Iterator[Ten]:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    pipelines = PIPELINES.replace("    check:\n      jobs: [unit]\n", "")
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": pipelines, "jobs/unit": UNIT.replace("OUTSIDE", str(outside))})
    for project in PROJECTS:
        repositories.create(project, {"README": "x\n"})
    settings = STORE + SETTINGS.replace("builds = 8\n", EXECUTOR.format(outside=outside))
    headgate = Headgate(repositories, TENANTS, store, settings)
    headgate.start()
    yield Ten(headgate, outside)
    headgate.stop()


@pytest.mark.sampled
@pytest.mark.parametrize("store", ["sqlite", "zookeeper", "etcd"], indirect=True)
def test_ten_changes_through_five_kills(ten: Ten) -> None:
    print(f"kill moments of KILL_SEED={SEED}")
    chance, headgate = random.Random(SEED), ten.headgate
    ten.propose()
    moments = chance.sample(MOMENTS, len(MOMENTS))
    mark = 0
    for count, moment in zip(RELEASED, moments, strict=True):
        ten.release(count)
        wait_for(f"{moment} builds begin", lambda at=mark + moment: len(ten.lines_of("begun")) >= at)
        any_moment(chance, within_s=0.3)
        headgate.kill()
        assert len(ten.notes()) <= count, "the others hold: there is work left"
        mark = len(ten.lines_of("begun"))
        headgate.start()
    ten.release(10)
    notes = wait_for("every change has an end", lambda: found if len(found := ten.notes()) == 10 else {})
    landed = {topic for topic, note in notes.items() if "Landed on master as" in note}
    assert landed == {f"t{n}" for n in range(10) if n not in BROKEN}
    wait_for("the gate is empty", lambda: not headgate.items("gate"))
    passed = set(ten.lines_of("passed"))
    for project in PROJECTS:
        at = headgate.repositories.hub / project
        log = run_git("log", "--first-parent", "--merges", "--format=%s", "master", at=at).splitlines()
        assert len(log) == len(set(log)) == sum(t in landed for p, t in ten.commits if p == project)
        heads = run_git("log", "--first-parent", "--merges", "--format=%H %P", "master", at=at).splitlines()
        for head, _, change in (line.split() for line in heads):
            topic = next(t for (p, t), commit in ten.commits.items() if (p, commit) == (project, change))
            assert f"{topic} {head}" in passed, f"{topic} of {project} landed untested"
    assert headgate.stop() == 0
    command = [str(Path(sys.executable).with_name("headgate")), "map", "check", "--store", headgate.store]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
