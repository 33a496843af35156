"""Test merges that take for ever, or produce too much output: the item fails alone, with a reason."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import MERGES_MAX, GitEngine
from headgate.adapters.git.mirror import MERGES_HERE_MAX
from headgate.base.tasks import end
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import MergeAnswer, MergeRequest
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .arena import ATTACKER, Arena
from .objects import commit_of, point, put, tree_of

CONFLICTS = 2_000
SIDES, ROUNDS = 4, 14


def criss_cross(bare: Path, head: str) -> list[str]:
    """Commits whose merge needs the merges of all their ancestors, each of them repeatedly."""

    def tree(text: str) -> str:
        return put(bare, "tree", tree_of((b"100644", b"x", put(bare, "blob", text.encode()))))

    sides = [put(bare, "commit", commit_of(tree(f"{n}\n"), (head,))) for n in range(SIDES)]
    for number in range(ROUNDS):
        trees = [tree(f"{number} {n}\n" * 50) for n in range(SIDES)]
        orders = [sides[n:] + sides[:n] for n in range(SIDES)]
        sides = [put(bare, "commit", commit_of(t, tuple(order))) for t, order in zip(trees, orders, strict=True)]
    return sides


def test_merges_crafted_to_be_slow_delay_nobody(tmp_path: Path) -> None:
    files = {f"d{n % 50}/f{n}": "old\n" for n in range(CONFLICTS)}
    with Arena(tmp_path, files=files) as arena:
        bare, work = arena.repositories.hub / ATTACKER, arena.repositories.work(ATTACKER)
        ours, *theirs = criss_cross(bare, arena.repositories.head(ATTACKER))
        point(bare, "refs/heads/crossed", ours)
        for number, commit in enumerate(theirs):
            point(bare, f"refs/for/crossed/t{number}", commit)
        arena.repositories.write(ATTACKER, {path: "master\n" for path in files})
        run_git("commit", "-q", "-m", "All else", at=work)
        run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
        run_git("checkout", "-q", "--detach", "HEAD^", at=work)
        arena.repositories.write(ATTACKER, {path: "mine\n" for path in files})
        run_git("commit", "-q", "-m", "Conflicts", at=work)
        run_git("push", "-q", "origin", "HEAD:refs/for/master/conflicts", at=work)
        arena.neighbours_land()
        note = arena.note_section(ATTACKER, run_git("rev-parse", "HEAD", at=work), "check")
        assert "conflicts in: d0/f0, " in note and f"and {CONFLICTS - 50} more" in note and len(note) < 5_000
        arena.neighbours_land()


@pytest.mark.parametrize("mode", ["merge", "squash-merge", "cherry-pick", "rebase"])
async def test_a_merge_beyond_its_time_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("code", {"a": "a\n"})
    one = repositories.propose("code", "one", {"one": "x\n"})
    work = repositories.work("code")
    run_git("checkout", "-q", "--detach", "HEAD^", at=work)
    repositories.write("code", {"b": "b\n"})
    run_git("commit", "-q", "-m", "Meanwhile", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
    stub, real = tmp_path / "bin/git", shutil.which("git")
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\ncase "$*" in *merge-tree*) exec sleep 300;; esac\nexec {real} "$@"\n')
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("headgate.adapters.git.merge.MERGE_MAX_S", 1.0)
    engine = GitEngine(tmp_path / "git", {"local": GitConnection("local", str(repositories.hub), "git.example")})
    item = MergeItem(
        "i", "git.example/code", "local", "master", "refs/for/master/one", one, mode, at_s=1, message="one"
    )
    answer = await engine.do(MergeRequest("b", (item,), {"git.example/code": "local"}))
    assert isinstance(answer, MergeAnswer) and not answer.ok and answer.blame == "i"
    assert "git merge-tree did not end within 1 s; propose it in smaller parts" in answer.error


@pytest.mark.long
async def test_slow_merges_of_one_repository_delay_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more of them at once than places for merges."""
    repositories = Repositories(tmp_path)
    for name in ("code", "other"):
        repositories.create(name, {"a": "a\n"})
    theirs = [repositories.propose("code", f"t{n}", {f"n{n}": "x\n"}) for n in range(MERGES_MAX + 1)]
    ours = repositories.propose("other", "one", {"one": "x\n"})
    for name in ("code", "other"):
        work = repositories.work(name)
        run_git("checkout", "-q", "--detach", "HEAD^", at=work)
        repositories.write(name, {"b": "b\n"})
        run_git("commit", "-q", "-m", "Meanwhile", at=work)
        run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
    real, begun = shutil.which("git"), tmp_path / "begun"
    begun.mkdir()
    slow = f"*code*merge-tree*) touch {begun}/$$; exec sleep 300"
    stub = tmp_path / "bin/git"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\ncase "$*" in {slow};; esac\nexec {real} "$@"\n')
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("headgate.adapters.git.mirror.PLACE_MAX_S", 0.1)
    engine = GitEngine(tmp_path / "git", {"local": GitConnection("local", str(repositories.hub), "git.example")})

    def request(project: str, topic: str, commit: str) -> MergeRequest:
        name = f"git.example/{project}"
        item = MergeItem(topic, name, "local", "master", f"refs/for/master/{topic}", commit, "merge", at_s=1)
        return MergeRequest(topic, (item,), {name: "local"})

    attack = [asyncio.ensure_future(engine.do(request("code", f"t{n}", c))) for n, c in enumerate(theirs)]
    try:
        await until("as many are under way as may be", lambda: len(list(begun.iterdir())) == MERGES_HERE_MAX)
        async with asyncio.timeout(DEADLINE_S):
            answer = await engine.do(request("other", "one", ours))
        assert isinstance(answer, MergeAnswer) and answer.ok, answer
        assert len(list(begun.iterdir())) == MERGES_HERE_MAX and not any(task.done() for task in attack)
    finally:
        await end(*attack)


@pytest.mark.long
async def test_a_series_of_commits_has_the_time_of_one_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("code", {"a": "a\n"})
    work = repositories.work("code")
    for number in range(20):
        repositories.write("code", {f"n{number}": "x\n"})
        run_git("commit", "-q", "-m", str(number), at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/many", at=work)
    many = run_git("rev-parse", "HEAD", at=work)
    run_git("checkout", "-q", "--detach", "HEAD~20", at=work)
    repositories.write("code", {"b": "b\n"})
    run_git("commit", "-q", "-m", "Meanwhile", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
    stub, real = tmp_path / "bin/git", shutil.which("git")
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\ncase "$*" in *merge-tree*) sleep 0.2;; esac\nexec {real} "$@"\n')
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("headgate.adapters.git.merge.MERGE_MAX_S", 1.0)
    engine = GitEngine(tmp_path / "git", {"local": GitConnection("local", str(repositories.hub), "git.example")})
    item = MergeItem("i", "git.example/code", "local", "master", "refs/for/master/many", many, "cherry-pick", at_s=1)
    answer = await engine.do(MergeRequest("b", (item,), {"git.example/code": "local"}))
    assert isinstance(answer, MergeAnswer) and not answer.ok and answer.blame == "i"
    assert "did not end within" in answer.error and "propose it in smaller parts" in answer.error
