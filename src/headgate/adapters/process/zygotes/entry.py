"""Put a copy of a warm process into a sandbox: standard library only, run by supervisors that a zygote forked.

Bubblewrap makes the sandbox as usual, with limits, user and filter, but around a shell that only waits: the holder.  A
child of the supervisor, which is a copy of the zygote, enters the control groups and namespaces of the holder, drops
the rights that the holder lacks, and compares itself with the holder in everything that the kernel shows of both.  If
anything differs, the copy ends, and a new process runs the playbook instead.  So only bubblewrap decides what
confines a playbook, and a difference only makes a phase slower.

The copy is in the process namespace of the sandbox: it ends, with all processes that it starts, when bubblewrap ends,
and thus when its supervisor ends.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from headgate.adapters.process.confinement.boxes import checked, libc
from headgate.adapters.process.supervisor import Cold, Started, spawned

HOLDER = ("/bin/sh", "-c", "echo && read -r _")
"""Command that prints a line to show that it runs, and then waits for the end of its input."""
Run = Callable[[Sequence[str], Mapping[str, str]], int]
_KINDS = ("cgroup", "ipc", "uts", "net", "pid", "mnt")
"""Kinds of the namespaces to enter, in this order."""
_STATUS = (
    "Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "Speculation_Store_Bypass", "SpeculationIndirectBranch", "Cpus_allowed", "Mems_allowed",
)  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = (
    1, 4, 15, 22, 24, 38,
)  # fmt: skip
_SECCOMP_FILTER = 2
_CAPABILITIES = 64
_READY = b"ready\n"
# bubblewrap needs milliseconds; if it takes longer, the machine is overloaded, and a new process is no slower.
HOLDER_TIMEOUT_S = 10.0
_LIMITS_FROM = 26
"""Column at which the values begin in /proc/PID/limits."""
ROOT = "root"
"""Name of the link in /proc/PID to the root directory of the process."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Describe a process as the kernel shows it: its identity, rights, and directories."""

    status: Mapping[str, str]
    spaces: Mapping[str, str]
    limits: Sequence[tuple[int, int]]
    priority: int
    killed_first: str
    label: str
    root: tuple[int, int]
    directory: tuple[int, int]

    @staticmethod
    def of(pid: int) -> ProcessState:
        """Return the kernel's view of a process; `pid` 0 is this process.  Raise OSError."""
        place = f"/proc/{pid or 'self'}"
        lines = (line.partition(":") for line in _text(f"{place}/status").splitlines())
        return ProcessState(
            {name: value.strip() for name, _, value in lines if name in _STATUS},
            {kind: os.readlink(f"{place}/ns/{kind}") for kind in sorted(os.listdir(f"{place}/ns"))},
            _limits(place),
            os.getpriority(os.PRIO_PROCESS, pid),
            _text(f"{place}/oom_score_adj"),
            _label(place),
            _identity(f"{place}/{ROOT}/."),
            _identity(f"{place}/cwd/."),
        )

    def unlike(self, other: ProcessState) -> str:
        """Return the names of the differences, as a message."""
        found = [one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name)]
        if "status" in found:
            found += [name for name, value in self.status.items() if other.status.get(name) != value]
        if "spaces" in found:
            found += [name for name, value in self.spaces.items() if other.spaces.get(name) != value]
        return " ".join(found)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Hold the resources that a copy needs to enter the holder's place, opened while they are reachable."""

    state: ProcessState
    groups: str
    spaces: Sequence[int]
    directory: int
    environment: Mapping[str, str]
    filter: bytes

    @staticmethod
    def to(holder: int, filter: bytes) -> _Entry:
        """Return the entry into the sandbox of the holder. Raise OSError, Cold."""
        place, state = f"/proc/{holder}", ProcessState.of(holder)
        own_spaces = ProcessState.of(0).spaces
        # Entering a user namespace would give the copy all capabilities in it, which the comparison would refuse.
        if own_spaces["user"] != state.spaces["user"]:
            raise Cold("the sandbox has its own user namespace, because builds have no users of their own")
        # Open them before entering the first: in the mount namespace of the sandbox, this /proc is unreachable.
        wanted = [kind for kind in _KINDS if state.spaces[kind] != own_spaces[kind]]
        with open(f"{place}/environ", "rb") as file:
            words = (word.partition(b"=") for word in file.read().split(b"\0") if word)
            # Use the holder's environment, which includes bubblewrap's additions, instead of the request's.
            environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in words}
        return _Entry(
            state,
            _text(f"{place}/cgroup"),
            [os.open(f"{place}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in wanted],
            os.open(f"{place}/cwd", os.O_PATH | os.O_CLOEXEC),
            environment,
            filter,
        )


def start(request: dict[str, Any], sink: int, cgroup_fds: list[int], run: Run) -> Started:
    """Start a sandbox and, in it, a copy of this process that runs the playbook once `begin` is called.  Raise OSError,
    Cold."""
    number = request["playbook"]["filter"]
    filter = base64.b64decode(request["inputs"][str(number)]) if number is not None else b""
    mine, its = socket.socketpair()
    # Let the kernel report the sender's process id, translated to this process namespace; an id in the text might be
    # forged.
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with its:
        sandbox = spawned(request, cgroup_fds, its.fileno(), its.fileno(), sink)
    go, going = os.pipe2(os.O_CLOEXEC)
    try:
        holder = _holder(mine)
        if holder is None:  # bubblewrap has printed the reason
            return Started(sandbox)
        entry = _Entry.to(holder, filter)
        pid = _copied(entry, cgroup_fds, sink, go, request["playbook"]["words"], run, going, mine)
    except (OSError, Cold) as error:
        os.kill(sandbox, signal.SIGKILL)
        # No part of the playbook has run, so after any failure here, a new process can run it.
        raise error if isinstance(error, Cold) else Cold(f"{error.strerror}: {error.filename}") from error
    finally:
        os.close(go)

    def begin() -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(going, b"g")
        os.close(going)

    def over(status: int) -> int:
        mine.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(sandbox, signal.SIGKILL)
        return 128 - status if status < 0 else status  # as bubblewrap reports it

    return Started(pid, begin, over)


def _holder(mine: socket.socket) -> int | None:
    """Return the holder's process id in this namespace, which the kernel sends with the holder's first line; None if
    the holder ended first. Raise Cold if it is not ready in time."""
    ready, _, _ = select.select([mine], [], [], HOLDER_TIMEOUT_S)
    if not ready:
        raise Cold(f"the sandbox was not ready within {HOLDER_TIMEOUT_S:.0f} s")
    word, about, _, _ = mine.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("iII")))
    for level, kind, data in about:
        if word and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = struct.unpack("iII", data[:12])[0]
            return pid
    return None


