"""Test refs that are read from their files, independently of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.git.remote import NotFiles, head, listed

ONE, TWO, TREE = "1" * 40, "2" * 40, "3" * 64


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "refs/heads").mkdir(parents=True)
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "refs/heads/main").write_text(f"{ONE}\n")
    return tmp_path


def test_a_loose_ref_counts_before_a_packed_one(repository: Path) -> None:
    packed = f"# pack-refs with: peeled \n{TWO} refs/heads/main\n{TWO} refs/tags/v1\n^{ONE}\n{TREE} refs/tags/v2\n"
    (repository / "packed-refs").write_text(packed)
    expected = {"refs/heads/main": ONE, "refs/tags/v1": TWO, "refs/tags/v2": TREE}
    assert listed(str(repository), ()) == (expected, {})
    assert listed(str(repository), ("refs/heads/", "refs/tags/v1")).refs == {
        "refs/heads/main": ONE,
        "refs/tags/v1": TWO,
    }
    assert listed(str(repository), ("refs/tags/none",)) == ({}, {})
    assert head(str(repository)) == "refs/heads/main"


def test_names_for_a_while_are_no_refs(repository: Path) -> None:
    for name in ("main.lock", ".hidden"):
        (repository / "refs/heads" / name).write_text(TWO)
    assert set(listed(str(repository), ()).refs) == {"refs/heads/main"}


def test_a_ref_that_names_another_is_followed(repository: Path) -> None:
    (repository / "packed-refs").write_text(f"{TWO} refs/heads/packed\n")
    for name, target in (("a", "main"), ("b", "a"), ("c", "packed"), ("d", "none"), ("e", "e")):
        (repository / "refs/heads" / name).write_text(f"ref: refs/heads/{target}\n")
    found = listed(str(repository), ())
    assert {ref[-1]: commit for ref, commit in found.refs.items() if len(ref) == 12} == {"a": ONE, "b": ONE, "c": TWO}
    assert set(found.unreadable) == {"refs/heads/d", "refs/heads/e"}


def test_unreadable_refs_are_named_and_the_others_are_listed(repository: Path) -> None:
    refs = repository / "refs/heads"
    for name, content in (
        ("empty", ""),
        ("garbage", "x" * 10_000),
        ("zero", "0" * 40),
        ("out", "ref: ../../etc/passwd"),
    ):
        (refs / name).write_text(content)
    (refs / b"\xff".decode(errors="surrogateescape")).write_text(ONE)
    (refs / "od..d").write_text(ONE)
    (refs / "link").symlink_to("/etc/passwd")
    deep = refs / "/".join("d" * 150)
    deep.parent.mkdir(parents=True)
    deep.write_text(TWO)
    found = listed(str(repository), ())
    assert found.refs == {"refs/heads/main": ONE, "refs/heads/" + "/".join("d" * 150): TWO}
    names = {"empty", "garbage", "zero", "out", "\\xff", "od..d", "link"}
    assert set(found.unreadable) == {f"refs/heads/{name}" for name in names}


def test_damaged_packed_refs_are_no_empty_list(repository: Path) -> None:
    (repository / "packed-refs").write_text(f"{TWO} refs/heads/a\nI am no ref\n")
    with pytest.raises(OSError, match="a line that git did not write: b'I am no ref'"):
        listed(str(repository), ())


@pytest.mark.parametrize("what", ["HEAD", "refs"])
def test_a_directory_that_is_not_a_repository_does_not_count_as_an_empty_one(repository: Path, what: str) -> None:
    (repository / what).rename(repository / "away")
    with pytest.raises(NotFiles):
        listed(str(repository), ())


def test_refs_in_another_format_are_for_git_to_read(repository: Path) -> None:
    (repository / "reftable").mkdir()
    with pytest.raises(NotFiles):
        listed(str(repository), ())
