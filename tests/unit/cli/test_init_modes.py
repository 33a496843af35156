"""Test who may change the files that `headgate init` writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.init import command

PRIVATE = ("headgate.conf", "state", "state/token")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_may_change_the_files_whatever_the_umask_is(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    result = CliRunner().invoke(command, [str(directory)])
    assert not result.exit_code, result.output
    made = {path.relative_to(directory): path.lstat().st_mode & 0o777 for path in (directory, *directory.rglob("*"))}
    assert not {str(path): oct(mode) for path, mode in made.items() if mode & 0o022}
    assert not [path for path in PRIVATE if made[Path(path)] & 0o077]
    assert os.umask(0) == 0, "the umask of the process stays"
