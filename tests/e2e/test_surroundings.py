"""Test errors of the machine: they are reported before anything is overwritten, and awaited if they may pass."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS

HEADGATE = str(Path(sys.executable).with_name("headgate"))
JUNK = b"this is not a database, and somebody may need it\n" * 200
STORE_SIZE_BYTES = 2_000_000


def run(root: Path, settings: str) -> tuple[int, str]:
    """Run `headgate run` until it ends on its own; return its exit status and output."""
    (root / "headgate.conf").write_text(settings)
    (root / "tenants.yaml").write_text(TENANTS)
    (root / "hub").mkdir(exist_ok=True)
    done = subprocess.run([HEADGATE, "run"], cwd=root, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["headgate.sqlite", "history.sqlite"])
def test_a_damaged_file_is_not_touched(tmp_path: Path, name: str) -> None:
    file = tmp_path / "state" / name
    file.parent.mkdir()
    file.write_bytes(JUNK)
    status, output = run(tmp_path, SETTINGS)
    assert status == 78 and str(file) in output and "move it away" in output
    assert file.read_bytes() == JUNK


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SETTINGS.replace("state_dir = state", "state_dir = file/state"), ["file/state"]),
        (SETTINGS + "[merger]\ngit_dir = file/git\n", ["[merger] git_dir", "file/git cannot be written"]),
        (SETTINGS + "job_dir = file/builds\n", ["[executor] job_dir", "file/builds cannot be written"]),
        (SETTINGS + "log_dir = file/logs\n", ["[executor] log_dir", "file/logs cannot be written"]),
        (SETTINGS + "[store]\nurl = sqlite:///file/store\n", ["file/store", "cannot be created"]),
        (SETTINGS + "[database]\ndburi = sqlite:///file/history\n", ["[database] dburi", "file/history"]),
    ],
)
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, settings: str, words: list[str]) -> None:
    (tmp_path / "file").write_text("no directory\n")
    status, output = run(tmp_path, settings)
    assert status == 78 and all(word in output for word in words), output


@pytest.mark.long
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output = run(tmp_path, SETTINGS.replace("port = 0", f"port = {port}"))
    assert status == 78 and f"[web]: cannot listen on 127.0.0.1:{port}" in output and "set port" in output


@pytest.mark.long
def test_a_second_headgate_on_the_same_store_is_refused(tmp_path: Path) -> None:
    first = start(tmp_path, [HEADGATE, "run"], SETTINGS)
    try:
        wait_for("the first runs", lambda: "pages are at" in (tmp_path / "log").read_text())
        status, output = run(tmp_path, SETTINGS)
        assert status == 78 and f"in use by process {first.pid}" in output
    finally:
        end(first)


def start(root: Path, command: list[str], settings: str) -> subprocess.Popen[bytes]:
    (root / "headgate.conf").write_text(settings)
    (root / "tenants.yaml").write_text(TENANTS)
    (root / "hub").mkdir(exist_ok=True)
    with open(root / "log", "ab") as log:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=environment, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(DEADLINE_S)


_FILL = """
(while sleep 0.1; do
  if test -e fill && ! test -e small/filling; then head -c 9999999 /dev/zero > small/filling 2>/dev/null; touch full; fi
  if test -e free; then rm -f small/filling fill; fi
done) &
exec "$0" run
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a small file system is made with bubblewrap")
def test_with_a_full_disk_it_waits_and_continues_once_there_is_space(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for project in ("code/api", "code/lib"):
        repositories.create(project, {"README": "x\n"})
    (tmp_path / "small").mkdir()
    small = ["--size", str(STORE_SIZE_BYTES), "--tmpfs", str(tmp_path / "small")]
    settings = SETTINGS + "sandbox = none\n[store]\nurl = sqlite:///small/store.sqlite\n"
    log = tmp_path / "log"
    command = ["bwrap", "--dev-bind", "/", "/", *small, "--die-with-parent", "sh", "-c", _FILL, HEADGATE]
    process = start(tmp_path, command, settings)
    try:
        wait_for("it runs", lambda: "pages are at" in log.read_text())
        first = repositories.propose("code/api", "first", {"a": "x\n"})
        repositories.approve("code/api", "first")
        wait_for("a change lands", lambda: "Landed" in repositories.note("code/api", first))
        (tmp_path / "fill").touch()
        wait_for("the disk is full", (tmp_path / "full").exists)
        second = repositories.propose("code/api", "second", {"b": "x\n"})
        repositories.approve("code/api", "second")
        wait_for(
            "it is said", lambda: "the disk is full; Headgate continues as soon as there is space" in log.read_text()
        )
        assert not repositories.note("code/api", second)
        (tmp_path / "free").touch()
        wait_for("it goes on", lambda: "Landed" in repositories.note("code/api", second))
        assert "Traceback" not in log.read_text()
    finally:
        end(process)
