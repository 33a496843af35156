"""Test which users of a node can read the output of a running command there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.adapters.process.ansible_plugins.action.command import ActionModule
from headgate.adapters.process.ansible_plugins.modules.command import opened

NOBODY = 65_534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can give files away")


def made(path: Path, become: str) -> tuple[int, int]:
    """Return the mode and the owner of a stream."""
    os.close(opened(str(path), become))
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_uid


@pytest.fixture(autouse=True)
def called_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))


def test_only_the_user_of_a_command_can_read_its_output(tmp_path: Path) -> None:
    assert made(tmp_path / "stream", "") == (0o600, os.geteuid())


@ROOT
def test_a_command_of_root_is_read_by_who_called_sudo_and_nobody_else(tmp_path: Path) -> None:
    assert made(tmp_path / "stream", "sudo") == (0o600, NOBODY)


@pytest.mark.parametrize(("become", "user"), [("sudo", NOBODY), ("su", 0), ("su", NOBODY)])
def test_a_command_of_another_user_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, become: str, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert made(tmp_path / "stream", become) == (0o644, os.getuid())


def test_a_caller_that_is_not_known_can_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID")
    assert made(tmp_path / "stream", "sudo")[0] == 0o644


@ROOT
def test_a_caller_to_whom_no_file_can_be_given_can_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "fchown", refused)
    assert made(tmp_path / "stream", "sudo") == (0o644, 0)


@pytest.mark.parametrize(
    ("way", "remote", "user", "become"),
    [
        (None, "zuul", None, ""),
        ("sudo", "root", "root", ""),
        ("sudo", "zuul", "root", "sudo"),
        ("sudo", None, "root", "sudo"),
        ("", "zuul", "root", "other"),
    ],
)
def test_only_a_task_that_becomes_another_user_has_its_output_read_as_that_user(
    way: str | None, remote: str | None, user: str | None, become: str
) -> None:
    task = SimpleNamespace(
        _connection=SimpleNamespace(become=None if way is None else SimpleNamespace(name=way)),
        _get_remote_user=lambda: remote,
        get_become_option=lambda _: user,
    )
    assert ActionModule._become(task) == become
