"""Test that errors around a gate are reported on its pages, and the gate continues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.repositories import Repositories, run_git
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import Headgate

UNIT = """#!/bin/sh
if test -e SLOW; then sleep "$(cat SLOW)"; fi
test ! -e BROKEN
"""


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "read me\n"})
        run_git("push", "-q", "origin", "HEAD:refs/heads/stable/1", at=repositories.work(name))
    running = Headgate(repositories, TENANTS)
    running.start()
    yield running
    running.stop()


def note_section(headgate: Headgate, project: str, commit: str, pipeline: str) -> str:
    """Return the pipeline's section of the note, once it exists."""

    def section() -> str:
        note = headgate.repositories.note(project, commit)
        found = re.search(rf"^Headgate \({pipeline}\):\n(.*?)(?=^Headgate \(|\Z)", note, re.DOTALL | re.MULTILINE)
        return found[1] if found else ""

    text = wait_for(f"{pipeline} has told of {commit}", section)
    assert isinstance(text, str)
    return text


def problems(headgate: Headgate) -> dict[str, str]:
    found: list[dict[str, Any]] = headgate.get("/api/tenant/example/status")["problems"]
    return {problem["project"]: problem["text"] for problem in found}


def started(headgate: Headgate, topic: str) -> bool:
    items = [item for item in headgate.items("gate") if item["refs"][0]["topic"] == topic]
    return any(job["start_time"] for item in items for job in item["jobs"])


@pytest.mark.long
def test_a_conflict_names_the_files(headgate: Headgate) -> None:
    repositories = headgate.repositories
    first = repositories.propose("code/api", "first", {"README": "one\n", "grün.txt": "1\n", "SLOW": "1\n"})
    second = repositories.propose("code/api", "second", {"README": "two\n", "grün.txt": "2\n"})
    for topic in ("first", "second"):
        repositories.approve("code/api", topic)
    note = note_section(headgate, "code/api", second, "gate")
    assert "refs/for/master/second of git.example/code/api does not merge into master" in note
    assert "conflicts in: README, grün.txt" in note
    assert "Landed on master" in note_section(headgate, "code/api", first, "gate")


@pytest.mark.long
def test_depends_on_without_a_target_or_in_a_circle_is_reported(headgate: Headgate) -> None:
    repositories = headgate.repositories

    def proposed(topic: str, *footers: str) -> str:
        text = f"Change {topic}\n\n" + "\n".join(f"Depends-On: {footer}" for footer in footers)
        return repositories.propose("code/api", topic, {topic: "x\n"}, text)

    nowhere = proposed("nowhere", "code/lib/master/ghost", "code/lib/unknown/topic", "code/other/master/x")
    for pipeline in ("check", "gate"):
        if pipeline == "gate":
            repositories.approve("code/api", "nowhere")
        note = note_section(headgate, "code/api", nowhere, pipeline)
        assert "ghost" not in note, "what is not proposed yet may come"
        for footer in ("code/lib/unknown/topic", "code/other/master/x"):
            assert f"Depends-On: {footer}: no project has a branch of this name" in note
    one, two = proposed("one", "code/api/master/two"), proposed("two", "code/api/master/one")
    for topic in ("one", "two"):
        repositories.approve("code/api", topic)
    for commit in (one, two):
        assert "Depends-On forms a circle: " in note_section(headgate, "code/api", commit, "gate")
    wait_for("nothing hangs", lambda: not headgate.items("gate") and not headgate.items("check"))


@pytest.mark.long
def test_a_branch_deleted_while_its_changes_are_gated_is_reported(headgate: Headgate) -> None:
    repositories = headgate.repositories
    slow = repositories.propose("code/lib", "slow", {"SLOW": "60\n"}, branch="stable/1")
    repositories.approve("code/lib", "slow", "stable/1")
    wait_for("its job runs", lambda: started(headgate, "slow"))
    run_git("push", "-q", "origin", ":refs/heads/stable/1", at=repositories.work("code/lib"))
    assert "the branch stable/1 of git.example/code/lib was deleted" in note_section(headgate, "code/lib", slow, "gate")
    wait_for("the gate is empty", lambda: not headgate.items("gate"))
    text = wait_for("the status says so", lambda: problems(headgate).get("code/lib"))
    assert "refs/for/stable/1/slow: it names no existing branch" in text


@pytest.mark.long
def test_a_repository_that_disappears_is_waited_for(headgate: Headgate) -> None:
    repositories = headgate.repositories
    lib, away = repositories.hub / "code/lib", repositories.root / "away"
    change = repositories.propose("code/lib", "change", {"SLOW": "1\n"})
    repositories.approve("code/lib", "change")
    wait_for("its job runs", lambda: started(headgate, "change"))
    lib.rename(away)
    wait_for("the status says so", lambda: "it cannot be read" in problems(headgate).get("code/lib", ""))
    other = repositories.propose("code/api", "other", {"other": "x\n"})
    wait_for("others are checked", lambda: "Build succeeded." in repositories.note("code/api", other))
    log = "git.example/code/lib cannot be reached: "
    wait_for("the landing waits", lambda: log in headgate.log.read_text())
    away.rename(lib)
    assert "Landed on master" in note_section(headgate, "code/lib", change, "gate")
    wait_for("all is well", lambda: not problems(headgate))
    text = headgate.log.read_text()
    assert text.count(log) == 1 and text.count("git.example/code/lib cannot be read; retrying until it can") == 1


@pytest.mark.long
def test_a_death_in_the_middle_of_a_landing_lands_once(headgate: Headgate) -> None:
    repositories, root = headgate.repositories, headgate.root
    hook = repositories.hub / "code/api/hooks/pre-receive"
    hook.write_text(f"#!/bin/sh\ngrep -q refs/heads/master || exit 0\necho . >> {root}/pushed\n"
                    f"while test -e {root}/hold; do sleep 0.05; done\n")  # fmt: skip
    hook.chmod(0o755)
    (root / "hold").touch()
    commit = repositories.propose("code/api", "one", {"one": "x\n"})
    repositories.approve("code/api", "one")
    wait_for("it is being pushed", (root / "pushed").exists)
    headgate.kill()
    headgate.start()
    wait_for("it is being pushed again", lambda: (root / "pushed").read_text().count(".") == 2)
    (root / "hold").unlink()
    note = note_section(headgate, "code/api", commit, "gate")
    assert note.count("Landed on master") == 1
    wait_for("the gate is empty", lambda: not headgate.items("gate"))
    log = run_git("log", "--first-parent", "--format=%s", "master", at=repositories.hub / "code/api").splitlines()
    assert log == ["Merge 'one' into master", "Begin"]

    def ends() -> list[str]:
        found = headgate.get("/api/tenant/example/buildsets?complete=true&pipeline=gate")
        return [buildset["result"] for buildset in found]

    assert wait_for("its end is in the history", ends) == ["SUCCESS"]
    assert "refs/for" not in run_git("for-each-ref", at=repositories.hub / "code/api")
