"""Test where configuration files are found: work trees, bare repositories, plain directories."""

from __future__ import annotations

from pathlib import Path

import pygit2
import pytest

from headgate.cli.offline.parallel import WORTH_A_PROCESS, spread
from headgate.cli.offline.repositories import UnreadableRepository, place_of, read

ME = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)
PATHS = ("zuul.yaml", "zuul.d/", ".zuul.yaml")


def commit(repository: pygit2.Repository, ref: str, text: str) -> None:
    builder = repository.TreeBuilder()
    builder.insert("zuul.yaml", repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB)
    repository.references.create(ref, repository.create_commit(None, ME, ME, "Begin", builder.write(), []), force=True)


@pytest.fixture
def bare(tmp_path: Path) -> pygit2.Repository:
    repository = pygit2.init_repository(str(tmp_path / "app.git"), bare=True, initial_head="main")
    for branch in ("main", "stable", "alpha"):
        commit(repository, f"refs/heads/{branch}", branch)
    return repository


@pytest.fixture
def tree(tmp_path: Path) -> pygit2.Repository:
    """`main` is checked out; `origin` has one more branch."""
    repository = pygit2.init_repository(str(tmp_path / "app"), initial_head="main")
    for ref in ("heads/main", "heads/topic", "remotes/origin/main", "remotes/origin/stable"):
        commit(repository, f"refs/{ref}", ref)
    repository.checkout("refs/heads/main", strategy=pygit2.enums.CheckoutStrategy.FORCE)
    return repository


def test_a_bare_repository_has_its_default_branch_first(bare, tmp_path):
    found = read(tmp_path / "app.git", PATHS)
    assert list(found.items()) == [(b, {"zuul.yaml": b}) for b in ("main", "alpha", "stable")]


def test_one_branch_may_be_requested(bare, tmp_path):
    assert read(tmp_path / "app.git", PATHS, "stable") == {"stable": {"zuul.yaml": "stable"}}
    assert read(tmp_path / "app.git", PATHS, "gone") == {}


def test_a_work_tree_is_read_as_it_is_now(tree, tmp_path):
    (tmp_path / "app/zuul.yaml").write_text("edited")
    found = read(tmp_path / "app", PATHS)
    assert list(found) == ["main", "stable", "topic"]
    assert found["main"] == {"zuul.yaml": "edited"}
    assert found["stable"] == {"zuul.yaml": "remotes/origin/stable"}


def test_a_work_tree_without_files_is_read_as_committed(tree, tmp_path):
    (tmp_path / "app/zuul.yaml").unlink()
    assert read(tmp_path / "app", PATHS)["main"] == {"zuul.yaml": "heads/main"}


def test_the_default_branch_of_the_origin_comes_first(tree, tmp_path):
    tree.references.create("refs/remotes/origin/HEAD", "refs/remotes/origin/stable")
    assert list(read(tmp_path / "app", PATHS)) == ["stable", "main", "topic"]


def test_a_detached_head_is_read(tree, tmp_path):
    tree.set_head(tree.references["refs/heads/main"].target)
    found = read(tmp_path / "app", PATHS)
    assert list(found) == ["main", "stable", "topic"]
    assert found["main"] == {"zuul.yaml": "heads/main"}


def test_of_a_commit_without_branches_the_files_are_read(tree, tmp_path):
    tree.set_head(tree.references["refs/heads/main"].target)
    for ref in list(tree.references):
        tree.references.delete(ref)
    assert read(tmp_path / "app", PATHS) == {"master": {"zuul.yaml": "heads/main"}}
    assert list(read(tmp_path / "app", PATHS, "main")) == ["main"]


def test_a_repository_without_commits_has_no_branches(tmp_path):
    pygit2.init_repository(str(tmp_path / "empty.git"), bare=True, initial_head="main")
    assert read(tmp_path / "empty.git", PATHS) == {}


def test_a_plain_directory_is_one_branch(tmp_path):
    for name in ("zuul.d/a.yaml", "zuul.d/deep/b.yaml", "zuul.d/c.txt", "zuul.d/deep/.zuul.ignore", "other.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    wanted = ["zuul.d/a.yaml", "zuul.d/deep/.zuul.ignore", "zuul.d/deep/b.yaml"]
    assert read(tmp_path, PATHS) == {"master": {name: name for name in wanted}}
    assert list(read(tmp_path, PATHS, "main")) == ["main"]


def test_a_damaged_repository_is_reported(tmp_path):
    (tmp_path / ".git").mkdir()
    with pytest.raises(UnreadableRepository, match="cannot be read"):
        read(tmp_path, PATHS)


@pytest.mark.parametrize("name", ["hub/org/app", "hub/org/app.git", "git.acme/org/app", "org/app"])
def test_a_project_is_found_below_its_connection_its_host_or_at_the_top(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    assert place_of(tmp_path, "hub", "git.acme", "org/app") == tmp_path / name
    with pytest.raises(UnreadableRepository, match="no repository of org/lib"):
        place_of(tmp_path, "hub", "git.acme", "org/lib")


def test_work_is_shared_out_and_comes_back_in_order():
    things = list(range(WORTH_A_PROCESS * 3 + 1))
    assert spread(lambda n: n * n, things) == [n * n for n in things]