def _copied(
    entry: _Entry, cgroup_fds: Collection[int], sink: int, go: int, words: Sequence[str], run: Run, *ours: Any
) -> int:
    """Return the process id of the copy, once it is like the holder.  Raise Cold.

    Entering a process namespace affects only later children.  So a child enters it, forks the copy, and ends; we adopt
    the copy, since we are the reaper of all descendants."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    # The middle process may die at any point; the supervisor, outside, then notices the end of the pipe.
    between = os.fork()
    if between == 0:
        try:
            os.close(reader)
            _enter(entry, cgroup_fds)
            # setns left this process in its own process namespace: only its children are in the new one.
            pid = os.fork()
            if pid:
                os.write(writer, f"{pid}\n".encode())
                os._exit(0)
            _become(entry)
            os.write(writer, _READY)
            os.close(writer)
            _begin(entry, sink, go, words, run, ours)
        # After any error, a copy must never continue with the code of the supervisor from which it was forked.
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(writer, f"{error or type(error).__name__}\n".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as source:
        # The read ends when the copy closes its end, which it does once it is ready, or when it dies.
        lines = source.read().splitlines(keepends=True)
    os.waitpid(between, 0)
    numbers = [int(line) for line in lines if line.strip().isdigit()]
    if _READY not in lines or not numbers:
        errors = [line.decode(errors="replace").strip() for line in lines if not line.strip().isdigit()]
        raise Cold(" ".join(errors) or "a copy of the zygote ended before it entered the sandbox")
    return numbers[0]


def _enter(entry: _Entry, cgroup_fds: Collection[int]) -> None:
    """Enter the sandbox of the holder. Raise OSError, Cold."""
    checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "the copy cannot be bound to its supervisor")
    # The supervisor's signal handling would write to the supervisor's pipe, which the copy still shares.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in cgroup_fds:
        os.write(fd, b"0")
    # Compare before entering the cgroup namespace, which shows other paths for the same groups.
    if _text("/proc/self/cgroup") != entry.groups:
        raise Cold("the control groups of the sandbox cannot be entered")
    for space in entry.spaces:
        # 0 skips the check of the kind: the descriptors come from the kernel's own directory.
        checked(libc.setns(space, 0), "a namespace of the sandbox cannot be entered")


def _become(entry: _Entry) -> None:
    """Become like the holder: its identity and its rights. Raise OSError, Cold."""
    status, first = entry.state.status, "the rights of the sandbox cannot be set"
    os.setsid()
    os.fchdir(entry.directory)
    # Do this while this process is still root: raising a limit to the holder's needs CAP_SYS_RESOURCE.
    for which, limits in enumerate(entry.state.limits):
        if resource.getrlimit(which) != limits:
            resource.setrlimit(which, limits)
    # Change the bounding set first and the user last: the first needs CAP_SETPCAP, the groups need CAP_SETGID, and
    # changing the user drops both.
    bound = int(status["CapBnd"], 16)
    for capability in range(_CAPABILITIES):
        if not bound >> capability & 1:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # the call fails for those that this kernel lacks
    os.setgroups([int(word) for word in status["Groups"].split()])
    group, user = (int(status[name].split()[0]) for name in ("Gid", "Uid"))
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    if status["NoNewPrivs"] == "1":
        checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), first)
    # Without capabilities, a process needs no_new_privs to install a filter, which then applies to all that follows.
    if entry.filter:
        _sieve(entry.filter)
    checked(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), first)  # as after exec: the process owns its /proc/self
    # This is the decisive check: even if a step above failed silently, no playbook runs with more rights than the
    # holder.
    if differs := entry.state.unlike(ProcessState.of(0)):
        raise Cold(f"a copy of the zygote differs from a process that bubblewrap started: {differs}")


def _sieve(program: bytes) -> None:
    """Install the filter of system calls. Raise OSError."""
    text = ctypes.create_string_buffer(program, len(program))
    program_header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    place = ctypes.create_string_buffer(program_header, len(program_header))
    done = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.c_void_p(ctypes.addressof(place)), 0, 0)
    checked(done, "the filter of system calls cannot be installed")


def _begin(entry: _Entry, sink: int, go: int, words: Sequence[str], run: Run, ours: Sequence[Any]) -> NoReturn:
    """Wait for permission, and run the playbook with only the three standard descriptors."""
    for one in ours:  # other processes wait until these are closed
        os.close(one) if isinstance(one, int) else one.close()
    # If the supervisor disappeared before it permitted the start, the playbook must not run.
    if not os.read(go, 1):
        os._exit(1)
    # Keep the supervisor's input, which is /dev/null.
    for number in (1, 2):
        os.dup2(sink, number)
    for name in os.listdir("/proc/self/fd"):
        # Among them is the supervisor's socket, with which a playbook could answer in the supervisor's name.
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the descriptor that listed the directory
                os.close(int(name))
    libc.prctl(_PR_SET_NAME, os.path.basename(words[0]).encode()[:15], 0, 0, 0)
    # After an executor was killed, `processes_of` finds its processes by this environment.
    _show_command_line(entry.environment, words)
    os._exit(run(words, entry.environment))


def _show_command_line(environment: Mapping[str, str], words: Sequence[str]) -> None:
    """Make /proc show the command line and the environment, as after the start of a program, as far as they fit,
    beginning with the variables that identify builds."""
    numbers = _text("/proc/self/stat").rpartition(")")[2].split()
    # Fields 48 to 51 of proc(5), arg_start to env_end, after the two that were split off.
    begin, end, first, last = (int(number) for number in numbers[45:49])
    os.environ.clear()  # its values are in the memory that is overwritten below
    short = sorted(environment.items(), key=lambda pair: (not pair[0].startswith("HEADGATE_BUILD"), pair[0] != "HOME"))
    texts = ("\0".join([sys.executable, *words]), "\0".join(f"{name}={value}" for name, value in short))
    for text, at, until in ((texts[0], begin, end), (texts[1], first, last)):
        # Never write beyond the end, where the kernel has placed other data of this process.
        found = os.fsencode(text)[: max(0, until - at - 1)]
        ctypes.memmove(at, found.ljust(until - at, b"\0"), until - at)


def _limits(place: str) -> list[tuple[int, int]]:
    """Return the (soft, hard) limits of each process, in the order of their numbers."""
    lines = _text(f"{place}/limits").splitlines()[1:]
    both = (line[_LIMITS_FROM:].split()[:2] for line in lines)
    soft_and_hard = [[resource.RLIM_INFINITY if word == "unlimited" else int(word) for word in pair] for pair in both]
    return [(soft, hard) for soft, hard in soft_and_hard]


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    assert stat.S_ISDIR(found.st_mode), path
    return found.st_dev, found.st_ino


def _label(place: str) -> str:
    """Return the label of the process from a security module; empty if there is no such module."""
    try:
        return _text(f"{place}/attr/current")
    except OSError:
        return ""


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
