"""Test files that only their owner can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.base.private import private_replacement


def test_two_processes_that_replace_one_file_concurrently_write_separate_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with private_replacement(file) as first:
        first.write(b"first")
        with private_replacement(file) as second:
            second.write(b"second")
        assert file.read_bytes() == b"second"
        first.write(b", whole")
    assert file.read_bytes() == b"first, whole" and list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_a_file_that_cannot_be_written_to_its_end_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), private_replacement(file) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"before" and list(tmp_path.iterdir()) == [file]
