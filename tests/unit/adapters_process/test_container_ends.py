"""Test when the failure of a command means that its container has ended."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from headgate.adapters.process.confinement import server

FULL, MISSING = OSError(errno.ENOMEM, "Cannot allocate memory"), OSError(errno.ENOENT, "No such file")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Provide the first process of a container."""
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


@pytest.fixture
def first(process: subprocess.Popen[bytes]) -> Iterator[int]:
    found = os.pidfd_open(process.pid)
    yield found
    os.close(found)


def test_after_the_end_of_the_container_each_failure_means_that(process: subprocess.Popen[bytes], first: int) -> None:
    process.kill()
    process.wait()
    assert server.has_ended(first, MISSING) and server.has_ended(first, FULL) and server.has_ended(first, ValueError())


def test_a_lack_of_memory_means_the_end_of_a_container_that_is_ending(
    process: subprocess.Popen[bytes], first: int
) -> None:
    """The kernel refuses further processes before the first one has ended."""
    assert not server.has_ended(first, MISSING)
    killer = threading.Timer(0.05, process.kill)
    killer.start()
    assert server.has_ended(first, FULL)
    killer.join()


def test_a_command_fails_alone_in_a_container_that_runs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "END_TIMEOUT_S", 0.01)
    assert not server.has_ended(first, FULL) and not server.has_ended(first, MISSING)
