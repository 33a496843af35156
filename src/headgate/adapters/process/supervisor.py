"""Start the commands of builds, and end them with all their descendants: a separate program, standard library only.

The keeper forks one supervisor for each command.  A supervisor is the reaper of its command's descendants: it adopts
every process that daemonizes.  When the command has ended, or nobody waits for it any longer, the supervisor kills
until it has no children left.  If the executor dies, the supervisor's socket closes, which ends the command, too.

A request is one byte `s` to the keeper with two descriptors (the destination of the output, a stream socket), then JSON
on that socket after its size in 4 bytes: `command`, `environment`, `directory`, `limits` (name in `resource` ->
number), `inputs` (descriptor -> content that the command can read from it, base64), `grace_s`, `groups` (directories of
control groups for the command), `join` (namespaces to enter, see `errands`), `owner` (the user who may open the output,
or null), `box` (the command's file system, see `boxes`, or null), `serve` (how others can start commands alongside it,
see `server`, or null). A byte `e` asks the command to end, `k` kills it.

The answer is a space when the command begins, then JSON until the end of the stream: `status` (exit status, negative
for a signal), `left` (processes that cannot be killed), or `errno` and `filename` if it could not be started, or
`cold`: see `zygotes.entry`.

A byte `e` to the keeper with one descriptor (a stream socket) is an errand, see `errands`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from headgate.adapters.process.confinement import errands
from headgate.adapters.process.confinement.boxes import libc
from headgate.adapters.process.confinement.server import CommandServer
from headgate.base.errors import ExecutionError

PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 10.0
# This is only a safety net: an ended child wakes the loop, but adopting a grandchild sends no signal.
LOOK_INTERVAL_S = 0.002
NICENESS = 10
"""Nice value of builds, so that the gate, the merger and the web on the same machine have precedence."""


class Cold(ExecutionError):
    """Report that a command cannot run as a copy of a warm process; no part of it has run."""


@dataclass(frozen=True, slots=True)
class Started:
    """Represent a command that was started."""

    pid: int
    begin: Callable[[], None] = lambda: None
    """Called once the executor knows of the start."""
    over: Callable[[int], int] = lambda status: status
    """Called when the command has ended; converts its exit status for the executor."""


Start = Callable[[dict[str, Any], int, list[int]], Started]
"""(request, descriptor for the output, control groups to enter) -> the command."""


def main() -> None:
    keeper(socket.socket(fileno=int(sys.argv[1])))


def keeper(requests: socket.socket, start: Start | None = None) -> None:
    """Start commands until the executor closes its end."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # adopt the processes of a killed supervisor
    # Every command inherits this, and cannot lower it again without CAP_SYS_NICE.
    os.nice(NICENESS)
    wake = _woken_by_children()
    supervisors: set[int] = set()
    while True:
        ready, _, _ = select.select([requests.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 512)
            _reap_supervisors(supervisors)
        if requests.fileno() in ready:
            word, fds, _, _ = socket.recv_fds(requests, 1, 2)
            if not word:
                break
            # Fork before reading the request: a slow or broken request blocks only its own supervisor.
            pid = os.fork()
            if pid == 0:
                # With this copy open, the executor would not notice the keeper's end while a build runs.
                requests.close()
                os.close(wake)
                if word == b"e":
                    _errand(socket.socket(fileno=fds[0]))
                # Children do not inherit this from the keeper.
                libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                _supervisor(fds[0], socket.socket(fileno=fds[1]), start or _start)
            supervisors.add(pid)
            for fd in fds:
                os.close(fd)


def _reap_supervisors(supervisors: set[int]) -> None:
    """Reap supervisors that have ended. If a supervisor was killed, kill its command and, in later calls, the command's
    descendants."""
    left = False
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            # A process that is not a supervisor was adopted, which happens only after its supervisor died.
            left = left or found[0] not in supervisors or os.WIFSIGNALED(found[1])
            supervisors.discard(found[0])
    if left:
        for pid in _children(os.getpid(), supervisors):
            _kill(pid)


def _errand(control: socket.socket) -> NoReturn:
    try:
        errands.answer(control)
    finally:
        os._exit(0)


def _supervisor(sink: int, control: socket.socket, start: Start) -> NoReturn:
    code = 1
    try:
        # Descriptors that arrive over a socket have no close-on-exec flag.
        for fd in (sink, control.fileno()):
            os.set_inheritable(fd, False)
        request, spaces = errands.receive(control)
        wake = _woken_by_children()
        answer: dict[str, Any] = {}  # JSON
        try:
            # Open these before entering the namespaces, in which they are neither visible nor writable.
            cgroup_fds = [os.open(f"{group}/cgroup.procs", os.O_WRONLY) for group in request["groups"]]
            server = CommandServer(request["serve"], cgroup_fds) if request["serve"] else None
            _go(request, spaces, sink)
            started = (
                start(request, sink, cgroup_fds) if server is None else _serving(request, sink, cgroup_fds, server)
            )
            os.close(sink)
            # After this byte, the executor considers the command started, and never starts it again.
            control.sendall(b" ")
            started.begin()
            answer["status"] = started.over(_wait(started.pid, control, wake, request["grace_s"], server))
        except Cold as why:
            answer = {"cold": str(why)}
        except OSError as error:
            answer = {"errno": error.errno, "filename": error.filename}
        # Popen reports a failed preexec_fn without its reason; ours only enters the control groups.
        except subprocess.SubprocessError:
            answer = {"errno": errno.EACCES, "filename": " ".join(request["groups"])}
        # Do this before answering: once the executor has the answer, no process of the command may write any longer.
        answer["left"] = _end_all(request["groups"], wake)
        control.sendall(json.dumps(answer).encode())
        code = 0
    finally:
        os._exit(code)


def _go(request: dict[str, Any], spaces: list[int], sink: int) -> None:
    """Enter the namespaces and the file system of the command. Raise OSError."""
    box, owner = request["box"], request["owner"]
    if box:
        os.fchown(sink, box["owner"], -1)  # while this process still has the right
    errands.enter(box, request["join"], spaces)
    if owner is not None and not box:
        # A command may open /dev/stdout by its path, for which it must own the pipe.
        os.fchown(sink, owner, -1)


def _woken_by_children() -> int:
    """Return a descriptor that is readable once a child has ended."""
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # The kernel discards an ignored SIGCHLD, and without a handler, Python writes nothing to the wake-up descriptor.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return wake


def _start(request: dict[str, Any], sink: int, cgroup_fds: list[int]) -> Started:
    return Started(spawned(request, cgroup_fds, subprocess.DEVNULL, sink, sink))


def _serving(request: dict[str, Any], sink: int, cgroup_fds: list[int], server: CommandServer) -> Started:
    """Start the process that holds the namespaces for other commands."""
    stdin, stdout = server.streams
    pid = spawned(request, cgroup_fds, stdin, stdout, sink, server.info)
    server.begun()
    return Started(pid)


def spawned(
    request: dict[str, Any], cgroup_fds: Collection[int], stdin: int, stdout: int, stderr: int, info: int | None = None
) -> int:
    """Start a process in a new session, and return its id. Raise OSError if the program cannot be started. `info` is a
    descriptor to which bubblewrap writes its namespaces."""
    # Set the limits on the supervisor, which does not need more itself, and let the command inherit them.
    for name, value in request["limits"].items():
        _limit(getattr(resource, name), value)
    inputs = {int(number): base64.b64decode(text) for number, text in request["inputs"].items()}
    errands.lay(inputs)
    program, *arguments = request["command"]
    info_options = () if info is None else ("--info-fd", str(info))
    process = subprocess.Popen(
        [program, *info_options, *arguments],
        env=request["environment"],
        cwd=request["directory"],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        pass_fds=(*inputs, *(() if info is None else (info,))),
        # Do this between fork and exec, so that not even the first instruction of the program runs outside of its
        # groups. 0 means the process that writes.
        preexec_fn=lambda: [os.write(fd, b"0") for fd in cgroup_fds],
    )
    process.returncode = 0  # this program reaps the process, not the object
    for number in inputs:
        os.close(number)
    return process.pid


def _limit(which: int, value: int) -> None:
    """Set a limit of this process and its children, but never above its current hard limit."""
    hard = resource.getrlimit(which)[1]
    # An ordinary user cannot raise a hard limit, and setrlimit would fail.
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _wait(child: int, control: socket.socket, wake: int, grace_s: float, server: CommandServer | None) -> int:
    """Return the exit status of the command, without waiting for its descendants; end it if `control` requests that or
    closes."""
    deadline: float | None = None
    sources = [wake, control.fileno()]
    while True:
        status = _reap(child, server)
        if status is not None:
            return status
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        server_sources = [server.source] if server and server.source >= 0 and deadline is None else []
        ready, _, _ = select.select([*sources, *server_sources], [], [], timeout)
        if wake in ready:
            os.read(wake, 512)
        if server and server_sources and server_sources[0] in ready and not server.go_on():
            server = None
        if control.fileno() in ready:
            word = control.recv(1)
            if word == b"e":
                deadline = time.monotonic() + grace_s
                with contextlib.suppress(ProcessLookupError):
                    # The id cannot belong to another group: the command has not been reaped yet.
                    os.killpg(child, signal.SIGTERM)
            else:
                # This is `k`, or the executor is gone. A closed socket stays readable, and would make this loop spin.
                sources = [wake]
                deadline = 0.0
        if deadline is not None and time.monotonic() >= deadline:
            deadline = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _reap(child: int, server: CommandServer | None) -> int | None:
    """Reap ended children; return the status of `child` if it is among them."""
    status = None
    while True:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            status = os.waitstatus_to_exitcode(ended)
        if server:
            server.gone(pid)
        if pid == 0 or status is not None:
            return status


def _end_all(groups: Collection[str], wake: int) -> list[int]:
    """Kill until no child is left; return those that did not die in time.  This costs nothing if there are none."""
    end = time.monotonic() + KILL_TIMEOUT_S
    left: list[int] = []
    # Each round kills the direct children; their own children are adopted, and the next round finds them.
    while _has_children() and time.monotonic() < end:
        for group in groups:
            _kill_group(group)
        left = list(_children(os.getpid(), ()))
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stop them first, so that none forks while others are killed
            for pid in left:
                _kill(pid, number)
        select.select([wake], [], [], LOOK_INTERVAL_S)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 512)
    else:
        left = left if time.monotonic() >= end else []
    return left


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children(parent: int, but: Collection[int]) -> Iterator[int]:
    """Yield the children of `parent` except `but`. This reads every process, so call it only if there are children."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but:
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The program's name is in parentheses and may itself contain spaces and parentheses, so use
                    # everything after the last one.
                    fields = file.read().rpartition(b")")[2].split()
                if int(fields[1]) == parent:
                    yield int(name)


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _kill_group(group: str) -> None:
    """Kill everything in a control group, if the kernel supports that (version 2, recent kernels)."""
    with contextlib.suppress(OSError), open(f"{group}/cgroup.kill", "r+") as file:
        file.write("1")


if __name__ == "__main__":
    main()
