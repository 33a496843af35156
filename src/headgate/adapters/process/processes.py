"""Start commands of builds, copy their output, and end them with all processes that they started."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headgate.adapters.process import supervisor
from headgate.adapters.process.bounds.limits import Exceeded, of_bytes
from headgate.adapters.process.bounds.watch import CommandWatch, Limiter
from headgate.adapters.process.sandbox import NOWHERE_ELSE, Confined, Spaces
from headgate.base.tasks import end

GRACE_S = 2.0
"""Time between the request to end and the kill signal."""
# This is longer than the supervisor's limit, so that its answer still arrives, with the processes that it could not
# kill.
KILL_TIMEOUT_S = supervisor.KILL_TIMEOUT_S + 5.0
CHUNK_SIZE_BYTES = 65_536
BUILD_VARIABLE = "HEADGATE_BUILD"
"""Environment variable of every process of a build, which identifies processes left by an earlier run of the
executor."""


# This is longer than the limit of an errand's program, whose error is more helpful than a TimeoutError here.
ERRAND_TIMEOUT_S = 90.0


class Sink(Protocol):
    """Accept a command's output, and messages about it. Raise OSError if they cannot be stored."""

    def write(self, chunk: bytes) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Errand:
    """Hold the outcome of an errand: a program's output, or a new descriptor."""

    output: str
    made: int | None


_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from headgate.adapters.process import supervisor; supervisor.main()"
)
"""Program that imports only the standard library, and modules of Headgate that need nothing else."""


class ProcessKeeper:
    """Start commands through a separate process, see `supervisor`, which is started when first needed, and restarted
    after it was lost."""

    def __init__(self, limiter: Limiter | None = None) -> None:
        self._limiter = limiter or Limiter()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def run(
        self,
        command: Confined,
        *,
        build: str,
        whose: str,
        environment: Mapping[str, str],
        directory: Path,
        root: Path,
        log: Sink,
        cancel: asyncio.Event,
        timeout_s: float,
        spaces: Spaces = NOWHERE_ELSE,
        owner: int | None = None,
        box: Mapping[str, Any] | None = None,
        playbook: Mapping[str, Any] | None = None,
        serve: Mapping[str, Any] | None = None,
    ) -> int | str:
        """Run a command; return its exit status, or `timeout` or `cancel` if it was ended for that reason.

        No process that it started is left running.  It runs in `spaces`, and the user `owner`, in the numbering of
        `spaces`, may open its output.  `root` is the directory of the build; the commands of `whose` share one part
        of the processors.  `box`: see `boxes`; `serve`: see `server`; `playbook`: see `zygotes.pool`.

        Raise Cold if a zygote cannot run it, and no part of it ran; Exceeded if a limit was reached; OSError if it
        cannot be started, the log cannot be written, or the disk is full.
        """
        request = {
            "command": command.command,
            "inputs": _texts(command.inputs),
            "environment": {**environment, BUILD_VARIABLE: build},
            "directory": str(directory),
            "limits": self._limiter.bounds.resources(),
            "grace_s": GRACE_S,
            "owner": owner,
            "box": box,
            "playbook": playbook,
            "serve": serve,
        }
        source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The command shares the flags of its end, and programs expect output that blocks; only our end must not block.
        os.set_blocking(sink, True)
        control, other = socket.socketpair()
        control.setblocking(False)
        output = _Output(source, log, self._limiter.bounds.output_max_bytes)
        try:
            try:
                # The pipe ends when its last writer is gone: with a copy here, the output would never end.
                self._hand(b"s", sink, other.fileno())
            finally:
                os.close(sink)
                other.close()
            async with self._limiter.around(build, whose, root, lambda: processes_of(build), log.say) as watch:
                # The supervisor waits for the request, so the groups exist before any part of the command runs.
                request["groups"] = watch.groups
                return await _Command(control, output, cancel, watch).run(request, spaces, timeout_s)
        finally:
            output.close()
            control.close()

    async def program(self, spaces: Spaces, command: Confined | Sequence[str], stdin: str = "") -> str:
        """Run a short program of ours, and return its output.  Raise OSError with its error message if it fails."""
        confined = command if isinstance(command, Confined) else Confined(list(command))
        inputs = _texts(confined.inputs)
        done = await self.errand(spaces, do="program", command=confined.command, stdin=stdin, inputs=inputs)
        return done.output

    async def errand(self, spaces: Spaces = NOWHERE_ELSE, **request: Any) -> Errand:  # JSON, see errands
        """Run an errand in `spaces` and return its result. Raise OSError."""
        control, other = socket.socketpair()
        control.setblocking(False)
        with control:
            with other:
                self._hand(b"e", other.fileno())
            async with asyncio.timeout(ERRAND_TIMEOUT_S):
                await _ask(control, request, spaces)
                return await _answered(control)

    async def user_namespace(
        self, uids: Sequence[Sequence[int]], gids: Sequence[Sequence[int]], owner: int | None = None
    ) -> int:
        """Return a descriptor of a new user namespace with these maps (first id inside, first id outside, count); for
        `owner`, see `errands`. Raise OSError."""
        made = (await self.errand(do="user", uids=uids, gids=gids, owner=owner)).made
        assert made is not None, "this errand returns a descriptor"
        return made

    def _hand(self, word: bytes, *fds: int) -> None:
        """Send descriptors to the keeper; if it has ended, restart it once."""
        for last in (False, True):
            if self._socket is None:
                self._begin()
            assert self._socket is not None, "just started"
            try:
                socket.send_fds(self._socket, [word], fds)
                return
            # Nothing was sent, so it is safe to repeat; if a new keeper fails immediately, raise the error.
            except (BrokenPipeError, ConnectionResetError):
                self._end()
                if last:
                    raise

    def _begin(self) -> None:
        place = str(Path(__file__).parents[3])
        self._spawn(lambda fd: [sys.executable, "-I", "-S", "-c", _PROGRAM, place, str(fd)])

    def _spawn(self, words: Callable[[int], Sequence[str]], *fds: int, **options: Any) -> None:
        """Start the process with the command that `words` returns for its socket's descriptor. Raise OSError."""
        self._socket, its = socket.socketpair()
        # Do not use the executor's environment: builds and their helpers would inherit credentials in it.
        environment = {"PATH": os.environ.get("PATH", os.defpath), **options.pop("environment", {})}
        with its:
            self._process = subprocess.Popen(
                words(its.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno(), *fds],
                env=environment,
                # Ctrl-C in the executor's terminal must not kill the keeper before the executor ends its builds.
                start_new_session=True,
                **options,
            )

    def close(self) -> None:
        """End the keeper; supervisors end commands that still run, each when its own socket closes."""
        self._end()
        self._limiter.close()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S)
        self._socket = self._process = None


