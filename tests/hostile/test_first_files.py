"""Test `headgate init` and `headgate demo` where others can write, where files exist, and where writing fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli import init
from headgate.cli.scenario import demo

WAYS = (("init",), ("init", "--connect", "https://git.example.com", "team/api"))


def run(way: tuple[str, ...], directory: Path) -> str:
    """Run the command in this way and return why it refuses."""
    _, *words = way
    place = ["--directory", str(directory)] if words else [str(directory)]
    result = CliRunner().invoke(init.command, [*words, *place])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["headgate.conf", "tenants.yaml", "repositories"])
def test_nothing_is_written_through_a_link_that_somebody_planted(
    way: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    site.mkdir()
    (site / name).symlink_to(elsewhere)
    assert run(way, site) == f"{site / name} already exists; nothing was written"
    assert not elsewhere.exists() and os.listdir(site) == [name]


def test_nothing_is_written_through_a_link_that_appears_during_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    site.mkdir()
    (site / "headgate.conf").symlink_to(elsewhere)
    monkeypatch.setattr("os.path.lexists", lambda _: False)
    assert "cannot be written: File exists" in run(("init",), site)
    assert not elsewhere.exists() and os.listdir(site) == ["headgate.conf"]


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_command_leaves_no_files_so_it_can_be_repeated(
    way: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(init, "install_update", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "No space left on device" in run(way, tmp_path / "site")
    assert os.listdir(tmp_path / "site") == []
    _, *words = way
    place = ["--directory", str(tmp_path / "site")] if words else [str(tmp_path / "site")]
    assert CliRunner().invoke(init.command, [*words, *place]).exit_code == 0
    assert (tmp_path / "site" / "headgate.conf").stat().st_mode & 0o777 == 0o600


def test_no_password_of_a_url_is_repeated(tmp_path: Path) -> None:
    for url in ("https://me:hunter2@github.com", "https://me:hunter2@[::1", "https://me:hunter2@github.com/\n"):
        assert "hunter2" not in run(("init", "--connect", url, "a/b"), tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_demo_overwrites_no_settings(tmp_path: Path) -> None:
    settings = tmp_path / "headgate.conf"
    settings.write_text("[keystore]\npassword = the only copy\n")
    refused = CliRunner().invoke(demo.command, ["--directory", str(tmp_path)])
    assert isinstance(refused.exception, UserError) and "is not empty" in str(refused.exception)
    assert settings.read_text().endswith("the only copy\n") and os.listdir(tmp_path) == ["headgate.conf"]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused = CliRunner().invoke(demo.command, ["--directory", str(tmp_path / "link")])
    assert isinstance(refused.exception, UserError) and not (tmp_path / "nowhere").exists()
