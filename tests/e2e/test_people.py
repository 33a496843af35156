"""Test approvals of several people on plain git with `headgate run`, with real pushes to a server that binds names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Page, expect

from headgate.cli.hook import hook
from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate

UNIT = "#!/bin/sh\nwhile test -e HOLD && test $ZUUL_PIPELINE = gate; do sleep 0.1; done\n"
WANTED = "approvals: {count: 2, not-author: true}\n        veto: false"


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    pipelines = PIPELINES.replace("approved: true", WANTED)
    repositories.create("config", {"zuul.yaml": pipelines, "jobs/unit": UNIT})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "x\n"})
        result = CliRunner().invoke(hook, ["--people", getuser(), str(repositories.hub / name)])
        assert result.exit_code == 0, result.output
    settings = SETTINGS.replace("[connection local]", "[connection local]\napprovals = bound")
    running = Headgate(repositories, TENANTS, settings=settings)
    running.start()
    yield running
    running.stop()


def push(headgate: Headgate, who: str, spec: str) -> str:
    """Return the server's message to the person with this name."""
    work = headgate.repositories.work("code/api")
    command = ["git", "push", "-q", "-f", "origin", spec]
    environment = {**os.environ, "GL_USER": who}
    return subprocess.run(command, cwd=work, capture_output=True, text=True, env=environment, check=False).stderr


@pytest.mark.long
def test_a_change_that_two_people_approve_lands_and_they_are_named(
    headgate: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    repositories = headgate.repositories
    monkeypatch.setenv("GL_USER", "ada")
    commit = repositories.propose("code/api", "one", {"a": "x\n"})
    wait_for("it is checked", lambda: "Build succeeded" in repositories.note("code/api", commit))
    assert "Proposed by ada." in repositories.note("code/api", commit)
    assert push(headgate, "ada", "HEAD:refs/approvals/ada/master/one") == ""
    assert push(headgate, "grace", "HEAD:refs/approvals/grace/master/one") == ""
    assert "you are grace here, not heinz" in push(headgate, "grace", "HEAD:refs/approvals/heinz/master/one")
    assert push(headgate, "tony", "HEAD:refs/vetoes/tony/master/one") == ""
    assert push(headgate, "heinz", "HEAD:refs/approvals/heinz/master/one") == ""
    assert push(headgate, "tony", ":refs/vetoes/tony/master/one") == ""
    wait_for("it lands", lambda: "Landed on master" in repositories.note("code/api", commit))
    note = repositories.note("code/api", commit)
    assert "Proposed by ada; approved by ada, grace, heinz." in note
    wait_for("what was said of it is gone", lambda: not personal_refs(headgate))
    assert repositories.show("code/api", "a") == "x"


@pytest.mark.long
def test_pages_name_who_wrote_proposed_and_approved_a_change(
    headgate: Headgate, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    repositories = headgate.repositories
    monkeypatch.setenv("GL_USER", "ada")
    commit = repositories.propose("code/api", "one", {"a": "x\n"})
    for who in ("heinz", "tony"):
        assert push(headgate, who, f"HEAD:refs/approvals/{who}/master/one") == ""
    wait_for("it lands", lambda: "Landed on master" in repositories.note("code/api", commit))
    gate = "/api/tenant/example/buildsets?complete=true&pipeline=gate"
    (landed,) = wait_for("it is in the history", lambda: headgate.get(gate))
    page.goto(f"{headgate.url}/t/example/buildset/{landed['uuid']}")
    facts = page.locator("dl")
    for named in ("Ada <ada@example.org>", "ada", "heinz, tony"):
        expect(facts.locator("dd", has_text=named).first).to_be_visible()
    build = headgate.get("/api/tenant/example/builds?complete=true&pipeline=gate")[0]
    page.goto(f"{headgate.url}/t/example/build/{build['uuid']}")
    expect(page.locator("dd", has_text="heinz, tony")).to_be_visible()

    repositories.propose("code/api", "two", {"HOLD": "x\n"})
    for who in ("heinz", "tony"):
        assert push(headgate, who, f"HEAD:refs/approvals/{who}/master/two") == ""
    page.goto(f"{headgate.url}/t/example/status/gate")
    people = page.locator(".item .people")
    expect(people).to_contain_text("by Ada · proposed by ada · approved by heinz, tony")


def personal_refs(headgate: Headgate) -> list[str]:
    hub = headgate.repositories.hub / "code/api"
    listed = subprocess.run(["git", "for-each-ref", "--format=%(refname)"], cwd=hub, capture_output=True, text=True)
    words = ("refs/approvals/", "refs/proposers/", "refs/for/")
    return [ref for ref in listed.stdout.split() if ref.startswith(words)]
