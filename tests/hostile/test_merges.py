"""Merges that take for ever, or have very much to say: the item fails alone, in words."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.gate.work import MergeAnswer, MergeItem, MergeRequest
from headgate.testing.repositories import Repositories, run_git

from .arena import ATTACKER, Arena
from .objects import commit_of, point, put, tree_of

CONFLICTS = 2_000
SIDES, ROUNDS = 4, 14


def criss_cross(bare: Path, head: str) -> list[str]:
    """Commits whose merging needs the merges of all that they grew from, each of them again and again."""

    def tree(text: str) -> str:
        return put(bare, "tree", tree_of((b"100644", b"x", put(bare, "blob", text.encode()))))

    sides = [put(bare, "commit", commit_of(tree(f"{n}\n"), (head,))) for n in range(SIDES)]
    for number in range(ROUNDS):
        trees = [tree(f"{number} {n}\n" * 50) for n in range(SIDES)]
        orders = [sides[n:] + sides[:n] for n in range(SIDES)]
        sides = [put(bare, "commit", commit_of(t, tuple(order))) for t, order in zip(trees, orders, strict=True)]
    return sides


def test_merges_that_were_made_to_take_long_hold_up_nobody(tmp_path: Path) -> None:
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
        told = arena.told(ATTACKER, run_git("rev-parse", "HEAD", at=work), "check")
        assert "conflicts in: d0/f0, " in told and f"and {CONFLICTS - 50} more" in told and len(told) < 5_000
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
    monkeypatch.setattr("headgate.adapters.git.objects.merge.MERGE_MAX_S", 1.0)
    engine = GitEngine(tmp_path / "git", {"local": GitConnection("local", str(repositories.hub), "git.example")})
    item = MergeItem(
        "i", "git.example/code", "local", "master", "refs/for/master/one", one, mode, at_s=1, message="one"
    )
    answer = await engine.do(MergeRequest("b", (item,), {"git.example/code": "local"}))
    assert isinstance(answer, MergeAnswer) and not answer.ok and answer.blame == "i"
    assert "git merge-tree did not end within 1 s; propose it in smaller parts" in answer.error
