"""A program that runs beside the tests."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from headgate.testing.deadline import DEADLINE_S

START_S = DEADLINE_S
STOP_S = DEADLINE_S
PORTS = 8_000
"""Number of ports that servers of tests use in turn."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on, and that no other process of this user is given soon.

    They are below those that the kernel gives away itself: none is taken by a connection before a server has it.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = max(first, 2 * PORTS)
    found = list[int]()
    with open(Path(tempfile.gettempdir()) / f"headgate-ports-{os.geteuid()}", "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        # Users have files of their own, and begin at different ports.
        last = int(file.read() or os.geteuid() * 997 % PORTS)
        for _ in range(PORTS):
            last = (last + 1) % PORTS
            if len(found) < count and _is_free(below - 1 - last):
                found.append(below - 1 - last)
            if len(found) == count:
                break
        file.truncate(0)
        file.write(b"%d" % last)
    assert len(found) == count, f"fewer than {count} ports are free"
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class RunningProcess(Protocol):
    """Describe what is used of `subprocess.Popen`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


class Program:
    """Run `command` in `directory`, with its output in `log`. It ends with this process at the latest."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> None:
        # The kernel kills it when this process dies, whatever it dies of, so tests that crash leave no servers.
        self.command, self.directory = ["setpriv", "--pdeathsig", "KILL", *command], directory
        self.log = directory / "output"
        self._environment = {**os.environ, **(environment or {})}
        self.process: RunningProcess | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert not self.running, "it is started once"
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            self.process = self._begun(out)

    def _begun(self, out: IO[bytes]) -> RunningProcess:
        # A session of its own: Ctrl-C in the terminal is for the tests, which end it themselves.
        return subprocess.Popen(
            self.command, cwd=self.directory, stdout=out, stderr=out, env=self._environment, start_new_session=True
        )

    def until(self, ready: Callable[[], bool], deadline_s: float = START_S) -> None:
        """Wait until `ready`. Raise RuntimeError with the end of the log."""
        end_s = time.monotonic() + deadline_s
        while not ready():
            if not self.running or time.monotonic() > end_s:
                log = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.command[3]} did not get ready in {deadline_s} s:\n{log}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        if self.running:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the program at once, as a power cut would."""
        if self.running:
            self.signal(signal.SIGKILL)
            assert self.process is not None, "it runs"
            # Until it is reaped: only then are its ports and locks free.
            self.process.wait(STOP_S)

    def stop(self, patience_s: float = STOP_S) -> int:
        """Ask it politely to end, and return its exit status; it is killed when it does not heed it."""
        if self.process is None:
            return 0
        # A test may have stopped it with SIGSTOP, and a stopped process does not act on SIGTERM.
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
