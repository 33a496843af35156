"""Test that a repository that shares the objects of another one is complete after it gets objects of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.adapters.work import objects
from headgate.testing.repositories import run_git


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Make a repository with one commit in a pack, and one in loose files."""
    place = tmp_path / "mirror"
    place.mkdir()
    run_git("init", "-q", "-b", "master", at=place)
    for name in ("packed", "loose"):
        (place / name).write_text(f"{name}\n")
        run_git("add", name, at=place)
        run_git("commit", "-q", "-m", name, at=place)
        if name == "packed":
            run_git("repack", "-q", "-a", "-d", at=place)
    return place


def sharing(shared: Path) -> Path:
    tree = shared.parent / "tree"
    run_git("clone", "-q", "--shared", "--no-checkout", str(shared), str(tree), at=shared)
    return tree


def complete(tree: Path) -> bool:
    run_git("fsck", "--full", "--strict", at=tree)
    return run_git("log", "--format=%s", "HEAD", at=tree).split() == ["loose", "packed"]


def test_an_unshared_repository_needs_nothing_of_the_other(shared: Path) -> None:
    tree = sharing(shared)
    objects.unshare(tree, [shared / ".git/objects"])
    shutil.rmtree(shared)
    assert complete(tree)


@pytest.mark.parametrize("begun", ["", ".pack"], ids=["files", "packs"])
def test_an_unshared_repository_is_complete_even_if_the_other_packs_its_objects_meanwhile(
    shared: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    tree, copy, left = sharing(shared), objects._copy, ["once"]

    def packed_meanwhile(source: Path, place: Path) -> None:
        if source.suffix == begun and left:
            left.clear()
            run_git("repack", "-q", "-a", "-d", at=shared)
        copy(source, place)

    monkeypatch.setattr(objects, "_copy", packed_meanwhile)
    objects.unshare(tree, [shared / ".git/objects"])
    shutil.rmtree(shared)
    assert not left and complete(tree)


def test_a_change_of_the_copy_changes_nothing_of_the_other(shared: Path) -> None:
    tree = sharing(shared)
    objects.unshare(tree, [shared / ".git/objects"])
    for file in (tree / ".git/objects").rglob("*"):
        if file.is_file():
            file.chmod(0o600)
            file.write_bytes(b"rubbish")
    assert complete(shared)
