"""Test that the holder of a directory keeps it, also on file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from headgate.adapters.logs.local import LocalLogs
from headgate.adapters.work import ownership


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)


def test_a_directory_is_one_owner_s_at_a_time(tmp_path: Path) -> None:
    with ownership.fresh(tmp_path / "build"), ownership.left(tmp_path / "build") as nobody_s:
        assert not nobody_s
    with ownership.left(tmp_path / "build") as nobody_s:
        assert nobody_s


@pytest.mark.usefixtures("without_locks")
def test_without_locks_no_owner_counts_as_dead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ownership.fresh(tmp_path / "build"):
        with ownership.left(tmp_path / "build") as nobody_s:
            assert not nobody_s
        with pytest.raises(OSError, match="another process"), ownership.fresh(tmp_path / "build"):
            pass
    assert "cannot be locked (No locks available)" in caplog.text


@pytest.mark.usefixtures("without_locks")
def test_without_locks_the_executor_that_starts_a_build_owns_its_logs(tmp_path: Path) -> None:
    assert LocalLogs(tmp_path).hold("build", new=True)
    assert not LocalLogs(tmp_path).hold("build")