class _Command:
    """Run one command, from the request to the supervisor's answer."""

    def __init__(self, control: socket.socket, output: _Output, cancel: asyncio.Event, watch: CommandWatch) -> None:
        self._control, self._output, self._cancel, self._watch = control, output, cancel, watch
        self._playbook = False

    async def run(self, request: dict[str, Any], spaces: Spaces, timeout_s: float) -> int | str:
        self._playbook = request["playbook"] is not None
        answer = asyncio.ensure_future(self._answer(request, spaces))
        cancelled = asyncio.ensure_future(self._cancel.wait())
        exceeded = asyncio.ensure_future(self._watch.exceeded())
        waited: set[asyncio.Future[Any]] = {answer, cancelled, exceeded, self._output.ended}
        try:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + timeout_s
            while not answer.done() and not cancelled.done() and loop.time() < until_s:
                await asyncio.wait(waited, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                waited.discard(self._output.ended)  # a command may close its output and continue
                if self._output.failed or exceeded.done():
                    break
            why = "" if answer.done() else "cancel" if cancelled.done() else "timeout"
            if why:
                # A build over its limits gets no grace period, which it could use to take more.
                await self._say(b"k" if exceeded.done() else b"e")
            # Shield the answer, so that after a timeout here, the `finally` below can kill and wait once more.
            async with asyncio.timeout(GRACE_S + KILL_TIMEOUT_S):
                status = self._status(await asyncio.shield(answer))
            # All processes have ended by now, but their output may still be in the pipe. Limit the wait, because a
            # process that could not be killed may hold the pipe.
            await asyncio.wait({self._output.ended}, timeout=GRACE_S)
            self._output.check()
            if exceeded.done():
                raise Exceeded(exceeded.result())
            self._watch.check(why or status)
            return why or status
        finally:
            if not answer.done():
                await self._say(b"k")
                await asyncio.wait({answer}, timeout=KILL_TIMEOUT_S)
            await end(answer, cancelled, exceeded)

    async def _answer(self, request: dict[str, Any], spaces: Spaces) -> dict[str, Any]:
        """Return the supervisor's final answer (JSON): empty if the supervisor was killed, `cold` if it was killed
        before the command began."""
        loop = asyncio.get_running_loop()
        found = b""
        try:
            await _ask(self._control, request, spaces)
            while piece := await loop.sock_recv(self._control, CHUNK_SIZE_BYTES):
                found += piece
            answer: dict[str, Any] = json.loads(found)  # JSON, see supervisor
            return answer
        except (ConnectionError, ValueError):
            # A first byte means that the command began, so it must not run a second time.
            return {} if found else {"cold": "the process that should start it was killed"}

    async def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._control.send(word)

    def _status(self, answer: dict[str, Any]) -> int:
        if answer.get("left"):
            self._output.say(f"These processes could not be killed: {answer['left']}")
        # Only playbooks raise Cold: any other command reports a missing supervisor as its own end.
        if self._playbook and "cold" in answer:
            raise supervisor.Cold(answer["cold"])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
        if "status" not in answer:
            self._output.say("The supervisor of this command was killed, and the command with it")
            return -signal.SIGKILL
        status: int = answer["status"]
        return status


def _texts(inputs: Mapping[int, bytes]) -> dict[int, str]:
    return {number: base64.b64encode(text).decode() for number, text in inputs.items()}


async def _ask(control: socket.socket, request: Mapping[str, Any], spaces: Spaces) -> None:
    """Send a request, with the namespaces to join.  Raise OSError."""
    body = json.dumps({**request, "join": list(spaces)}).encode()
    socket.send_fds(control, [struct.pack("!I", len(body))], list(spaces.values()))
    await asyncio.get_running_loop().sock_sendall(control, body)


async def _answered(control: socket.socket) -> Errand:
    """Read the answer to an errand.  Raise OSError."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    found, fds = b"", list[int]()
    loop.add_reader(control, readable.set)
    try:
        while not found.endswith(b"\n"):
            await readable.wait()
            readable.clear()
            with contextlib.suppress(BlockingIOError):
                piece, more, _, _ = socket.recv_fds(control, CHUNK_SIZE_BYTES, 1)
                if not piece:
                    raise ConnectionError("the keeper of commands was killed")
                found, fds = found + piece, fds + more
        reply = json.loads(found)
        if "error" in reply:
            raise OSError(reply["error"])
        # The descriptor now belongs to the caller; the `finally` closes only descriptors that nobody received.
        made, fds = (fds[0] if fds else None), []
        return Errand(reply.get("output", ""), made)
    finally:
        loop.remove_reader(control)
        for fd in fds:
            os.close(fd)


class _Output:
    """Copy a pipe to the log.  `ended` is done when every holder of the other end has closed it, or after a failure."""

    def __init__(self, source: int, log: Sink, size_max_bytes: int) -> None:
        self._source, self._log, self._size_max_bytes = source, log, size_max_bytes
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._error: OSError | Exceeded | None = None
        self._size_bytes = 0
        self._loop.add_reader(source, self._more)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise the OSError of writing the log, or Exceeded after too much output."""
        if self._error is not None:
            raise self._error

    def say(self, text: str) -> None:
        self._log.say(text)

    def _more(self) -> None:
        try:
            chunk = os.read(self._source, CHUNK_SIZE_BYTES)
            self._size_bytes += len(chunk)
            if self._size_bytes > self._size_max_bytes:
                self._error = Exceeded(f"output limit of {of_bytes(self._size_max_bytes)} reached")
            elif chunk:
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
    """Kill the processes that an earlier executor left: those whose environment names the build and paths in its work
    directory, since another executor on this machine may run the same build again."""
    for _ in range(5):  # the next round finds processes that are forked in the meantime
        found = processes_of(directory.name, directory)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def processes_of(build: str, directory: Path | None = None) -> list[int]:
    """Return the ids of living processes whose environment names the build and, if `directory` is given, a path in
    it.
    """
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
        # A zombie cannot be killed: its parent must reap it.
        if state != "Z" and wanted in environment and any(place in one for one in environment):
            found.append(int(entry.name))
    return found
