"""Mount the file system of a container, and enter a running container: standard library only, see `supervisor`.

A box is JSON: `layers` (directories below `store`, the uppermost first; none: an empty file system), `upper` and
`scratch` (directories for what the command writes; overlayfs needs the second), `binds` (source, path in the box,
whether it is writable; no source: an empty directory), `memory` (paths that each get a file system in memory, of at
most `memory_size_bytes`), `files` (path in the box -> text), `directories` (that must exist), `owner` (the user id on
this machine of the root user of the box).

It is mounted at `PLACE` in a separate mount namespace of the supervisor, so that nothing is left of it when the last of
its processes has ended, for whatever reason.  An image, or an earlier command, may have placed anything at a mount
point: paths are walked one name at a time, without following links.

A running container may be hostile from the first moment that it sees the process that enters it.  So that process
imports nothing and reads only `/etc/passwd` and `/etc/group` there, no process there may inspect it before its program
runs, and it keeps no descriptor, no capability and no right to a setuid program that other commands of the container
do not have.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headgate.base.errors import ExecutionError

libc = ctypes.CDLL(None, use_errno=True)
PLACE = "/mnt"
"""Mount point of the box: this directory exists on every machine, and all users may traverse it."""
_CLONE_NEWNS = 0x0002_0000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_HOLD = os.O_PATH | os.O_CLOEXEC
_STEP = _HOLD | os.O_DIRECTORY | os.O_NOFOLLOW
SPACES = {"net": 0x4000_0000, "cgroup": 0x0200_0000, "ipc": 0x0800_0000, "uts": 0x0400_0000, "mnt": 0x0002_0000}
"""Kinds of namespaces that a command enters if they differ from the supervisor's, the file system last; the process
namespace is entered before the fork."""
PID_SPACE = 0x2000_0000
USERS_SIZE_MAX_BYTES = 1_000_000
"""Size of the container's lists of users and groups."""
SHELL = "/bin/sh"
IGNORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores after its start."""
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_FILTER = 2
_CAPABILITIES_VERSION_3 = 0x2008_0522
# Capability sets have 64 bits; the kernel answers EINVAL for the first number that it does not know.
_LAST_CAPABILITY = 63
_EINVAL = 22
_LEAST = 10
"""Lowest descriptor that does not collide with those that a command starts with."""


def checked(result: int, what: str) -> None:
    """Raise OSError with the reason if a call of the C library failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(box: Mapping[str, Any]) -> None:
    """Mount the box for this process and its children.  Raise OSError."""
    checked(libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    # systemd shares the mounts of `/` with every namespace: unless they are private here, the box would appear on the
    # machine itself, and stay there.
    _mount("none", "/", "", _REC | _PRIVATE)
    # Open the sources now, since the box may hide them.
    sources = [os.open(source, _HOLD) if source else -1 for source, _, _ in box["binds"]]
    _mount_root(box)
    # Walk every path below from this descriptor: a plain path could leave the box through a link of the image.
    root = os.open(PLACE, _STEP)
    for path in box["directories"]:
        with _held(root, path, box["owner"], directory=True):
            pass
    for path, text in box["files"].items():
        _write(root, path, text, box["owner"])
    # Write files before mounting, so that they go to the upper layer and never to a directory of the machine.
    for path in box["memory"]:
        with _held(root, path, box["owner"], directory=True) as there:
            # Without a size, tmpfs may use half of the machine's memory.
            options = f"mode=1777,size={box['memory_size_bytes']}"
            _mount("tmpfs", f"/proc/self/fd/{there}", "tmpfs", _NOSUID | _NODEV, options)
    for source, (_, path, writable) in zip(sources, box["binds"], strict=True):
        if source < 0:
            _cover(root, path, box["owner"])
        else:
            _bind(root, source, path, box["owner"], writable=writable)
            os.close(source)
    os.close(root)
    os.chdir("/")


def become_root() -> None:
    """Become the root user of the entered user namespace. Raise OSError."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _mount_root(box: Mapping[str, Any]) -> None:
    if not box["layers"]:
        _mount("tmpfs", PLACE, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
        return
    # Use descriptors, since colons and commas in these paths would be syntax in the mount options.
    upper, scratch = (os.open(box[name], _STEP) for name in ("upper", "scratch"))
    # The kernel accepts one page of mount options: names relative to the store leave room for many layers.
    os.chdir(box["store"])
    layers = ":".join(box["layers"])
    places = f"lowerdir={layers},upperdir=/proc/self/fd/{upper},workdir=/proc/self/fd/{scratch}"
    options = f"userxattr,{places}"  # without root, podman marks replaced directories in user attributes
    _mount("overlay", PLACE, "overlay", _NOSUID | _NODEV, options)
    os.close(upper)
    os.close(scratch)


def _cover(root: int, path: str, owner: int) -> None:
    """Mount an empty file system at a path in the box.  Raise OSError."""
    with _held(root, path, owner, directory=True) as target:
        _mount("tmpfs", f"/proc/self/fd/{target}", "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")


def _bind(root: int, source: int, path: str, owner: int, *, writable: bool) -> None:
    """Mount a source at a path in the box, read-only unless it is `writable`.  Raise OSError."""
    directory = stat.S_ISDIR(os.fstat(source).st_mode)
    # A file can only be mounted over a file: anything else there, such as a link, is replaced and never followed.
    if not directory and not _is_file(root, path, owner):
        _write(root, path, "", owner)
    with _held(root, path, owner, directory=directory) as target:
        # Both ends are descriptors: nobody can replace a name between the walk and the mount.
        _mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", "", _BIND)
    # The kernel ignores MS_RDONLY in the call that binds; only a remount makes a bind read-only.
    if not writable:
        with _held(root, path, owner, directory=directory) as target:  # the mounted object, not the one below it
            _mount("none", f"/proc/self/fd/{target}", "", _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _is_file(root: int, path: str, owner: int) -> bool:
    """Return whether a path in the box leads to a regular file.  Raise OSError."""
    with contextlib.suppress(FileNotFoundError), _held(root, path, owner, directory=False) as target:
        return stat.S_ISREG(os.fstat(target).st_mode)
    return False


def _write(root: int, path: str, text: str, owner: int) -> None:
    """Write a file at the path, replacing a file or a link. Raise OSError."""
    above, _, name = path.rpartition("/")
    with _held(root, above, owner, directory=True) as at:
        # Another device means a directory of the machine that is bound here: root must not change files in it.
        if os.fstat(at).st_dev != os.fstat(root).st_dev:
            raise OSError(errno.ENOTDIR, "it is not part of the image", path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        # O_EXCL and O_NOFOLLOW: if a link or pipe takes the name again, fail instead of writing through it as root.
        made = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=at)
        with open(made, "w") as file:
            os.fchown(made, owner, owner)
            os.fchmod(made, 0o644)
            file.write(text)


@contextlib.contextmanager
def _held(root: int, path: str, owner: int, *, directory: bool) -> Iterator[int]:
    """Yield a descriptor of the object at a path of the box, after creating missing directories. Raise OSError."""
    at = os.dup(root)
    try:
        names = [name for name in path.split("/") if name]
        for number, name in enumerate(names):
            try:
                # O_NOFOLLOW covers only the last name of a path, so open each name separately.
                found = _step(at, name, owner) if directory or number < len(names) - 1 else _hold(at, name)
            except OSError as error:
                where = f"/{'/'.join(names[: number + 1])} of the image"
                raise OSError(error.errno, error.strerror, where) from error
            os.close(at)
            at = found
        yield at
    finally:
        os.close(at)


def _hold(at: int, name: str) -> int:
    return os.open(name, _HOLD | os.O_NOFOLLOW, dir_fd=at)


def _step(at: int, name: str, owner: int) -> int:
    try:
        return os.open(name, _STEP, dir_fd=at)
    except FileNotFoundError:
        # Open it again with O_NOFOLLOW: a link may have taken its place since mkdir.
        os.mkdir(name, dir_fd=at)
        found = os.open(name, _STEP, dir_fd=at)
        os.chown(name, owner, owner, dir_fd=at, follow_symlinks=False)
        # fchmod refuses O_PATH descriptors; the link in /proc names the same object.
        os.chmod(f"/proc/self/fd/{found}", 0o755)  # noqa: S103 - everybody in the container may read it
        return found


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode() or None)
    done = libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None)
    checked(done, f"{kind or 'a directory'} cannot be mounted in the container")


def box_of(
    *, store: str = "", layers: Sequence[str] = (), upper: str = "", scratch: str = "",
    binds: Sequence[tuple[str, str, bool]] = (), files: Mapping[str, str] | None = None,
    directories: Sequence[str] = (), memory: Sequence[str] = (), memory_size_bytes: int = 0, owner: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the JSON form of a box, for a request to the supervisor."""
    return {
        "store": store,
        "layers": list(layers),
        "upper": upper,
        "scratch": scratch,
        "binds": list(binds),
        "files": dict(files or {}),
        "directories": list(directories),
        "memory": list(memory),
        "memory_size_bytes": memory_size_bytes,
        "owner": owner,
    }


class NoAccount(ExecutionError):
    """Report that the container has no such user; the message is shown to users."""


@dataclass(frozen=True, slots=True)
class ContainerRights:
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
    """Protect this process from other processes in a container."""
    # The /proc directory of a process that is not dumpable belongs to the machine's root, and the kernel refuses
    # ptrace, even to the container's root, so its descriptors and memory cannot be opened from there.
    checked(libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "a process cannot be hidden")


def start_command(
    command: str, user: str, rights: ContainerRights, spaces: Mapping[str, int], streams: Sequence[int], why: int
) -> NoReturn:
    """Become a command; `streams` are its input, output and errors. The reason for a failure is written to `why`, a
    descriptor that is closed once the command runs."""
    error_fds = [why]
    try:
        _start(command, user, rights, spaces, streams, error_fds)
    except (OSError, NoAccount, ValueError) as error:
        os.write(error_fds[0], str(error).encode(errors="replace")[:1_000])
    finally:
        os._exit(127)


def _start(
    command: str, user: str, rights: ContainerRights, spaces: Mapping[str, int], streams: Sequence[int], why: list[int]
) -> None:
    for kind in (kind for kind in SPACES if kind in spaces):
        checked(libc.setns(spaces[kind], SPACES[kind]), f"the {kind} namespace of the container cannot be entered")
    # Move the descriptors up first: one may already be number 0 to 3, and dup2 to that number would close it.
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST) for fd in (*streams, *why)]
    for number, fd in enumerate(held):
        os.dup2(fd, number, inheritable=number < len(streams))
    # From now on, the caller reports failures here. Exec closes it, which shows the handler that the program runs.
    why[:] = [len(streams)]
    # Any other descriptor, of a namespace or a directory outside, would be a way out of the container.
    os.closerange(len(held), os.sysconf("SC_OPEN_MAX"))
    # This reads the container's own files, since its file system was entered above.
    person = account_of(user)
    os.setsid()
    # Python ignores these, and programs inherit that: `yes | head` would complain about a broken pipe.
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # Otherwise the supervisor's umask would determine the modes of files that commands install.
    os.umask(0o022)
    _drop(person, rights)
    try:
        os.chdir(person.home)
    except OSError:
        os.chdir("/")
    account_variables = {"HOME": person.home, "USER": person.name, "LOGNAME": person.name, "SHELL": SHELL}
    os.execve(SHELL, [SHELL, "-c", command], {**rights.environment, **account_variables})  # noqa: S606 - in the container


