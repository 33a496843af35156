"""Test `headgate propose`, `approve`, `recheck` and `withdraw` in a work tree, with real pushes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.proposals import approve, propose, recheck, withdraw
from headgate.testing.repositories import Repositories, run_git


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """Use Ada's clone as the current directory."""
    found = Repositories(tmp_path)
    found.create("code", {"a": "a\n"})
    work = found.work("code")
    monkeypatch.chdir(work)
    for variable in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"):
        monkeypatch.delenv(variable, raising=False)
    run_git("config", "user.name", "Ada", at=work)
    run_git("config", "user.email", "ada@example.org", at=work)
    return found


def commit(tree: Repositories, subject: str, text: str = "b\n", author: str = "") -> str:
    work = tree.work("code")
    tree.write("code", {"a": text})
    run_git("commit", "-q", "-m", subject, *([f"--author={author}"] if author else []), at=work)
    return run_git("rev-parse", "HEAD", at=work)


def says(command: object, *args: str) -> str:
    """Return the output of the command or, if it refuses, the reason."""
    done = CliRunner().invoke(command, args)  # type: ignore[arg-type]  # a command
    return done.output if done.exception is None else str(done.exception)


def refs(tree: Repositories) -> dict[str, str]:
    out = run_git("for-each-ref", "--format=%(refname) %(objectname)", at=tree.hub / "code")
    return {name: commit for name, commit in (line.split() for line in out.splitlines()) if "heads" not in name}


def test_a_change_is_proposed_again_and_withdrawn(tree: Repositories) -> None:
    first = commit(tree, "Greet: the whole World!")
    output = says(propose)
    assert f"Proposed the change greet-the-whole-world for master: {first[:8]} Greet: the whole World!" in output
    assert f"git push origin {first[:8]}:refs/approved/master/greet-the-whole-world" in output
    assert refs(tree) == {"refs/for/master/greet-the-whole-world": first}
    assert "is already proposed" in says(propose)
    run_git("commit", "-q", "--amend", "-m", "Greet: the whole world", at=tree.work("code"))
    second = run_git("rev-parse", "HEAD", at=tree.work("code"))
    assert "Proposed a new patchset of greet-the-whole-world" in says(propose)
    tree.approve("code", "greet-the-whole-world")
    assert refs(tree)["refs/for/master/greet-the-whole-world"] == second
    assert f"Withdrew greet-the-whole-world from master: {second[:8]}" in says(withdraw)
    assert refs(tree) == {}
    assert "there is no proposal greet-the-whole-world for master" in says(withdraw)


def test_the_suggested_command_names_the_remote_and_the_branch(tree: Repositories) -> None:
    work = tree.work("code")
    run_git("remote", "rename", "origin", "upstream", at=work)
    run_git("push", "-q", "upstream", "HEAD:refs/heads/stable", at=work)
    first = commit(tree, "one")
    output = says(propose, "--remote", "upstream", "--branch", "stable", "one")
    assert f"git push upstream {first[:8]}:refs/approved/stable/one" in output
    assert "git fetch upstream refs/notes/headgate:refs/notes/headgate" in output
    assert "headgate withdraw --remote upstream --branch stable one" in output and "origin" not in output
    again = says(propose, "--remote", "upstream", "--branch", "stable", "one")
    assert "headgate recheck --remote upstream --branch stable one" in again
    assert f"git push upstream {first[:8]}:refs/for/stable/one" in says(
        withdraw, "--remote", "upstream", "--branch", "stable", "one"
    )


def test_the_topic_is_the_branch_or_the_given_name(tree: Repositories) -> None:
    run_git("checkout", "-q", "-b", "ada/fix", at=tree.work("code"))
    one = commit(tree, "x")
    assert "the change ada/fix for master" in says(propose)
    assert "the change other for master" in says(propose, "other")
    assert refs(tree) == {"refs/for/master/ada/fix": one, "refs/for/master/other": one}


def test_a_change_that_somebody_else_proposed_is_not_overwritten(tree: Repositories) -> None:
    theirs = commit(tree, "theirs", author="Grace <grace@example.org>")
    run_git("push", "-q", "origin", f"{theirs}:refs/for/master/one", at=tree.work("code"))
    run_git("reset", "-q", "--hard", "HEAD~1", at=tree.work("code"))
    mine = commit(tree, "mine", "c\n")
    for command in (propose, withdraw):
        assert "one is proposed by Grace <grace@example.org>" in says(command, "one")
        assert refs(tree) == {"refs/for/master/one": theirs}
    assert "a new patchset of one" in says(propose, "--force", "one")
    assert refs(tree) == {"refs/for/master/one": mine}


def test_commits_that_cannot_be_proposed_are_reported(tree: Repositories) -> None:
    assert "is already the head of master; commit your change first" in says(propose, "one")
    assert "origin has no branch 'nowhere'" in says(propose, "--branch", "nowhere", "one")
    assert "elsewhere" in says(propose, "--remote", "elsewhere", "one")
    commit(tree, "…")
    assert "give the TOPIC" in says(propose)
    assert refs(tree) == {}


