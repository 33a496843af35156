"""Test configuration pushed past the gate with real pushes: a broken one changes nothing, and removed objects leave
nothing behind."""

from __future__ import annotations

import pytest

from headgate.testing.repositories import run_git
from tests.integration.conftest import PIPELINES
from tests.waiting import wait_for

from .headgate import Headgate
from .test_readiness import held, note

TORN = PIPELINES.replace("name: gate\n    manager: dep", "name: [gate")
RENAMED = PIPELINES.replace("name: gate\n", "name: integrate\n").replace("    gate:\n", "    integrate:\n")


def pushed(headgate: Headgate, text: str) -> str:
    """Push to the config project; return the commit."""
    work = headgate.repositories.work("config")
    headgate.repositories.write("config", {"zuul.yaml": text})
    run_git("commit", "-q", "-m", "Configure", at=work)
    run_git("push", "-q", "origin", "HEAD:master", at=work)
    return run_git("rev-parse", "HEAD", at=work)


def not_in_force(headgate: Headgate) -> bool:
    problems = headgate.get("/api/tenant/example/status")["problems"]
    return any("the previous one stays in force" in problem["text"] for problem in problems)


def lands(headgate: Headgate, topic: str) -> None:
    headgate.repositories.propose("code/lib", topic, {topic: "x\n"})
    headgate.repositories.approve("code/lib", topic)
    wait_for(f"{topic} lands", lambda: topic in run_git("ls-tree", "master", at=headgate.repositories.hub / "code/lib"))


@pytest.mark.long
def test_a_broken_configuration_changes_nothing_and_a_renamed_pipeline_leaves_nothing(headgate: Headgate) -> None:
    wait_for("something is in force", lambda: headgate.get("/api/tenant/example/status")["pipelines"])
    commit = pushed(headgate, TORN)
    wait_for("the status says so", lambda: not_in_force(headgate))
    errors = headgate.get("/api/tenant/example/config-errors")
    assert errors[0]["name"] == "Not In Force" and any(error["source_context"]["line"] for error in errors)
    wait_for("who pushed it is told", lambda: "not in effect" in headgate.repositories.note("config", commit))
    headgate.kill()
    headgate.start()
    wait_for("the status still says so", lambda: not_in_force(headgate))
    lands(headgate, "one")
    waits = held(headgate, "waits")
    pushed(headgate, RENAMED)
    note(headgate, waits, "Headgate (gate)", "The pipeline gate was removed")
    wait_for("it is mended", lambda: not not_in_force(headgate))
    assert headgate.get("/api/tenant/example/config-errors") == []
    names = [pipeline["name"] for pipeline in headgate.get("/api/tenant/example/status")["pipelines"]]
    assert names == ["check", "integrate"]
    lands(headgate, "two")
