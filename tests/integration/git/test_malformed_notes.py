"""Test notes that nobody can read, and refs that keep notes from being written: changes land nevertheless."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headgate.adapters.git import fetch
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.notes import NOTES
from headgate.gate.state.works import ReportAnswer, ReportRequest, RepoState
from headgate.ports.work import Unreachable
from headgate.testing.repositories import Repositories, run_git
from tests.hostile.objects import commit_of, point, put, tree_of

from .words import change, engine, item, landed, refs, state_of

LEVELS = range(38, -2, -2)
ABSENT = "12" * 20


def notes_of(bare: Path, *entries: tuple[bytes, bytes, str]) -> str:
    return put(bare, "commit", commit_of(put(bare, "tree", tree_of(*entries)), ()))


def blob_in(bare: Path) -> str:
    return put(bare, "blob", b"no notes\n")


def directory_at_each_level(bare: Path, commit: str) -> str:
    """Return notes that have a directory where the note of the commit would be."""
    mode, name, within = b"100644", b"x", blob_in(bare)
    for at in LEVELS:
        mode, name, within = b"40000", commit[at : at + 2].encode(), put(bare, "tree", tree_of((mode, name, within)))
    return notes_of(bare, (mode, name, within))


def odd_directory(bare: Path, commit: str) -> str:
    odd = put(bare, "tree", tree_of((b"777777", b"x", blob_in(bare))))
    return notes_of(bare, (b"40000", commit[:2].encode(), odd))


MALFORMED: Mapping[str, Callable[[Path, str], str]] = {
    "a tree of no known mode": lambda bare, _: notes_of(bare, (b"777777", b"x", blob_in(bare))),
    "a directory of no known mode": odd_directory,
    "a directory at each level": directory_at_each_level,
    "a file for a directory": lambda bare, commit: notes_of(bare, (b"100644", commit[:2].encode(), blob_in(bare))),
    "a submodule for a directory": lambda bare, commit: notes_of(bare, (b"160000", commit[:2].encode(), ABSENT)),
    "a submodule for a note": lambda bare, commit: notes_of(bare, (b"160000", commit.encode(), ABSENT)),
}
"""What git servers take."""
DAMAGED: Mapping[str, Callable[[Path], str]] = {
    "a file for a tree": lambda bare: put(bare, "commit", commit_of(blob_in(bare), ())),
    "no tree": lambda bare: put(bare, "commit", commit_of(ABSENT, ())),
    "no parent": lambda bare: put(bare, "commit", commit_of(put(bare, "tree", b""), (ABSENT,))),
    "a tree that is cut": lambda bare: put(bare, "commit", commit_of(put(bare, "tree", b"100644 x\0cut"), ())),
    "a directory that is a file": lambda bare: notes_of(bare, (b"40000", b"12", blob_in(bare))),
    "no note": lambda bare: notes_of(bare, (b"100644", b"12" * 20, ABSENT)),
}
"""What git servers refuse, and do not send if they have it."""


async def approved(repositories: Repositories) -> tuple[GitEngine, RepoState, str]:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    git = engine(repositories)
    return git, await state_of(git, item(commit, "one")), commit


def report(commit: str) -> ReportRequest:
    return ReportRequest(change(commit, "one"), "check", "It is checked.")


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_notes_are_replaced(repositories: Repositories, name: str) -> None:
    git, state, commit = await approved(repositories)
    bare = repositories.hub / "code"
    point(bare, NOTES, MALFORMED[name](bare, commit))
    assert await git.do(report(commit)) == ReportAnswer(True)
    assert (await landed(git, state, change(commit, "one"))).ok
    assert "It is checked." in repositories.note("code", commit) and "It passed." in repositories.note("code", commit)


@pytest.mark.parametrize("name", DAMAGED)
async def test_a_change_lands_without_a_note_where_notes_are_damaged(repositories: Repositories, name: str) -> None:
    git, state, commit = await approved(repositories)
    bare = repositories.hub / "code"
    damaged = DAMAGED[name](bare)
    point(bare, NOTES, damaged)
    assert (await landed(git, state, change(commit, "one"))).ok
    assert repositories.head("code") == state.merged["git.example/code"]["master"]
    assert repositories.ref("code", NOTES) == damaged


@pytest.mark.parametrize("name", DAMAGED)
async def test_notes_that_stay_damaged_are_replaced(
    repositories: Repositories, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SURE_AFTER", 2)
    monkeypatch.setattr(fetch, "PAUSE_MIN_S", 0.0)
    git, _, commit = await approved(repositories)
    bare = repositories.hub / "code"
    point(bare, NOTES, DAMAGED[name](bare))
    with pytest.raises(Unreachable, match=f"{NOTES} of .* cannot be fetched"):
        await git.do(report(commit))
    assert await git.do(report(commit)) == ReportAnswer(True)
    assert "It is checked." in repositories.note("code", commit)


async def test_notes_that_only_this_machine_cannot_fetch_stay(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, state, commit = await approved(repositories)
    assert await engine(repositories, "other").do(report(commit)) == ReportAnswer(True)
    notes = repositories.ref("code", NOTES)
    monkeypatch.setattr(fetch, "PACK_MAX_BYTES", 1)
    with pytest.raises(Unreachable, match="sends more than the limit"):
        await git.do(report(commit))
    monkeypatch.setattr(fetch, "SURE_AFTER", 1)
    answer = await git.do(report(commit))
    assert isinstance(answer, ReportAnswer) and f"delete this ref: git push REMOTE :{NOTES}" in answer.error
    assert (await landed(git, state, change(commit, "one"))).ok
    assert repositories.ref("code", NOTES) == notes


async def test_a_ref_that_keeps_notes_from_being_written_stops_no_landing(repositories: Repositories) -> None:
    git, state, commit = await approved(repositories)
    ref = f"{NOTES}/x"
    run_git("push", "-q", "origin", f"HEAD:{ref}", at=repositories.work("code"))
    answer = await git.do(report(commit))
    assert isinstance(answer, ReportAnswer)
    assert answer.error == f"{ref} keeps {NOTES} from being created; delete this ref: git push REMOTE :{ref}"
    assert (await landed(git, state, change(commit, "one"))).ok
    assert refs(repositories) == {"refs/heads/master", ref}
