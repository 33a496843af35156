"""Test `headgate init --connect`: a gate for existing repositories, checked unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.cli.check.check import command as check
from headgate.cli.connected import FORGES
from headgate.cli.init import command as init
from headgate.cli.offline.freeze import command as freeze
from headgate.cli.resources import connection_shapes, connections
from headgate.cli.settings import read
from headgate.testing.repositories import Repositories, run_git


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(init, [str(word) for word in words])


def test_repositories_of_a_git_server_are_gated_and_the_configuration_is_right(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path / "theirs")
    for name in ("team/api", "team/app-2.0"):
        repositories.create(name, {"test": "#!/bin/sh\n"})
    made = run("--connect", repositories.hub, "--directory", tmp_path / "gate", "team/api", "team/app-2.0")
    assert made.exit_code == 0, made.output
    result = CliRunner().invoke(check, ["--config", str(tmp_path / "gate" / "headgate.conf")])
    assert result.exit_code == 0, result.output
    assert "3 projects, 2 jobs, 0 templates, 4 pipelines" in result.output and "no errors" in result.output
    shown = CliRunner().invoke(freeze, ["--config", str(tmp_path / "gate" / "headgate.conf"), "--project", "config"])
    assert "config-gate of config on master\n└─ noop" in shown.output, "the configuration is gated, too"
    again = run("--connect", repositories.hub, "--directory", tmp_path / "gate", "team/api")
    assert isinstance(again.exception, UserError) and "already exists; nothing was written" in str(again.exception)


def test_repositories_may_be_called_like_numbers_and_words_of_yaml(tmp_path: Path) -> None:
    names = ["2048", "0x10", "1.5", "2026-01-01", "null", "True", "no"]
    repositories = Repositories(tmp_path / "theirs")
    for name in names:
        repositories.create(name, {"test": "#!/bin/sh\n"})
    assert run("--connect", repositories.hub, "--directory", tmp_path / "gate", *names).exit_code == 0
    result = CliRunner().invoke(check, ["--config", str(tmp_path / "gate" / "headgate.conf")])
    assert result.exit_code == 0 and "8 projects, 2 jobs" in result.output, result.output


@pytest.mark.parametrize("driver", FORGES)
def test_settings_for_each_forge_are_read_and_name_the_connection_of_its_pipelines(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("--connect", "https://code.example.com", "--driver", driver, "--directory", tmp_path, "acme/rocket")
    assert made.exit_code == 0, made.output
    for name in FORGES[driver].variables:
        assert f"export {name}=" in made.output
        monkeypatch.setenv(name, "secret")
    settings = read(tmp_path / "headgate.conf")
    assert set(connections(settings)) == {"here", FORGES[driver].connection}
    assert (tmp_path / "headgate.conf").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("driver", ["gitlab", "gitea", "pagure", "gerrit"])
@pytest.mark.parametrize("url", ["https://code.example.com/forge/", "http://127.0.0.1:3000"])
def test_a_forge_may_be_below_another_site_or_without_tls_on_this_machine(
    driver: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--connect", url, "--driver", driver, "--directory", tmp_path, "acme/rocket").exit_code == 0
    for name in FORGES[driver].variables:
        monkeypatch.setenv(name, "secret")
    shown = {one.name: one.baseurl for one in connection_shapes(read(tmp_path / "headgate.conf"))}
    assert shown[FORGES[driver].connection] == url.rstrip("/")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--connect", "https://github.com/acme", "api"], "give only the server, https://github.com, and"),
        (["--connect", "https://codeberg.org/acme/", "api"], "give only the server, https://codeberg.org, and"),
        (["--connect", "https://ghe.example.com/x", "--driver", "github", "a/b"], "give only the server"),
        (
            ["--connect", "http://code.example.com", "--driver", "gitea", "a/b"],
            "http:// is allowed only for this machine",
        ),
        (["--connect", "https://me:pass@code.example.com", "--driver", "gitea", "a/b"], "must not contain a user"),
        (["--connect", "ssh://git@code.example.com", "--driver", "gitlab", "a/b"], "must not contain a user"),
        (["--connect", "ssh://code.example.com", "--driver", "gitlab", "a/b"], "is not an address"),
        (["--connect", "https://code.example.com"], "name the repositories"),
        (["--connect", "https://code.example.com", "a/../b"], "is not a valid name of a repository"),
        (["--connect", "https://code.example.com", "a\nb"], "is not a valid name of a repository"),
        (["--connect", "https://x/\n[web]\nroot = y", "a"], "is not a URL"),
        (["--connect", " ", "a"], "is not a URL"),
        (["--connect", "https://x/%%(y)s", "a"], "is not a URL"),
        (["--connect", "https://code.example.com", "a//b"], "is not a valid name of a repository"),
        (["--connect", "https://code.example.com", "a/./b"], "is not a valid name of a repository"),
        (["--connect", "https://code.example.com", "a/"], "is not a valid name of a repository"),
        (["--connect", "nowhere", "--driver", "github", "a"], "give a URL such as"),
        (["--connect", "", "a"], "is not a URL"),
        (["--connect", "github.com", "acme/api"], "is not a directory of this machine; a server has"),
        (["--connect", "/nowhere", "--driver", "git", "a"], "is not a directory"),
    ],
)
def test_init_writes_nothing_if_a_repository_cannot_be_connected(
    words: list[str], message: str, tmp_path: Path
) -> None:
    refused = run(*words, "--directory", tmp_path / "gate")
    assert isinstance(refused.exception, UserError) and message in str(refused.exception)
    assert not (tmp_path / "gate").exists()


def test_directories_without_repositories_to_push_to_are_reported_before_anything_is_written(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path / "theirs")
    repositories.create("api", {"test": "#!/bin/sh\n"})
    run_git("init", "-q", str(repositories.hub / "clone"), at=tmp_path)
    (repositories.hub / "notes").mkdir()
    for name, message in (("clone", "has a work tree"), ("notes", "is not a git repository"), ("apy", "is not a git")):
        refused = run("--connect", repositories.hub, "--directory", tmp_path / "gate", "api", name)
        assert isinstance(refused.exception, UserError) and message in str(refused.exception)
        assert f"{repositories.hub / name} " in str(refused.exception)
    assert not (tmp_path / "gate").exists()


def test_the_command_for_the_work_tree_makes_a_repository_that_can_be_connected(tmp_path: Path) -> None:
    run_git("init", "-q", str(tmp_path / "my clones" / "api"), at=tmp_path)
    refused = run("--connect", tmp_path / "my clones", "--directory", tmp_path / "gate", "api")
    made = str(refused.exception).rpartition(": ")[2].replace("DIRECTORY", str(tmp_path / "bare"))
    subprocess.run(made, shell=True, check=True)
    assert run("--connect", tmp_path / "bare", "--directory", tmp_path / "gate", "api").exit_code == 0


def test_the_next_steps_install_the_hook_in_repositories_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repositories = Repositories(tmp_path / "theirs")
    repositories.create("team/api", {"test": "#!/bin/sh\n"})
    hub = repositories.hub
    (hub / "team" / "api").rename(hub / "team" / "api.git")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = run("--connect", Path("..") / hub.relative_to(tmp_path), "team/api")
    assert f"\n  headgate hook install {hub}/team/api.git " in made.output
    assert f"baseurl = {hub}\n" in Path("headgate.conf").read_text()
    assert "hook install" not in run("--connect", "ssh://git@x", "--directory", tmp_path / "gate", "a").output
