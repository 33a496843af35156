"""Test where repositories are, by the base URL of their connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.git.connection import POLL_MIN_S, GitConnection, comparable


@pytest.mark.parametrize(
    ("base", "host", "url"),
    [
        ("https://git.example/base/", "git.example", "https://git.example/base/code/api"),
        ("ssh://git@git.example:2222", "git.example", "ssh://git@git.example:2222/code/api"),
        ("git@git.example:", "git.example", "git@git.example:code/api"),
        ("git@git.example:/srv", "git.example", "git@git.example:/srv/code/api"),
        ("git@[fe80::1]:srv/", "fe80::1", "git@[fe80::1]:srv/code/api"),
        ("/srv/hub/", "name", "/srv/hub/code/api"),
        ("file:///srv/the%20hub", "name", "/srv/the hub/code/api"),
    ],
)
def test_a_projects_path_follows_the_base(base: str, host: str, url: str) -> None:
    connection = GitConnection("name", base)
    assert connection.canonical_hostname == host
    assert connection.url(f"{host}/code/api") == url


def test_a_local_repository_is_found_with_and_without_its_ending(tmp_path: Path) -> None:
    """`code` is a directory with other repositories in it, and a repository next to it."""
    for path in ("code.git", "code/api.git", "code/lib", "code/tree/.git"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "HEAD").write_text("ref: refs/heads/master\n")
    connection = GitConnection("name", str(tmp_path), "git.example")
    found = {name: connection.git_dir(f"git.example/{name}") for name in ("code", "code/api", "code/lib", "code/tree")}
    assert list(found.values()) == [tmp_path / p for p in ("code.git", "code/api.git", "code/lib", "code/tree/.git")]
    assert connection.url("git.example/code") == str(tmp_path / "code.git")
    assert connection.url("git.example/code/tree") == str(tmp_path / "code/tree")
    assert connection.git_dir("git.example/nowhere") is None
    (tmp_path / "code.git").rename(tmp_path / "old")
    assert connection.git_dir("git.example/code") is None, "what went is not remembered"


def test_polling_pauses_between_requests() -> None:
    assert GitConnection("name", "https://git.example", poll_interval_s=0).poll_interval_s == POLL_MIN_S


def test_addresses_of_one_repository_are_the_same_however_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "hub")
    local = {f"{tmp_path}/hub/code", f"{tmp_path}/hub/code/", f"file://{tmp_path}/hub/code.git", "~/hub/code/.git"}
    local |= {f"{tmp_path}/link/code", "../hub/code.git"}
    assert {comparable(url, at=tmp_path / "work") for url in local} == {f"{tmp_path}/hub/code"}
    remote = {"https://git.example/code/api", "https://git.example/code/api/", "https://git.example/code/api.git"}
    assert {comparable(url) for url in remote} == {"https://git.example/code/api"}
    assert comparable("git@git.example:code/api.git") == "git@git.example:code/api"
