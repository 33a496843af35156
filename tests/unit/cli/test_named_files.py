"""Test commands whose files are no files: they say so, and wait for nothing."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.main import group

PIPE = "this is a named pipe; name a regular file"
SETTINGS = "[scheduler]\ntenant_config = pipe\n"


class Endless(io.RawIOBase):
    """Imitate input without an end; reading ten megabytes of it is an error."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.read_bytes += len(buffer)
        assert self.read_bytes < 10_000_000, "the input is read to its end"
        buffer[:] = b"x" * len(buffer)
        return len(buffer)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a directory with a pipe to which nobody writes, and settings that name it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "settings").write_text(SETTINGS)
    (tmp_path / "empty").write_text("")
    (tmp_path / "worker").write_text("[qdo-worker]\njob = json:loads\nca_bundle = pipe\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("inventory machine create --file -", "standard input: the document is longer than"),
        ("encrypt --public-key key.pem", "standard input: a value may have at most 1,000,000 bytes"),
        ("queue post --config unreachable orders", "127.0.0.1:9"),
    ],
)
def test_endless_input_is_refused(command: str, error: str, place: Path) -> None:
    (place / "key.pem").touch()
    (place / "unreachable").write_text("[queuey]\nconnection = http://127.0.0.1:9/v1/queuey/\n")
    result = CliRunner().invoke(group, command.split(), input=Endless())
    assert isinstance(result.exception, UserError) and error in str(result.exception), result.output


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("check --config pipe", f"pipe: cannot be read: {PIPE}"),
        ("run --config pipe", f"pipe: cannot be read: {PIPE}"),
        ("check --repos . --tenant-config pipe", f"pipe: the tenant file cannot be read: {PIPE}"),
        (
            "check --repos . --tenant-config /dev/zero",
            "/dev/zero: the tenant file cannot be read: this is a device; name a regular file",
        ),
        (
            "check --config empty --against http://localhost --token pipe",
            f"pipe: the token cannot be read: {PIPE}",
        ),
        ("store import --store sqlite:///store pipe", f"pipe: cannot be read: {PIPE}"),
        ("store import --store sqlite:///store /dev/zero", "/dev/zero: cannot be read: this is a device"),
        ("inventory import --format csv --file pipe", f"pipe: cannot be read: {PIPE}"),
        ("inventory import --format json --file /dev/zero", "/dev/zero: cannot be read: this is a device"),
        ("inventory --ca pipe object list", f"pipe: cannot be read: {PIPE}"),
        (
            "inventory serve --store memory: --cert-path pipe --key-path pipe",
            f"certificate, key or client authority cannot be used: [Errno 22] {PIPE}",
        ),
        (
            "inventory serve --store memory: --cert-path empty --key-path empty",
            "certificate, key or client authority cannot be used: ",
        ),
        ("worker --config worker", f"ca_bundle cannot be read: {PIPE}"),
        ("check --config settings", f"/pipe: the tenant file cannot be read: {PIPE}"),
        ("run --config settings", f"/pipe: the tenant file cannot be read: {PIPE}"),
    ],
)
def test_a_path_that_is_not_a_file_is_reported(command: str, error: str) -> None:
    result = CliRunner().invoke(group, command.split())
    told = str(result.exception) if isinstance(result.exception, UserError) else result.output
    assert result.exit_code and error in told, told


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("run --config hub", r"app_key: \S+/gone cannot be read: No such file or directory"),
        (
            "map tree --store etcd://localhost:1?tls_ca=gone",
            r"tls_ca=\S*gone cannot be read \(No such file or directory\)",
        ),
    ],
)
def test_the_reason_names_the_missing_file_only_once(command: str, error: str, place: Path) -> None:
    (place / "hub").write_text("[connection hub]\ndriver = github\napp_id = 1\napp_key = gone\n")
    result = CliRunner().invoke(group, command.split())
    assert isinstance(result.exception, UserError), result.output
    assert re.search(f"{error}$", str(result.exception)) is not None, result.exception
