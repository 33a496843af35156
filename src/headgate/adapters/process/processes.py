"""Commands of builds: started, their output copied, ended with everything they began."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.adapters.process import supervisor
from headgate.adapters.process.joblog import JobLog
from headgate.base.tasks import end

GRACE_S = 2.0
"""Between asking a command to end and ending it."""
KILL_TIMEOUT_S = supervisor.KILL_TIMEOUT_S + 5.0
CHUNK_SIZE_BYTES = 65_536
BUILD_VARIABLE = "HEADGATE_BUILD"
"""In the environment of everything a build starts: by it what an earlier life left is found."""


class Keeper:
    """The process that starts commands, see `supervisor`.  Begun when first needed, and anew when it was lost."""

    def __init__(self, *, limits: Mapping[str, int] | None = None, cgroup: bool = False) -> None:
        self._limits, self._cgroup = dict(limits or {}), cgroup
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def run(
        self,
        command: Sequence[str],
        *,
        build: str,
        environment: Mapping[str, str],
        directory: Path,
        log: JobLog,
        cancel: asyncio.Event,
        timeout_s: float,
    ) -> int | str:
        """Exit status; or `timeout` or `cancel`, when it was ended for that.  Nothing it started is left running.

        Raises OSError when it cannot be started, or the log cannot be written.
        """
        request = {
            "command": list(command),
            "environment": {**environment, BUILD_VARIABLE: build},
            "directory": str(directory),
            "limits": self._limits,
            "cgroup": self._cgroup,
            "grace_s": GRACE_S,
        }
        source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(sink, True)
        control, other = socket.socketpair()
        control.setblocking(False)
        output = _Output(source, log)
        try:
            try:
                self._hand(sink, other)
            finally:
                os.close(sink)
                other.close()
            return await _Command(control, output, cancel).whole(request, timeout_s)
        finally:
            output.close()
            control.close()

    def _hand(self, sink: int, other: socket.socket) -> None:
        """Gives the keeper a command's two descriptors; a keeper that is gone is begun anew, once."""
        for last in (False, True):
            if self._socket is None:
                self._begin()
            assert self._socket is not None, "just begun"
            try:
                socket.send_fds(self._socket, [b"s"], [sink, other.fileno()])
                return
            except (BrokenPipeError, ConnectionResetError):
                self.close()
                if last:
                    raise

    def _begin(self) -> None:
        self._socket, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )

    def close(self) -> None:
        """Commands still running are ended by their supervisors, each when its own socket closes."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S)
        self._socket = self._process = None


class _Command:
    """One command, from the request to the supervisor's answer."""

    def __init__(self, control: socket.socket, output: _Output, cancel: asyncio.Event) -> None:
        self._control, self._output, self._cancel = control, output, cancel

    async def whole(self, request: dict[str, Any], timeout_s: float) -> int | str:
        answer = asyncio.ensure_future(self._asked(request))
        cancelled = asyncio.ensure_future(self._cancel.wait())
        waited: set[asyncio.Future[Any]] = {answer, cancelled, self._output.ended}
        try:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + timeout_s
            while not answer.done() and not cancelled.done() and loop.time() < until_s:
                await asyncio.wait(waited, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                waited.discard(self._output.ended)  # it may close its output and go on
                if self._output.failed:
                    break
            why = "" if answer.done() else "cancel" if cancelled.done() else "timeout"
            if why:
                await self._say(b"e")
            async with asyncio.timeout(GRACE_S + KILL_TIMEOUT_S):
                status = self._status(await asyncio.shield(answer))
            await asyncio.wait({self._output.ended}, timeout=GRACE_S)
            self._output.check()
            return why or status
        finally:
            if not answer.done():
                await self._say(b"k")
                await asyncio.wait({answer}, timeout=KILL_TIMEOUT_S)
            await end(answer, cancelled)

    async def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the supervisor says in the end.  JSON."""
        loop = asyncio.get_running_loop()
        body = json.dumps(request).encode()
        found = b""
        try:
            await loop.sock_sendall(self._control, struct.pack("!I", len(body)) + body)
            while piece := await loop.sock_recv(self._control, CHUNK_SIZE_BYTES):
                found += piece
            answer: dict[str, Any] = json.loads(found)  # JSON, see supervisor
            return answer
        except (ConnectionError, ValueError):
            return {}

    async def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._control.send(word)

    def _status(self, answer: dict[str, Any]) -> int:
        if answer.get("left"):
            self._output.say(f"These processes could not be ended: {answer['left']}")
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
        if "status" not in answer:
            self._output.say("The supervisor of this command was killed; the command was ended with it")
            return -signal.SIGKILL
        status: int = answer["status"]
        return status


class _Output:
    """Copies a pipe into the log.  `ended` is done when every holder of the other end has closed it, or on failure."""

    def __init__(self, source: int, log: JobLog) -> None:
        self._source, self._log = source, log
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._error: OSError | None = None
        self._loop.add_reader(source, self._more)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raises the OSError that writing the log met."""
        if self._error is not None:
            raise self._error

    def say(self, text: str) -> None:
        self._log.say(text)

    def _more(self) -> None:
        try:
            chunk = os.read(self._source, CHUNK_SIZE_BYTES)
            if chunk:
                self._log.write(chunk)
                return
        except BlockingIOError:
            return
        except OSError as error:
            self._error = error
        self._loop.remove_reader(self._source)
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)
        if not self.ended.done():
            self.ended.cancel()


def kill_left(directory: Path) -> None:
    """Ends every process that names the build, and places in its work directory, in its environment: once, for what an
    earlier life left.  Another executor on this machine may have begun the same build anew."""
    for _ in range(5):  # one that forks while we look is found in the next round
        found = processes_of(directory.name, directory)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def processes_of(build: str, directory: Path | None = None) -> list[int]:
    """Living processes whose environment names the build, and something in `directory`, if it is given."""
    wanted = f"{BUILD_VARIABLE}={build}".encode()
    place = b"" if directory is None else f"={directory}/".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes().split(b"\0")
            state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state != "Z" and wanted in environment and any(place in one for one in environment):
            found.append(int(entry.name))
    return found
