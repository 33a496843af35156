"""Test that Headgate starts only with a git that has the needed features."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.base.errors import UserError
from headgate.cli.main import group


@pytest.mark.parametrize("command", [["run"], ["scheduler"], ["merger"], ["executor"], ["demo"], ["try", "x"]])
@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("git version 2.34.1", r"this is git version 2\.34\.1, but git 2\.38 or newer is needed; install git 2\.38"),
        ("git version 1.99", r"this is git version 1\.99, but"),
        ("a shell", r"prints no version: 'a shell'; install git 2\.38"),
        (None, r"git cannot be run: .*; install git 2\.38 or newer"),
    ],
)
def test_a_git_that_cannot_merge_is_reported_at_the_start(
    tmp_path: Path, says: str | None, message: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if says is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=message):
        group.main(command, standalone_mode=False)