def test_a_repository_without_branches_needs_a_first_commit(
    tree: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git("init", "-q", "--bare", str(tmp_path / "empty"), at=tmp_path)
    run_git("clone", "-q", str(tmp_path / "empty"), str(tmp_path / "clone"), at=tmp_path)
    monkeypatch.chdir(tmp_path / "clone")
    run_git("commit", "-q", "--allow-empty", "-m", "Begin", at=Path())
    assert "without Headgate: git push origin HEAD:refs/heads/stable" in says(propose, "--branch", "stable")
    told = says(propose).rpartition(": ")[2]
    subprocess.run(told, shell=True, check=True)
    run_git("commit", "-q", "--allow-empty", "-m", "Go on", at=Path())
    assert "Proposed the change go-on for master" in says(propose)


def test_approving_fetches_one_commit_also_from_a_shallow_repository(
    tree: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        commit(tree, "Go on", text=f"{_}\n")
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=tree.work("code"))
    run_git("clone", "-q", "--bare", "--depth", "1", f"file://{tree.hub}/code", str(tmp_path / "shallow"), at=tmp_path)
    run_git("remote", "set-url", "origin", f"file://{tmp_path}/shallow", at=tree.work("code"))
    head = commit(tree, "More", text="more\n")
    says(propose, "more")
    assert says(approve, "more") == f"Approved more of file://{tmp_path}/shallow: {head}\n"
    assert run_git("rev-parse", "refs/approved/master/more", at=tmp_path / "shallow") == head


def test_a_proposal_does_not_overwrite_one_that_was_pushed_meanwhile(
    tree: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else proposes between the check and the push."""
    theirs = commit(tree, "theirs", author="Grace <grace@example.org>")
    run_git("reset", "-q", "--hard", "HEAD~1", at=tree.work("code"))
    commit(tree, "mine", "c\n")
    hook = tree.hub / "code" / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\nenv -u GIT_QUARANTINE_PATH git update-ref refs/for/master/one {theirs}\n")
    hook.chmod(0o755)
    run_git("push", "-q", "origin", f"{theirs}:refs/heads/kept", at=tree.work("code"))
    run_git("update-ref", "-d", "refs/for/master/one", at=tree.hub / "code")
    assert "git push" in says(propose, "one")
    assert refs(tree) == {"refs/for/master/one": theirs}


SETTINGS = "[connection local]\nbaseurl = {hub}\ncanonical_hostname = git.example\n[web]\nport = 1\n"
TENANT = "- tenant: {name: t, source: {local: {untrusted-projects: [code]}}}\n"


@pytest.fixture
def bare(tree: Repositories, monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """Ignore this user's settings."""
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tree.root))
    return tree


def test_a_work_tree_says_which_repository_it_is(bare: Repositories) -> None:
    one = commit(bare, "One")
    says(propose, "one")
    output = says(approve, "one")
    assert f"Approved one of {bare.hub / 'code'}: {one}\n" in output and "did not record" not in output, (
        "no settings here"
    )
    assert "Headgate did not record who approved: the settings name no project" in says(approve, "one", "--reason", "x")
    assert refs(bare)["refs/approved/master/one"] == one
    assert f"Requested new tests of one of {bare.hub / 'code'}: {one}" in says(recheck, "one")
    assert refs(bare)["refs/recheck/master/one"] == one
    assert f"Requested new tests of one of {bare.hub / 'code'}: {one}" in says(recheck), "the branch is named one"
    assert "give the TOPIC" in says(recheck, "--project", "code")
    assert "was already approved; Headgate tests it again" in says(approve, "one")
    says(approve, "--as", "ada", "one")
    assert refs(bare)["refs/approvals/ada/master/one"] == one
    assert "has no branch 'mastre'" in says(approve, "--branch", "mastre", "one")
    assert "there is no proposal two for master" in says(approve, "two")


def test_settings_name_the_project_of_a_work_tree(bare: Repositories) -> None:
    (bare.root / "headgate.conf").write_text(SETTINGS.format(hub=bare.hub))
    (bare.root / "tenants.yaml").write_text(TENANT)
    one = commit(bare, "One")
    says(propose, "one")
    run_git("remote", "set-url", "origin", "../../hub/code", at=bare.work("code"))
    assert f"Approved one of code: {one}\n" in says(approve, "one")
    assert says(approve, "--project", "code", "one").startswith("one of code was already approved")


def test_an_unknown_repository_is_answered_with_the_option_to_use(
    bare: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bare.root)
    for command in (approve, recheck):
        assert "is not a work tree with a remote 'origin'; add --project" in says(command, "one")
    monkeypatch.chdir(bare.work("code"))
    assert "is not a work tree with a remote 'upstream'" in says(approve, "--remote", "upstream", "one")
