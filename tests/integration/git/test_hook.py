"""Test the hook for git servers with real pushes: Headgate accepts whatever it lets pass."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.adapters.git.poll.names import Names
from headgate.cli.hook import hook
from headgate.config.operator.model import TenantProject
from headgate.testing.repositories import Repositories, run_git

from .words import PROJECT

PAGE = Path(__file__).parents[3] / "docs/how-to/use-plain-git.md"
TAKEN = (
    "master/one",
    "master/ada/fix",
    "stable/1.0/x",
    "stable/1.0/x/y",
    "master/" + "/".join("t" * 20),
    "master/a(b)#1",
)
REFUSED = {
    "master": "there is no such branch, or no topic; push to refs/for/<branch>/<topic>",
    "stable": "no such branch, or no topic",
    "stable/1.0": "no such branch, or no topic",
    "mastr/one": "no such branch, or no topic",
    "master/" + "/".join("t" * 21): "at most 20 levels and 200 bytes",
    "master/" + "t" * 201: "at most 20 levels and 200 bytes",
    "master/" + "/".join("t" * 1_000): "too long",
    "master/größe": "letters, digits and signs of ASCII",
    "master/\u202e": "letters, digits and signs of ASCII",
}


@pytest.fixture
def work(repositories: Repositories) -> Path:
    """Make a clone of a repository with the hook."""
    work = repositories.work("code")
    run_git("push", "-q", "origin", "HEAD:refs/heads/stable/1.0", at=work)
    run_git("commit", "-q", "--allow-empty", "-m", "Change nothing", at=work)
    result = CliRunner().invoke(hook, [str(repositories.hub / "code")])
    assert result.exit_code == 0 and "hooks/update" in result.output, result.output
    return work


@pytest.mark.parametrize("name", TAKEN)
def test_the_hook_admits_refs_that_headgate_accepts_and_their_deletion(work: Path, name: str) -> None:
    for kind in ("for", "approved"):
        run_git("push", "-q", "origin", f"HEAD:refs/{kind}/{name}", at=work)
        run_git("push", "-q", "origin", f":refs/{kind}/{name}", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/heads/other", "HEAD:refs/notes/headgate", at=work)


@pytest.mark.parametrize("notes", ["headgate", "headgate-review"])
def test_refs_that_would_block_notes_are_refused_and_can_be_deleted(
    work: Path, repositories: Repositories, notes: str
) -> None:
    ref = f"refs/notes/{notes}/x"
    with pytest.raises(RuntimeError, match="no notes could be written any more; push other notes to refs/notes/<name>"):
        run_git("push", "-q", "origin", f"HEAD:{ref}", at=work)
    run_git("update-ref", ref, "refs/heads/master", at=repositories.hub / "code")
    run_git("push", "-q", "origin", f":{ref}", at=work)


@pytest.mark.parametrize("name", REFUSED)
def test_refs_that_would_block_others_are_refused_with_a_reason(work: Path, name: str) -> None:
    for kind in ("for", "approved"):
        with pytest.raises(RuntimeError) as refused:
            run_git("push", "-q", "origin", f"HEAD:refs/{kind}/{name}", at=work)
        assert REFUSED[name].replace("refs/for", f"refs/{kind}") in str(refused.value)


@pytest.mark.parametrize("what", ["HEAD^{tree}", "HEAD:a", "v1"])
def test_a_proposal_that_is_not_a_commit_is_refused(work: Path, what: str) -> None:
    run_git("tag", "-a", "-m", "one", "v1", at=work)
    with pytest.raises(RuntimeError, match="push a commit"):
        run_git("push", "-q", "origin", f"{what}:refs/for/master/one", at=work)


@pytest.mark.parametrize("commit", ["origin/master", "origin/master~1"])
def test_a_commit_that_the_branch_already_has_is_refused(work: Path, commit: str) -> None:
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
    run_git("commit", "-q", "--allow-empty", "-m", "Change nothing", at=work)
    with pytest.raises(RuntimeError, match="this commit is already in master; commit your change, then push again"):
        run_git("push", "-q", "origin", f"{commit}:refs/for/master/one", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/one", "origin/master:refs/for/stable/1.0/one", at=work)


def test_headgate_accepts_every_name_that_the_hook_accepts() -> None:
    names = Names([TenantProject(PROJECT, "code", "local", False)])
    names.saw(PROJECT, ["refs/heads/master", "refs/heads/stable/1.0"])
    assert not [name for name in TAKEN if names.misfit(PROJECT, name)]
    assert [name for name in REFUSED if not names.misfit(PROJECT, name)] == ["master/größe"]


def test_a_hook_of_somebody_else_stays(repositories: Repositories) -> None:
    theirs = repositories.hub / "code/hooks/update"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("#!/bin/sh\nexit 0\n")
    result = CliRunner().invoke(hook, [str(repositories.hub / "code")])
    assert result.exit_code != 0 and theirs.read_text() == "#!/bin/sh\nexit 0\n"
    assert CliRunner().invoke(hook, [str(repositories.root)]).exit_code != 0


def test_the_command_prints_the_hook_as_a_valid_script() -> None:
    result = CliRunner().invoke(hook, [])
    assert result.output.startswith("#!/bin/sh\n")
    assert subprocess.run(["sh", "-n"], input=result.output, text=True, check=False).returncode == 0


def test_the_rules_for_gitolite_refuse_refs_that_block_others() -> None:
    """gitolite anchors the pattern of a rule at the beginning of the ref."""
    rules = re.findall(r"^ +- +(refs/\S+) += @all$", PAGE.read_text(), re.MULTILINE)
    assert rules

    def is_refused(ref: str) -> bool:
        return any(re.match(rule, ref) for rule in rules)

    for kind in ("for", "approved"):
        assert is_refused(f"refs/{kind}/master") and is_refused(f"refs/{kind}/stable/1.0")
        assert is_refused(f"refs/{kind}/master/" + "/".join("t" * 30))
        assert not [name for name in TAKEN if is_refused(f"refs/{kind}/{name}") and "(" not in name]
    assert not is_refused("refs/heads/master")


def test_a_push_prints_the_address_of_the_change(
    repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, hub = repositories.work("code"), repositories.hub
    tenant = "- tenant:\n    name: ex'ample\n    source: {local: {untrusted-projects: [code]}}\n"
    (tmp_path / "tenants.yaml").write_text(tenant)
    settings = f"[web]\nroot = https://gate.example/\n[connection local]\nbaseurl = {hub}\ncanonical_hostname = h\n"
    (tmp_path / "headgate.conf").write_text(settings)
    words = ["install", "--config", str(tmp_path / "headgate.conf"), str(hub / "code")]
    for _ in range(2):
        result = CliRunner().invoke(hook, words)
        assert result.exit_code == 0 and "hooks/update" in result.output and "hooks/post-receive" in result.output, (
            result.output
        )

    def shown(*refs: str) -> list[str]:
        done = subprocess.run(["git", "push", "origin", *refs], cwd=work, capture_output=True, text=True, check=True)
        lines = (line.removeprefix("remote:").strip() for line in done.stderr.splitlines())
        return [line for line in lines if "https://" in line]

    page = "https://gate.example/t/ex%27ample"
    run_git("commit", "-q", "--allow-empty", "-m", "Change nothing", at=work)
    proposed = shown("HEAD:refs/for/master/ada/fix-1")
    assert proposed == [
        f"Headgate: {page}/status",
        f"what became of it, once it is tested: {page}/buildsets?project=h%2Fcode&change=ada/fix-1",
    ]
    assert shown("HEAD:refs/for/master/one", "HEAD:refs/approved/master/one")[0] == f"Headgate: {page}/status"
    assert shown("HEAD:refs/for/master/$(touch${IFS}evil);'x'") == [f"Headgate: {page}/status"]
    assert shown("HEAD:refs/heads/other") == shown(":refs/for/master/one") == []
    assert CliRunner().invoke(hook, [*words[:-1], "--people", "headgate", words[-1]]).exit_code == 0
    monkeypatch.setenv("GL_USER", "ada")
    assert shown("HEAD:refs/approvals/ada/master/ada/fix-1") == proposed


def test_a_foreign_hook_stays_and_missing_settings_are_named(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    at = repositories.hub / "code"
    result = CliRunner().invoke(hook, ["install", str(at)])
    assert result.exit_code == 0 and "give --page" in result.output and not (at / "hooks/post-receive").exists()
    theirs = at / "hooks/post-receive"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("#!/bin/sh\nmail\n")
    result = CliRunner().invoke(hook, ["install", "--page", "https://gate.example/t/x", str(at)])
    assert result.exit_code and "already exists" in str(result.exception) and theirs.read_text() == "#!/bin/sh\nmail\n"