def _drop(person: ContainerUser, rights: ContainerRights) -> None:
    """Reduce this process's rights to those of commands in the container. Raise OSError."""
    for number in range(_LAST_CAPABILITY + 1):
        # Reduce the bounding set first: that needs CAP_SETPCAP, which is dropped below.
        if not rights.capabilities & 1 << number and libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() == _EINVAL:
                break  # the kernel has no higher capabilities
            raise OSError(ctypes.get_errno(), "a capability cannot be given up")
    os.setgroups(person.groups)
    os.setresgid(person.gid, person.gid, person.gid)
    os.setresuid(person.uid, person.uid, person.uid)
    # The kernel clears the sets of a process that stops being root; those of a root user must be reduced here.
    capabilities = 0 if person.uid else rights.capabilities
    low, high = capabilities & 0xFFFF_FFFF, capabilities >> 32
    head = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0))
    sets = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0))
    checked(libc.capset(head, sets), "capabilities cannot be given up")
    # This disables setuid programs of the image; without it, loading a filter would need CAP_SYS_ADMIN.
    checked(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "setuid programs cannot be given up")
    # Do this only now, because the kernel resets this signal when a process changes its user.
    checked(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "the process cannot be made to end with its parent")
    # Load the filter last, since it may refuse the calls above.
    if rights.filter:
        code = ctypes.create_string_buffer(rights.filter, len(rights.filter))
        program = ctypes.create_string_buffer(struct.pack("@HP", len(rights.filter) // 8, ctypes.addressof(code)))
        checked(libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0), "system calls cannot be given up")


def account_of(user: str) -> ContainerUser:
    """Return the user with that name or number, from the container's own files. Raise NoAccount."""
    for fields in _lines("/etc/passwd", 7):
        if user in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            uid, gid = int(fields[2]), int(fields[3])
            return ContainerUser(fields[0], uid, gid, fields[5] or "/", tuple(_groups(fields[0], uid)))
    # Minimal images have no /etc/passwd, but still have root.
    if user in ("root", "0"):
        return ContainerUser("root", 0, 0, "/root", ())
    raise NoAccount(f"the container's /etc/passwd has no user {user}")


def _groups(name: str, uid: int) -> Iterator[int]:
    for fields in _lines("/etc/group", 4):
        # Root needs no further groups: its rights come from capabilities.
        if uid and name in fields[3].split(",") and fields[2].isdigit():
            yield int(fields[2])


def _lines(path: str, count: int) -> Iterator[list[str]]:
    """Yield the fields of each line with `count` fields; none if the path is not a regular file."""
    try:
        # The container may have put a pipe there, which would block a plain open forever.
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
