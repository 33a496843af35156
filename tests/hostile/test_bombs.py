"""Test objects that are small in a push and huge in memory, and notes that are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.adapters.git import objects as limits
from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.mirror import COMMIT_MAX_BYTES, MirrorRepository
from headgate.adapters.git.refstate import peeled
from headgate.adapters.git.remote import Remote
from headgate.testing.repositories import Repositories, run_git

from .arena import ATTACKER, NEIGHBOURS, Arena
from .objects import AUTHOR, based_on, commit_of, point, put, tree_of

MEMORY_MAX_BYTES = 500 * 2**20
"""Memory that the gate may take more than before."""


def wide(entries: int, mode: bytes, oid: str) -> bytes:
    """Return a directory with so many entries."""
    after = b"\0" + bytes.fromhex(oid)
    return b"".join(mode + b" %07d" % number + after for number in range(entries))


def memory_bytes(arena: Arena) -> int:
    """Return the most memory that the gate has ever had."""
    assert arena.headgate.process is not None
    status = Path(f"/proc/{arena.headgate.process.pid}/status").read_text()
    (found,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found) * 1024


def changes(bare: Path, head: str) -> Iterator[tuple[str, str]]:
    """Yield topic and commit of changes with too many files."""
    blob, empty = put(bare, "blob", b"x\n"), put(bare, "tree", b"")

    def having(tree: str) -> str:
        return put(bare, "commit", commit_of(tree, (head,)))

    largest = put(bare, "tree", wide(limits.TREE_MAX_BYTES // 30, b"100644", blob))
    yield "at-its-top", having(largest)
    yield "in-configuration", having(put(bare, "tree", tree_of((b"40000", b"zuul.d", largest))))
    yield "in-many-places", having(put(bare, "tree", tree_of(*((b"40000", b"%d" % n, largest) for n in range(9)))))
    middling = put(bare, "tree", wide(1_000_000, b"100644", blob))
    yield "of-files", having(put(bare, "tree", tree_of((b"40000", b"d", middling))))
    yield "of-directories", having(put(bare, "tree", wide(1_000_000, b"40000", empty)))


@pytest.mark.long
def test_a_directory_of_millions_of_entries_takes_little_memory_and_blocks_nobody(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        arena.neighbours_land()
        bare, before_bytes = arena.repositories.hub / ATTACKER, memory_bytes(arena)
        head, _ = based_on(arena.repositories, ATTACKER)
        refused = dict(changes(bare, head))
        for topic, commit in refused.items():
            point(bare, f"refs/for/master/{topic}", commit)
        notes = {topic: arena.note_section(ATTACKER, commit, "check") for topic, commit in refused.items()}
        assert not [topic for topic, text in notes.items() if "cannot be merged into master" not in text], notes
        assert memory_bytes(arena) - before_bytes < MEMORY_MAX_BYTES
        arena.neighbours_land()


def test_a_tag_of_any_size_is_not_read(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create(ATTACKER, {"README": "read me\n"})
    bare = repositories.hub / ATTACKER
    copy = MirrorRepository(bare, Remote(""))
    tag = f"object {repositories.head(ATTACKER)}\ntype commit\ntag x\ntagger {AUTHOR.decode()}\n\n".encode()
    assert peeled(copy, put(bare, "tag", tag + b"word " * 1_000)) == repositories.head(ATTACKER)
    with pytest.raises(GitImpossible, match=r"names a tag of [0-9]+ bytes; at most"):
        peeled(copy, put(bare, "tag", tag + b"word " * (COMMIT_MAX_BYTES // 5)))


@pytest.mark.long
def test_malformed_notes_prevent_no_landing(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        (project, _), notes = NEIGHBOURS, "refs/notes/headgate"
        bare = arena.repositories.hub / project
        head, tree = based_on(arena.repositories, project)
        blob = put(bare, "blob", b"no notes\n")
        tag = f"object {head}\ntype commit\ntag x\ntagger {AUTHOR.decode()}\n\nA tag\n"
        one_note = put(bare, "tree", tree_of((b"100644", head.encode(), put(bare, "blob", b"x" * 3 * 2**20))))
        for notes_object in (
            blob,
            tree,
            put(bare, "tag", tag.encode()),
            put(bare, "commit", commit_of(one_note, ())),
            put(bare, "commit", commit_of(put(bare, "tree", tree_of((b"40000", head[:2].encode(), one_note))), ())),
        ):
            run_git("update-ref", "-d", notes, at=bare)
            point(bare, notes, notes_object)
            arena.neighbours_land()
            assert run_git("cat-file", "-t", notes, at=bare) == "commit"


@pytest.mark.long
def test_directories_in_place_of_a_note_prevent_no_landing(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        (project, _) = NEIGHBOURS
        bare, commit = arena.repositories.hub / project, arena.propose(project, "buried", {"buried": "x\n"})
        deepest = put(bare, "tree", tree_of((b"100644", b"x", put(bare, "blob", b"no note\n"))))
        for at in range(len(commit) - 2, -1, -2):
            deepest = put(bare, "tree", tree_of((b"40000", commit[at : at + 2].encode(), deepest)))
        run_git("update-ref", "refs/notes/headgate", put(bare, "commit", commit_of(deepest, ())), at=bare)
        arena.approve(project, "buried")
        arena.note_section(project, commit, "gate")
        assert arena.landed(project, "buried")
        arena.neighbours_land()


@pytest.mark.long
def test_a_ref_below_the_notes_prevents_no_landing(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        for project in NEIGHBOURS:
            in_the_way = f"{arena.repositories.head(project)}:refs/notes/headgate/x"
            run_git("push", "-q", "origin", in_the_way, at=arena.repositories.work(project))
        arena.neighbours_land()
        assert "lands without a note: refs/notes/headgate/x keeps refs/notes/headgate from being created" in arena.log
