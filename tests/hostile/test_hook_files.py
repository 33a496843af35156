"""Test people who can write in a repository in which the operator installs a hook, as root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.base.errors import UserError
from headgate.cli.hook import MARKS, install_hook, install_poke
from headgate.testing.repositories import Repositories

CONTENT = "root:x:0:0\n"
OURS = f"#!/bin/sh\n# {MARKS['update']}\n"
NAMES = ("update", "poke", "post-receive", "headgate-poke")


@pytest.fixture
def at(tmp_path: Path) -> Path:
    repositories = Repositories(tmp_path)
    repositories.create("code", {"a": "1\n"})
    return repositories.hub / "code"


@pytest.mark.parametrize("install", [lambda at: install_hook(at, "update", OURS), lambda at: install_poke(at, "exit")])
def test_no_link_that_is_planted_in_a_repository_is_written_through(
    install: Callable[[Path], Path], at: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "passwd"
    victim.write_text(CONTENT)
    victim.chmod(0o644)
    hooks = at / "hooks"
    for name in NAMES:  # the former files, by name
        (hooks / f".{name}.new").symlink_to(victim)
    made = install(at)
    assert victim.read_text() == CONTENT and victim.stat().st_mode & 0o777 == 0o644
    assert made.is_file() and not made.is_symlink()
    made.unlink()
    made.symlink_to(victim)
    try:
        install(at)
        assert not made.is_symlink()
    except UserError as refused:
        assert "already exists, and it is not Headgate's" in str(refused)
    assert victim.read_text() == CONTENT


@pytest.mark.skipif(os.geteuid() != 0, reason="a link of somebody else is made by root alone")
@pytest.mark.parametrize("install", [lambda at: install_hook(at, "update", OURS), lambda at: install_poke(at, "exit")])
def test_hooks_that_are_a_link_of_somebody_else_lead_nowhere(
    install: Callable[[Path], Path], at: Path, tmp_path: Path
) -> None:
    elsewhere, hooks = tmp_path / "cron.d", at / "hooks"
    elsewhere.mkdir()
    hooks.rename(at / "before")
    hooks.symlink_to(elsewhere)
    os.lchown(hooks, 65_534, 65_534)
    with pytest.raises(UserError, match="belongs to another user"):
        install(at)
    assert list(elsewhere.iterdir()) == []
    os.lchown(hooks, os.geteuid(), -1)
    assert install(at).is_file() and len(list(elsewhere.iterdir())) == 1


def test_installing_a_hook_does_not_wait_for_a_fifo_in_its_place(at: Path) -> None:
    os.mkfifo(at / "hooks" / "update")
    with pytest.raises(UserError, match="already exists, and it is not Headgate's"):
        install_hook(at, "update", OURS)
