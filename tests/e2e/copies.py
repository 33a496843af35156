"""Start commands of Headgate as copies of a process that has imported it, which saves most of the start time.

A copy behaves like a new process: it has its own arguments, directory, environment, output, session and random
numbers, and only the three standard descriptors. Only /proc shows the arguments and the environment of the original.
It ends with the process that requested it at the latest.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from headgate.adapters.process.confinement.boxes import libc
from headgate.testing.servers.program import Program

MODULES = (
    "headgate.cli.main", "headgate.cli.launch.run", "headgate.store.sqlite", "anyio._backends._asyncio", "attrs",
    "httpcore", "sqlalchemy.dialects.sqlite",
)  # fmt: skip
"""Modules that a gate has imported once it serves its pages."""
HEADGATE = str(Path(sys.executable).with_name("headgate"))
"""Beginning of their command lines."""
ROOT = Path(__file__).parents[2]
REQUEST_MAX_BYTES = 100_000
PR_SET_PDEATHSIG = 1
STARTS = "import sys; from tests.e2e.copies import serve; serve(int(sys.argv[1]))"


class Copy:
    """Represent a copy as `subprocess.Popen` represents a process."""

    def __init__(self, words: Sequence[str], cwd: Path, environment: Mapping[str, str], out: IO[bytes]) -> None:
        """`words`: the command line, beginning with its name; `out`: its output."""
        request = json.dumps([list(words), str(cwd), dict(environment)]).encode()
        assert len(request) <= REQUEST_MAX_BYTES, "an environment has limits"
        self._reports, its = socket.socketpair()
        with its:
            socket.send_fds(_original(os.getpid()), [request], [its.fileno(), out.fileno()])
        self.pid = int(self._line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        if self.returncode is None and self._is_readable(0):
            self.returncode = int(self._line())
            self._reports.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status.  Raise subprocess.TimeoutExpired."""
        if self.returncode is None and not self._is_readable(timeout):
            raise subprocess.TimeoutExpired(f"copy {self.pid}", timeout or 0)
        found = self.poll()
        assert found is not None, "it is told"
        return found

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _is_readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _line(self) -> str:
        """Return the next reported line. It is read byte by byte, because the following line comes later."""
        found = b""
        while not found.endswith(b"\n"):
            byte = self._reports.recv(1)
            assert byte, "what copies are made of has ended"
            found += byte
        return found.decode()


class CopiedProgram(Program):
    """Run a command of Headgate as a copy."""

    def _begun(self, out: IO[bytes]) -> Copy:
        return Copy(self.command[self.command.index(HEADGATE) :], self.directory, self._environment, out)


_originals: dict[int, tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def _original(asker: int) -> socket.socket:
    """Return the socket for requests of copies. Each process that requests copies has an original of its own, and a
    new one if that was killed."""
    mine, made = _originals.get(asker, (None, None))
    if mine is None or made is None or made.poll() is not None:
        mine, _ = _originals[asker] = _begin()
    return mine


def _begin() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    places = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": places}
    with its:
        command, fd = [sys.executable, "-c", STARTS, str(its.fileno())], its.fileno()
        made = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[fd])
    return mine, made


def serve(fd: int) -> None:
    """Make copies until no process is left that may request one."""
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=fd) as connection:
        while True:
            request, fds, _, _ = socket.recv_fds(connection, REQUEST_MAX_BYTES, 2)
            if not request:
                return
            if os.fork() == 0:
                connection.detach()
                _watch(json.loads(request), *fds)
            for one in fds:
                os.close(one)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _watch(request: Any, report_fd: int, out: int) -> None:
    """Start the copy, and report its process id and, after its end, its exit status."""
    _end_with_parent()
    pid = os.fork()
    if pid == 0:
        _end_with_parent()
        os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _become(*request)
    os.write(report_fd, f"{pid}\n".encode())
    os.closerange(0, report_fd)
    os.closerange(report_fd + 1, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(pid, 0)
    os.write(report_fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _end_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _become(words: Sequence[str], cwd: str, environment: Mapping[str, str]) -> None:
    """Run the command like its own program, and end."""
    from headgate.cli.main import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    gc.enable()
    main()
    sys.exit()
