"""Enter a running container and become a command of it: standard library only, see `supervisor`.

The container may be hostile from the first moment that this process is seen in it.  So nothing is imported or looked up
there but `/etc/passwd` and `/etc/group`, nobody there may look at the process before its program runs, and it keeps no
descriptor, no capability and no right to a setuid program that other commands of the container lack.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headgate.adapters.process.confinement.calls import checked, libc

SPACES = {"net": 0x4000_0000, "cgroup": 0x0200_0000, "ipc": 0x0800_0000, "uts": 0x0400_0000, "mnt": 0x0002_0000}
"""Kinds of namespaces that a command enters if they differ from the supervisor's, the file system last; the one of
processes is entered before the fork."""
PID_SPACE = 0x2000_0000
USERS_SIZE_MAX_BYTES = 1_000_000
"""Size of the container's lists of users and groups."""
SHELL = "/bin/sh"
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start."""
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_FILTER = 2
_CAPABILITIES_VERSION_3 = 0x2008_0522
# Capability sets have 64 bits; the kernel says with EINVAL which is the first that it lacks.
_LAST_CAPABILITY = 63
_EINVAL = 22
_LEAST = 10
"""Lowest descriptor that does not collide with those that a command starts with."""


class NoAccount(Exception):
    """Report that the container has no such user. The text is for people."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Hold the rights of commands in a container."""

    capabilities: int
    """Capabilities of its root user, as a bit mask."""
    filter: bytes
    """Filter of system calls; empty if there is none."""
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """Describe a user of a container."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...]


def hide() -> None:
    """Protect this process from the others in a container."""
    # A process that is not dumpable has a /proc directory that belongs to root and refuses ptrace, also to the
    # container's root, so its descriptors and memory cannot be opened from there.
    checked(libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "a process cannot be hidden")


def start(
    command: str, user: str, rights: Rights, spaces: Mapping[str, int], streams: Sequence[int], why: int
) -> NoReturn:
    """Become a command; `streams` are its input, output and errors. The reason of a failure is written to `why`, a
    descriptor that is closed once the command runs."""
    error_fds = [why]
    try:
        _start(command, user, rights, spaces, streams, error_fds)
    except (OSError, NoAccount, ValueError) as error:
        os.write(error_fds[0], str(error).encode(errors="replace")[:1_000])
    finally:
        os._exit(127)


def _start(
    command: str, user: str, rights: Rights, spaces: Mapping[str, int], streams: Sequence[int], why: list[int]
) -> None:
    for kind in (kind for kind in SPACES if kind in spaces):
        checked(libc.setns(spaces[kind], SPACES[kind]), f"the {kind} namespace of the container cannot be entered")
    # Moved up first: a stream may already be number 0 to 3, and dup2 over it would lose it.
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST) for fd in (*streams, *why)]
    for number, fd in enumerate(held):
        os.dup2(fd, number, inheritable=number < len(streams))
    # The caller reports failures here from now on. It closes at exec, which tells the handler that the program runs.
    why[:] = [len(streams)]
    # Any descriptor left, of a namespace or a directory outside, would be a way out of the container.
    os.closerange(len(held), os.sysconf("SC_OPEN_MAX"))
    # These files are the container's own, since its file system was entered above.
    person = found(user)
    os.setsid()
    # Python ignores these, and a program keeps what is ignored: `yes | head` would complain of a broken pipe.
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    # The supervisor's umask would otherwise decide the modes of what commands install.
    os.umask(0o022)
    _drop(person, rights)
    try:
        os.chdir(person.home)
    except OSError:
        os.chdir("/")
    account_variables = {"HOME": person.home, "USER": person.name, "LOGNAME": person.name, "SHELL": SHELL}
    os.execve(SHELL, [SHELL, "-c", command], {**rights.environment, **account_variables})  # noqa: S606 - in the container


def _drop(person: ContainerUser, rights: Rights) -> None:
    """Reduce this process's rights to those of commands of the container. Raises OSError."""
    for number in range(_LAST_CAPABILITY + 1):
        # The bounding set goes first: dropping from it takes CAP_SETPCAP, which is among what is given up.
        if not rights.capabilities & 1 << number and libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() == _EINVAL:
                break  # the kernel has no higher capabilities
            raise OSError(ctypes.get_errno(), "a capability cannot be given up")
    os.setgroups(person.groups)
    os.setresgid(person.gid, person.gid, person.gid)
    os.setresuid(person.uid, person.uid, person.uid)
    # The kernel clears the sets of a process that stops being root; those of a root user have to be reduced here.
    capabilities = 0 if person.uid else rights.capabilities
    low, high = capabilities & 0xFFFF_FFFF, capabilities >> 32
    head = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0))
    sets = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0))
    checked(libc.capset(head, sets), "capabilities cannot be given up")
    # Setuid programs of the image stay without effect, and without this a filter would take CAP_SYS_ADMIN.
    checked(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "setuid programs cannot be given up")
    # Only now, because the kernel forgets this signal when a process changes its user.
    checked(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "the end of the connection cannot be waited for")
    # Last, since the filter may refuse calls made above.
    if rights.filter:
        code = ctypes.create_string_buffer(rights.filter, len(rights.filter))
        program = ctypes.create_string_buffer(struct.pack("@HP", len(rights.filter) // 8, ctypes.addressof(code)))
        checked(libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0), "system calls cannot be given up")


def found(user: str) -> ContainerUser:
    """Return the user of that name or number in the container's own files. Raises NoAccount."""
    for fields in _lines("/etc/passwd", 7):
        if user in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            uid, gid = int(fields[2]), int(fields[3])
            return ContainerUser(fields[0], uid, gid, fields[5] or "/", tuple(_groups(fields[0], uid)))
    # Images made from nothing have no /etc/passwd, but still have root.
    if user in ("root", "0"):
        return ContainerUser("root", 0, 0, "/root", ())
    raise NoAccount(f"the container's /etc/passwd has no user {user}")


def _groups(name: str, uid: int) -> Iterator[int]:
    for fields in _lines("/etc/group", 4):
        # Root needs no further groups: it has its rights by capabilities.
        if uid and name in fields[3].split(",") and fields[2].isdigit():
            yield int(fields[2])


def _lines(path: str, count: int) -> Iterator[list[str]]:
    """Yield the fields of each line; none if it is no ordinary file."""
    try:
        # The container may have put a pipe there, which would block an ordinary open for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        text = os.read(fd, USERS_SIZE_MAX_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    for line in text.decode(errors="replace").split("\n"):
        fields = line.split(":")
        if len(fields) == count:
            yield fields
