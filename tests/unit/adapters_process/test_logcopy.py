"""The log among the files of a job, for playbooks of post-run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.process.ansible_plugins.callback.headgate import LogCopy


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the log directories of a job; the log so far has one line."""
    for name, variable in (("kept", "HEADGATE_LOGS"), ("logs", "ZUUL_LOG_DIR")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "kept/job-output.txt").write_text("first\n")
    return tmp_path / "logs"


def test_the_log_is_a_file_in_place_of_the_link(logs: Path) -> None:
    (logs / "job-output.txt").symlink_to(logs.parent / "kept/job-output.txt")
    LogCopy("job-output.txt").begin()
    assert not (logs / "job-output.txt").is_symlink() and (logs / "job-output.txt").read_text() == "first\n"


def test_a_log_copy_that_a_job_obstructs_leaves_no_other_file(logs: Path) -> None:
    (logs / "job-output.txt").mkdir()
    LogCopy("job-output.txt").begin()
    assert [file.name for file in logs.iterdir()] == ["job-output.txt"]
