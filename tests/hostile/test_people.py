"""Test several people on one repository: nobody speaks as another, and a withdrawn approval lets nothing land."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from headgate.cli.hook import hook
from headgate.gate.state.works import LandAnswer, LandRequest
from headgate.testing.repositories import Repositories, run_git
from tests.integration.git.words import PROJECT, change, engine, item, refs, state_of


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("code", {"a": "a\n"})
    return found


@pytest.fixture
def bound(repositories: Repositories) -> Repositories:
    """Install the rules that bind names; Headgate pushes as `headgate`."""
    result = CliRunner().invoke(hook, ["--people", "headgate", str(repositories.hub / "code")])
    assert result.exit_code == 0, result.output
    return repositories


def push(repositories: Repositories, who: str, *specs: str) -> str:
    """Return the server's message to the person with this name; empty if it accepts everything."""
    environment = {**os.environ, "GL_USER": who}
    command = ["git", "push", "-q", "-f", "origin", *specs]
    done = subprocess.run(command, cwd=repositories.work("code"), capture_output=True, text=True, env=environment)
    return done.stderr if done.returncode else ""


def proposed(repositories: Repositories, who: str, topic: str = "one") -> str:
    work: Path = repositories.work("code")
    run_git("checkout", "-q", "--detach", "origin/master", at=work)
    repositories.write("code", {topic: f"{who}\n"})
    run_git("commit", "-q", "-m", topic, at=work)
    assert push(repositories, who, f"HEAD:refs/for/master/{topic}") == ""
    return run_git("rev-parse", "HEAD", at=work)


def test_people_speak_under_their_own_names_alone(bound: Repositories) -> None:
    proposed(bound, "ada")
    for kind in ("approvals", "vetoes"):
        assert push(bound, "grace", f"HEAD:refs/{kind}/grace/master/one") == ""
        for forged in ("heinz", "Grace", "grace.", "headgate"):
            output = push(bound, "grace", f"HEAD:refs/{kind}/{forged}/master/one")
            assert f"you are grace here, not {forged}" in output, output
        assert "no such branch" in push(bound, "grace", f"HEAD:refs/{kind}/grace")
        assert "no such branch" in push(bound, "grace", f"HEAD:refs/{kind}/grace/nowhere/one")
        assert "not grace" in push(bound, "heinz", f":refs/{kind}/grace/master/one"), "nor takes anybody it back"
        assert "not grace" in push(bound, "headgate", f"HEAD~0:refs/{kind}/grace/master/two"), "nor does Headgate speak"
        assert push(bound, "headgate", f":refs/{kind}/grace/master/one") == "", "it clears up"
        assert push(bound, "grace", f"HEAD:refs/{kind}/grace/master/one", f":refs/{kind}/grace/master/one") != ""


def test_proposers_are_recorded_and_nobody_can_push_such_records(bound: Repositories) -> None:
    commit = proposed(bound, "ada")
    hub = bound.hub / "code"
    assert run_git("rev-parse", "refs/proposers/ada/master/one", at=hub) == commit
    for who in ("ada", "grace", "headgate"):
        output = push(bound, who, "HEAD:refs/proposers/grace/master/one")
        assert "nobody pushes refs/proposers" in output
    assert "nobody pushes" in push(bound, "ada", ":refs/proposers/ada/master/one")
    assert "cannot be part of a ref" in push(bound, "a b", "HEAD:refs/for/master/two")
    assert push(bound, "grace", ":refs/for/master/one") == ""
    assert not [ref for ref in refs(bound) if ref.startswith("refs/proposers")]


def test_a_refused_push_does_not_delete_the_record_of_a_proposer(bound: Repositories) -> None:
    """Otherwise a proposer could approve under a name that no record contains."""
    commit, hub = proposed(bound, "ada"), bound.hub / "code"
    output = push(bound, "ada", "--atomic", ":refs/for/master/one", "HEAD:refs/for/master")
    assert "rejected" in output and run_git("rev-parse", "refs/for/master/one", at=hub) == commit
    assert run_git("rev-parse", "refs/proposers/ada/master/one", at=hub) == commit
    proposed(bound, "grace", "two")
    assert push(bound, "ada", "--atomic", ":refs/for/master/one", ":refs/for/master/two") == ""
    assert not [ref for ref in refs(bound) if ref.startswith("refs/proposers")]


def test_without_the_account_nobody_approves_by_name(repositories: Repositories) -> None:
    assert CliRunner().invoke(hook, [str(repositories.hub / "code")]).exit_code == 0
    proposed(repositories, "ada")
    output = push(repositories, "grace", "HEAD:refs/approvals/grace/master/one")
    assert "this server does not know who is who" in output
    assert not [ref for ref in refs(repositories) if ref.startswith("refs/proposers")]


async def test_a_landing_needs_the_approvals_at_the_server_and_removes_them(
    bound: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, before = proposed(bound, "ada"), bound.head("code")
    for who in ("grace", "heinz", "tony"):
        push(bound, who, f"HEAD:refs/approvals/{who}/master/one")
    monkeypatch.setenv("GL_USER", "headgate")
    git = engine(bound)
    state = await state_of(git, item(commit, "one"))
    names = [f"refs/approvals/{who}/master/one" for who in ("grace", "heinz", "tony")]
    request = LandRequest(
        "b", state, change(commit, "one"), state.merged[PROJECT]["master"], "It passed.", "gate",
        leases=tuple(names[:2]), vetoed=True, approvals=dict.fromkeys(names, commit),
    )  # fmt: skip
    push(bound, "heinz", ":refs/approvals/heinz/master/one")
    answer = await git.do(request)
    assert isinstance(answer, LandAnswer) and not answer.ok
    assert "its approval was withdrawn: refs/approvals/heinz/master/one is no longer" in answer.error
    push(bound, "heinz", f"{commit}~1:refs/approvals/heinz/master/one")
    answer = await git.do(request)
    assert isinstance(answer, LandAnswer) and not answer.ok, "it is of another commit"
    push(bound, "heinz", f"{commit}:refs/approvals/heinz/master/one")
    push(bound, "eve", f"{commit}:refs/vetoes/eve/master/one")
    answer = await git.do(request)
    assert isinstance(answer, LandAnswer) and "it was vetoed by eve" in answer.error
    assert bound.head("code") == before
    assert (await git.do(replace(request, vetoed=False))) == LandAnswer("b", True)
    assert refs(bound) == {"refs/heads/master", "refs/notes/headgate", "refs/vetoes/eve/master/one"}


async def test_an_approval_withdrawn_during_the_push_stops_the_push(
    bound: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself refuses: the approval is withdrawn after Headgate's check, before the push arrives."""
    commit, before = proposed(bound, "ada"), bound.head("code")
    push(bound, "grace", "HEAD:refs/approvals/grace/master/one")
    monkeypatch.setenv("GL_USER", "headgate")
    git, hub = engine(bound), bound.hub / "code"
    state = await state_of(git, item(commit, "one"))
    script = hub / "hooks" / "pre-receive"
    script.write_text("#!/bin/sh\nrm -f refs/approvals/grace/master/one\n")
    script.chmod(0o755)
    request = LandRequest(
        "b", state, change(commit, "one"), state.merged[PROJECT]["master"], "It passed.", "gate",
        leases=("refs/approvals/grace/master/one",),
    )  # fmt: skip
    answer = await git.do(request)
    assert isinstance(answer, LandAnswer) and not answer.ok and bound.head("code") == before, answer
