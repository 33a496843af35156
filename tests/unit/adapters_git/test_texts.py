"""Test that reading configuration from a repository is bounded, whatever the repository contains."""

from __future__ import annotations

from pathlib import Path

import pygit2
import pytest
from pygit2.enums import FileMode, ObjectType

from headgate.adapters.git.objects import ENTRIES_MAX, texts
from headgate.config.budgets import FILE_MAX_BYTES
from headgate.config.files.source import unreadable

PATHS = ("zuul.yaml", "zuul.d/", ".zuul.yaml", ".zuul.d/")


@pytest.fixture
def repository(tmp_path: Path) -> pygit2.Repository:
    return pygit2.init_repository(str(tmp_path / "r"), bare=True)


def tree(repository: pygit2.Repository, entries: dict[str, tuple[pygit2.Oid, FileMode]]) -> pygit2.Oid:
    builder = repository.TreeBuilder()
    for name, (id, mode) in entries.items():
        builder.insert(name, id, mode)
    return builder.write()


def read(repository: pygit2.Repository, id: pygit2.Oid) -> dict[str, str]:
    found = repository[id]
    assert isinstance(found, pygit2.Tree)
    return texts(repository, found, PATHS)


def test_a_large_file_is_named_and_not_read(repository: pygit2.Repository) -> None:
    large = repository.write(ObjectType.BLOB, b"#" * (FILE_MAX_BYTES + 1))
    small = repository.create_blob(b"- job: {name: x}\n")
    below = tree(repository, {"a.yaml": (large, FileMode.BLOB), "b.yaml": (small, FileMode.BLOB)})
    found = read(repository, tree(repository, {"zuul.d": (below, FileMode.TREE)}))
    assert "2 MB" in unreadable(found["zuul.d/a.yaml"])
    assert found["zuul.d/b.yaml"] == "- job: {name: x}\n"


def test_many_files_and_many_bytes_end_the_reading(repository: pygit2.Repository) -> None:
    blob = repository.create_blob(b"[]")
    many = tree(repository, {f"{n}.yaml": (blob, FileMode.BLOB) for n in range(5_001)})
    ((path, text),) = read(repository, tree(repository, {"zuul.d": (many, FileMode.TREE)})).items()
    assert path.startswith("zuul.d/") and path.endswith(".yaml") and "more than 5000 files" in unreadable(text)
    part = repository.write(ObjectType.BLOB, b"#" * 1_500_000)
    large = tree(repository, {f"{n}.yaml": (part, FileMode.BLOB) for n in range(7)})
    ((_, text),) = read(repository, tree(repository, {"zuul.d": (large, FileMode.TREE)})).items()
    assert "more than 10 MB" in unreadable(text)


def test_a_tree_that_contains_itself_many_times_is_skipped(repository: pygit2.Repository) -> None:
    here = tree(repository, {"x": (repository.create_blob(b""), FileMode.BLOB)})
    for _ in range(8):  # 10 ** 8 paths in nine objects
        here = tree(repository, {f"d{n}": (here, FileMode.TREE) for n in range(10)})
    ((path, text),) = read(repository, tree(repository, {"zuul.d": (here, FileMode.TREE)})).items()
    assert path.endswith(".yaml") and f"more than {ENTRIES_MAX} files" in unreadable(text)


def test_links_and_repositories_in_place_of_files_are_not_followed(repository: pygit2.Repository) -> None:
    link = repository.create_blob(b"/etc/passwd")
    commit = pygit2.Oid(hex="1" * 40)
    found = read(
        repository, tree(repository, {"zuul.yaml": (link, FileMode.LINK), "zuul.d": (commit, FileMode.COMMIT)})
    )
    assert found == {"zuul.yaml": "/etc/passwd"}


def test_bytes_that_are_not_text_are_read_as_replacement_characters(repository: pygit2.Repository) -> None:
    bad = repository.create_blob(b"- \xff\n")
    assert read(repository, tree(repository, {"zuul.yaml": (bad, FileMode.BLOB)})) == {"zuul.yaml": "- \ufffd\n"}
