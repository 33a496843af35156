"""Starts the commands of builds and ends everything they began: a program of its own, standard library only.

The keeper forks one supervisor a command.  A supervisor is the reaper of its command's descendants: whatever daemonizes
comes to it, and when the command has ended, or nobody waits for it any more, it kills until it has no children left.
The executor's death closes the supervisor's socket, which ends the command, too.

A request: one byte with two descriptors (where the output goes, a stream socket) to the keeper, then JSON on that
socket, its size in 4 bytes before it: `command`, `environment`, `directory`, `limits` (name in `resource` -> number),
`grace_s`, `cgroup` (bool).  A byte `e` asks the command to end, `k` kills it.  The answer is JSON until the end of the
stream: `status` (exit status, negative a signal), `left` (processes that cannot be killed), or `errno` and `filename`
when it could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 10.0
LOOK_INTERVAL_S = 0.002


def main() -> None:
    keeper(socket.socket(fileno=int(sys.argv[1])))


def keeper(requests: socket.socket) -> None:
    """Until the executor closes its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a killed supervisor leaves comes to us
    wake = _woken_by_children()
    groups = _cgroup_root()
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
            pid = os.fork()
            if pid == 0:
                requests.close()
                os.close(wake)
                libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                _supervisor(fds[0], socket.socket(fileno=fds[1]), groups)
            supervisors.add(pid)
            for fd in fds:
                os.close(fd)
    if groups:
        with contextlib.suppress(OSError):
            os.rmdir(groups)


def _reap_supervisors(supervisors: set[int]) -> None:
    """One that was killed leaves us its command: that is killed, too, and then what the command leaves us."""
    left = False
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            left = left or found[0] not in supervisors or os.WIFSIGNALED(found[1])
            supervisors.discard(found[0])
    if left:
        for pid in _children(os.getpid(), supervisors):
            _kill(pid)


def _supervisor(sink: int, control: socket.socket, groups: str) -> NoReturn:
    code = 1
    try:
        for fd in (sink, control.fileno()):
            os.set_inheritable(fd, False)
        size = struct.unpack("!I", _exactly(control, 4))[0]
        request = json.loads(_exactly(control, size))
        wake = _woken_by_children()
        group = _new_cgroup(groups) if groups and request["cgroup"] else ""
        answer: dict[str, Any] = {}  # JSON
        try:
            child = _start(request, sink, group)
            os.close(sink)
            answer["status"] = _wait(child, control, wake, request["grace_s"])
        except OSError as error:
            answer = {"errno": error.errno, "filename": error.filename}
        answer["left"] = _end_all(group, wake)
        control.sendall(json.dumps(answer).encode())
        code = 0
    finally:
        os._exit(code)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


def _woken_by_children() -> int:
    """A descriptor that is readable once a child has ended."""
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return wake


def _start(request: dict[str, Any], sink: int, group: str) -> int:
    """The process, in a session of its own.  Raises OSError when the program cannot be started."""
    for name, value in request["limits"].items():
        _limit(getattr(resource, name), value)
    process = subprocess.Popen(
        request["command"],
        env=request["environment"],
        cwd=request["directory"],
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
        start_new_session=True,
        preexec_fn=(lambda: _write(f"{group}/cgroup.procs", "0")) if group else None,
    )
    process.returncode = 0  # it is ours to reap, not the object's
    return process.pid


def _limit(which: int, value: int) -> None:
    """Of us and so of what we start; never above what we have."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _wait(child: int, control: socket.socket, wake: int, grace_s: float) -> int:
    """Exit status of the command; what its descendants do does not matter."""
    deadline: float | None = None
    sources = [wake, control.fileno()]
    while True:
        status = _reap(child)
        if status is not None:
            return status
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], timeout)
        if wake in ready:
            os.read(wake, 512)
        if control.fileno() in ready:
            word = control.recv(1)
            if word == b"e":
                deadline = time.monotonic() + grace_s
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGTERM)
            else:
                sources = [wake]
                deadline = 0.0
        if deadline is not None and time.monotonic() >= deadline:
            deadline = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _reap(child: int) -> int | None:
    """Takes away what has ended; the status of `child` when it is among it."""
    status = None
    while True:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            status = os.waitstatus_to_exitcode(ended)
        if pid == 0 or status is not None:
            return status


def _end_all(group: str, wake: int) -> list[int]:
    """Kills until there is no child left; those that did not die in time.  Costs nothing when there is none."""
    end = time.monotonic() + KILL_TIMEOUT_S
    left: list[int] = []
    while _has_children() and time.monotonic() < end:
        if group:
            _write(f"{group}/cgroup.kill", "1")
        left = list(_children(os.getpid(), ()))
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none forks while the next is killed
            for pid in left:
                _kill(pid, number)
        select.select([wake], [], [], LOOK_INTERVAL_S)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 512)
    else:
        left = left if time.monotonic() >= end else []
    if group:
        with contextlib.suppress(OSError):
            os.rmdir(group)
    return left


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children(parent: int, but: Collection[int]) -> Iterator[int]:
    """Of `parent`, by a look at every process: done only when there are some."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but:
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if int(fields[1]) == parent:
                    yield int(name)


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _cgroup_root() -> str:
    """A cgroup (version 2, with `cgroup.kill`) of our own below the one we are in; empty when we may not have one."""
    try:
        with open("/proc/self/cgroup") as file:
            mine = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open("/proc/self/mounts") as file:
            mount = next(fields[1] for line in file if (fields := line.split())[2] == "cgroup2")
        root = f"{mount}{mine.rstrip('/')}/headgate-{os.getpid()}"
        os.mkdir(root)
    except (OSError, StopIteration, IndexError):
        return ""
    if os.path.exists(f"{root}/cgroup.kill"):
        return root
    os.rmdir(root)
    return ""


def _new_cgroup(root: str) -> str:
    group = f"{root}/{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError:
        return ""
    return group


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
