"""Test commands that cannot write: they say where in one line, as they report other errors."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pygit2
import pytest
from click.testing import CliRunner

from headgate.base.errors import RepositoryError, UserError
from headgate.cli.main import group
from headgate.cli.pages import exports
from headgate.cli.scenario import demo

HEADGATE = (sys.executable, "-c", "from headgate.cli.main import main; main()")
FULL = "No space left on device"


@pytest.mark.parametrize("words", [("completion", "bash"), ("--version",)])
def test_a_full_disk_below_standard_output_is_reported(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*HEADGATE, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, f"headgate: the output: cannot be written: {FULL}\n")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, FULL),
        pygit2.GitError(f"failed to write out file: {FULL}"),
        RuntimeError(f"git commit: error: unable to write file: {FULL}"),
        RepositoryError(f"fatal: {FULL}"),
    ],
)
def test_the_demo_names_the_directory_that_is_full(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(demo, "_demo", fails)
    result = CliRunner().invoke(group, ["demo", "--directory", str(tmp_path)])
    assert isinstance(result.exception, UserError)
    advice = "name a directory elsewhere with --directory"
    assert str(result.exception) == f"{tmp_path}: the demo cannot write its files: {FULL}; {advice}"


def test_an_error_that_names_no_file_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, FULL)

    monkeypatch.setattr(exports, "pages", fails)
    result = CliRunner().invoke(group, ["man", str(tmp_path)])
    assert str(result.exception) == f"{tmp_path}: cannot be written: {FULL}"
