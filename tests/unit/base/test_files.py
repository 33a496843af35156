"""Test reading files that people name: nothing is waited for that may never come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.base import files
from headgate.base.files import bytes_of, check_file, text_of


def test_a_file_is_read_as_usual(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\r\ntwo\n")
    assert text_of(file) == file.read_text() == "one\ntwo\n"
    assert text_of(file, size_max=3) == "one"
    assert bytes_of(file) == b"one\r\ntwo\n"
    assert text_of(Path("/dev/null")) == ""


def test_a_named_pipe_and_a_device_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (text_of, bytes_of, check_file):
        with pytest.raises(OSError, match="this is a named pipe; name a regular file"):
            read(pipe)
        with pytest.raises(OSError, match="this is a device; name a regular file"):
            read(Path("/dev/zero"))


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SIZE_MAX_BYTES", 5)
    file = tmp_path / "file"
    file.write_text("12345")
    assert text_of(file) == "12345" and bytes_of(file) == b"12345"
    check_file(file)
    file.write_text("123456")
    assert text_of(file, size_max=2) == "12"
    for read in (text_of, bytes_of, check_file):
        with pytest.raises(OSError, match="the file is larger than"):
            read(file)


def test_an_endless_pipe_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SIZE_MAX_BYTES", 5)
    end, begin = os.pipe()
    with os.fdopen(begin, "wb", buffering=0) as pipe:
        pipe.write(b"123456")
        monkeypatch.setattr(files, "PIECE_SIZE", 6)
        with pytest.raises(OSError, match="the file is larger than"):
            bytes_of(Path(f"/dev/fd/{end}"))
    os.close(end)


def test_a_pipe_of_this_process_is_read_to_its_end() -> None:
    """A shell passes such a path for `<(command)`."""
    end, begin = os.pipe()
    with os.fdopen(begin, "wb") as pipe:
        pipe.write(b"from a command")
    try:
        assert text_of(Path(f"/dev/fd/{end}")) == "from a command"
    finally:
        os.close(end)
