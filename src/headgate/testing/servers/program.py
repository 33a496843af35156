"""Run programs for tests, also on a small disk of their own."""

from __future__ import annotations

import errno
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

from headgate.testing.clock import DEADLINE_S

START_S = DEADLINE_S
STOP_S = DEADLINE_S
PORTS = 8_000
"""Number of ports that servers of tests use in turn."""
MOUNT = 'mount -t tmpfs -o "size=$1" disk "$2" && echo mounted && exec sleep infinity'
"""Shell command that mounts a disk of so many bytes at a path, for as long as it runs."""
PIECE = bytes(1 << 16)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nobody listens, and which no other process of this user gets soon. They are
    below the kernel's ephemeral ports, so that no connection takes one before the server has it."""
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
    """Declare the part of `subprocess.Popen` that callers use."""

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
        """Kill the program immediately, as a power cut would."""
        if self.running:
            self.signal(signal.SIGKILL)
            assert self.process is not None, "it runs"
            # Until it is reaped: only then are its ports and locks free.
            self.process.wait(STOP_S)

    def stop(self, patience_s: float = STOP_S) -> int:
        """Ask it politely to end, and return its exit status; it is killed if it does not end."""
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


class SmallDisk:
    """Mount a small disk at `place` for programs that run `inside`; its content stays until `close`.

    This needs user namespaces, but no other rights.
    """

    def __init__(self, directory: Path, place: Path, size_bytes: int) -> None:
        """Mount a disk of this size. Raise RuntimeError with the reason if that is impossible here."""
        place.mkdir(parents=True, exist_ok=True)
        shell = ["sh", "-c", MOUNT, "sh", str(size_bytes), str(place)]
        # The mount exists in the namespace of this process only, and goes with it.
        self._keeper = Program(["unshare", "--user", "--map-root-user", "--mount", *shell], directory)
        self._keeper.start()
        self._keeper.until(lambda: "mounted" in self._keeper.log.read_text())
        assert self._keeper.process is not None, "it was started"
        self._pid = self._keeper.process.pid
        # The kernel's way into another mount namespace; at `place` itself, others see an empty directory.
        self.path = Path(f"/proc/{self._pid}/root{place}")
        """Path of the mount, as other processes see it."""

    def inside(self, command: list[str]) -> list[str]:
        """Return the command that runs this command inside the mount."""
        # Without `--preserve-credentials`, nsenter drops groups, which a namespace with `--map-root-user` does not
        # permit.
        enter = ["nsenter", f"--target={self._pid}", "--user", "--mount", "--preserve-credentials"]
        return [*enter, "setpriv", "--pdeathsig", "KILL", *command]

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        try:
            # Unbuffered, so that no byte waits in this process for a disk that is full.
            with open(self.path / "filler", "ab", buffering=0) as filler:
                while True:
                    filler.write(PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def empty(self) -> None:
        """Restore the disk as it was before `fill`."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.kill()
