"""Test refs that a proposer can push and git or Headgate cannot accept: each is reported or answered, and others
land."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headgate.testing.repositories import run_git
from tests.waiting import wait_for

from .arena import ATTACKER, Arena
from .objects import based_on, commit_of, point, put, tree_of

ODD = ("\u202egnp.exe", "zero\u200bwidth", "csi\u009b31m", "\u2028line", "t" * 201)
HARMLESS = (
    "<script>alert(1)<",
    "a'b\"c`d$(e)",
    "-rf",
    "a%2Fb",
    "a%2fb",
    "größe",
    "x{y}",
    "é",
    "e\u0301",
    "A",
    "a",
    "&amp;",
)
WAITS = "#!/bin/sh\nexec sleep 600\n"


def waiting(arena: Arena) -> str:
    """Propose a change whose job runs, and does not end; return its commit."""
    commit = arena.attack("waits", WAITS)
    wait_for("its job is under way", lambda: is_queued(arena))
    return commit


def is_queued(arena: Arena) -> bool:
    return any(
        job["name"] == "attack" and job["start_time"] for i in arena.headgate.items("check") for job in i["jobs"]
    )


def wait_for_problem(arena: Arena, *words: str) -> str:
    """Return the status page's problem of the attacker's project, once it contains all these words."""

    def found() -> str:
        status = json.dumps(arena.headgate.get("/api/tenant/example/status")["problems"], ensure_ascii=False)
        return status if all(word in status for word in words) else ""

    return str(wait_for(f"the status page says {words}", found))


@pytest.mark.long
def test_unusable_topics_are_listed_and_dequeue_nothing(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        work, head = arena.repositories.work(ATTACKER), arena.repositories.head(ATTACKER)
        waiting(arena)
        for levels in (30, 100, 400):
            topic = "/".join(("a", "b", "c")[levels % 3] * levels)
            run_git("push", "-q", "origin", f"{head}:refs/for/master/l{levels}/{topic}", at=work)
        run_git("push", "-q", "origin", *(f"{head}:refs/for/master/{topic}" for topic in ODD), at=work)
        problem = wait_for_problem(
            arena, "a topic has at most 20 levels and 200 bytes", "characters that cannot be shown"
        )
        assert not any(char in problem for topic in ODD for char in topic if not char.isprintable())
        for number, topic in enumerate(HARMLESS):
            commit = arena.propose(ATTACKER, topic, {f"file{number}": "x\n"})
        assert "Build succeeded" in arena.note_section(ATTACKER, commit, "check")
        commits = [
            run_git("rev-parse", f"refs/for/master/{topic}", at=work.parents[2] / "hub" / ATTACKER)
            for topic in HARMLESS
        ]
        assert all("Build succeeded" in arena.note_section(ATTACKER, one, "check") for one in commits)
        arena.neighbours_land()
        assert is_queued(arena), "what was in the queue is there still"


@pytest.mark.long
def test_a_ref_for_the_branch_itself_is_reported_with_the_command_that_removes_it(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        work, head = arena.repositories.work(ATTACKER), arena.repositories.head(ATTACKER)
        run_git("push", "-q", "origin", f"{head}:refs/for/master", at=work)
        wait_for_problem(
            arena, "refs/for/master: while this ref exists, nothing can be proposed below it", "git push <url> :"
        )
        arena.neighbours_land()
        run_git("push", "-q", "origin", ":refs/for/master", at=work)
        good = arena.propose(ATTACKER, "good", {"good": "x\n"})
        assert "Build succeeded" in arena.note_section(ATTACKER, good, "check")


@pytest.mark.long
def test_a_damaged_ref_or_object_is_named_and_dequeues_nothing(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        waiting(arena)
        bare = arena.repositories.hub / ATTACKER
        head, tree = based_on(arena.repositories, ATTACKER)
        gone = "1" * 40
        loose = bare / "refs/for/master"
        damaged = {
            "gone": gone,
            "garbage": "I am no commit",
            "empty": "",
            "zero": "0" * 40,
            "itself": "ref: refs/for/master/itself",
            "nowhere": "ref: refs/for/master/none",
            "outside": "ref: ../../../../etc/passwd",
            "unparsable": put(bare, "commit", f"tree {tree}".encode()),
            "no-tree": put(bare, "commit", commit_of(gone, (head,))),
            "no-parent": put(bare, "commit", commit_of(tree, (gone,))),
            "no-file": put(bare, "commit", commit_of(put(bare, "tree", tree_of((b"100644", b"x", gone))), (head,))),
            "no-name": put(bare, "commit", commit_of(put(bare, "tree", tree_of((b"100644", b"", gone))), (head,))),
            "garbage-tree": put(bare, "commit", commit_of(put(bare, "tree", b"garbage"), (head,))),
        }
        for topic, content in damaged.items():
            point(bare, f"refs/for/master/{topic}", content)
        garbage = put(bare, "commit", commit_of(tree, (head,), message=b"Damaged\n"))
        (bare / "objects" / garbage[:2] / garbage[2:]).write_bytes(b"no zlib")
        point(bare, "refs/for/master/damaged", garbage)
        (loose / b"\xff\xfe".decode(errors="surrogateescape")).write_text(f"{head}\n")
        (loose / "link").symlink_to("/etc/passwd")
        wait_for_problem(arena, "it cannot be read", "its commit cannot be fetched", "its name is not UTF-8")
        arena.neighbours_land()
        assert is_queued(arena), "what was in the queue is there still"
        shutil.rmtree(loose / "damaged", ignore_errors=True)
        for topic in (*damaged, "damaged", "link", b"\xff\xfe".decode(errors="surrogateescape")):
            (loose / topic).unlink()
        point(bare, "refs/for/master/good", put(bare, "commit", commit_of(tree, (head,), message=b"Good\n")))
        good = run_git("rev-parse", "refs/for/master/good", at=bare)
        assert "Build succeeded" in arena.note_section(ATTACKER, good, "check")


@pytest.mark.long
def test_a_listing_without_branches_is_believed_when_git_says_so_again(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        waiting(arena)
        bare = arena.repositories.hub / ATTACKER
        for name in ("refs", "packed-refs"):
            if (bare / name).exists():
                (bare / name).rename(tmp_path / name)
        (bare / "refs").mkdir()
        wait_for_problem(arena, "it has no branches any longer; Headgate reads it again")
        assert is_queued(arena)
        shutil.rmtree(bare / "refs")
        (tmp_path / "refs").rename(bare / "refs")
        wait_for("all is well", lambda: not arena.headgate.get("/api/tenant/example/status")["problems"])
        assert is_queued(arena)
        arena.neighbours_land()
        shutil.rmtree(bare / "refs/heads")
        (bare / "refs/heads").mkdir()
        wait_for("its branch is really gone", lambda: not is_queued(arena))


REFS, PROPOSALS = 50_000, 200


@pytest.mark.long
def test_countless_refs_delay_nobody(tmp_path: Path) -> None:
    """Create them as one push may, and as a server packs them."""
    with Arena(tmp_path) as arena:
        commit = arena.propose(ATTACKER, "first", {"first": "x\n"})
        arena.note_section(ATTACKER, commit, "check")
        bare = arena.repositories.hub / ATTACKER
        run_git("pack-refs", "--all", at=bare)
        head, *rest = (bare / "packed-refs").read_text().splitlines()
        names = [f"refs/for/master/many-{n:06}" for n in range(PROPOSALS)]
        names += [f"refs/tags/many-{n:06}" for n in range(REFS - PROPOSALS)]
        lines = sorted([*rest, *(f"{commit} {name}" for name in names)], key=lambda line: line.split(" ")[1])
        (bare / "packed-refs.new").write_text("\n".join([head, *lines, ""]))
        (bare / "packed-refs.new").replace(bare / "packed-refs")
        assert len(run_git("for-each-ref", at=bare).splitlines()) > REFS
        arena.propose(ATTACKER, "last", {"last": "x\n"})
        wait_for("they are taken up", lambda: "many-" in json.dumps(arena.headgate.items("check")))
        arena.neighbours_land()
        assert not [line for line in arena.log.splitlines() if " ERROR " in line], arena.log
