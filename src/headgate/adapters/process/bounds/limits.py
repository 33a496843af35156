"""Limit how much one build may use, and have the kernel count and enforce it with control groups.

Version 2 of control groups is used if Headgate may divide a group (`Delegate=yes` of a systemd unit, or a writable
ancestor), otherwise the controllers of version 1 that are mounted and writable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.base.errors import ExecutionError

NO_CORE_BYTES = 1
"""Size limit of core dumps: with 0, the kernel still passes them to a program in /proc/sys/kernel/core_pattern."""
PREFIX = "headgate-"
_SELF = "headgate"
"""Subgroup for the processes of a delegated unit, since a group with controlled subgroups may not have processes."""
MACHINE_SHARE = 0.9
"""Share of the machine's memory for all builds together; the rest is for Headgate and its neighbours."""
BUILDS_PART = {"cpu.weight": "50", "cpu.shares": "512"}
"""Processor weight of all builds together: half of Headgate's own, since many people wait for its answers. Builds get
all processor time that nothing else needs."""
PART_MIN, PART = 2, 1_000
"""Minimum weight of one build's group, and the weight that all groups of one project share."""
_CONTROLLERS = ("memory", "pids", "cpu")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# An interfering sweep takes milliseconds, and then leaves the group of a living executor alone.
LOCK_TRIES_MAX = 5
KILL_ROUNDS_MAX = 200
KILL_LOOK_INTERVAL_S = 0.01
"""Interval between two checks of killed processes, which need a moment to end and may fork in the meantime."""


class Exceeded(ExecutionError):
    """Report that a build has reached a limit; the message names the limit."""


@dataclass(frozen=True, slots=True)
class ProcessBounds:
    """Limit all processes of a build together, unless stated otherwise. The defaults suffice for compilers and Java."""

    memory_max_bytes: int = 8_000_000_000
    processes_max: int = 2_000
    """Processes and threads."""
    disk_max_bytes: int = 20_000_000_000
    """Size of the build's directory, and of deleted files that it holds open."""
    files_max: int = 2_000_000
    """Number of files on disk."""
    open_files_max: int = 16_384
    """Open files of each process."""
    file_size_max_bytes: int = 20_000_000_000
    tmp_size_max_bytes: int = 2_000_000_000
    """Size of each file system in memory: /tmp, /var/tmp, /dev/shm."""
    output_max_bytes: int = 1_000_000_000
    reserve_bytes: int = 2_000_000_000
    """Free space on the disk below which builds are ended."""

    @property
    def crowded(self) -> str:
        """Return the message for a build that may not start another process."""
        return f"limit of {self.processes_max} processes reached"

    def resources(self) -> dict[str, int]:
        """Return the limits of each process, by their names in `resource`."""
        return {
            "RLIMIT_NOFILE": self.open_files_max,
            "RLIMIT_FSIZE": min(self.file_size_max_bytes, self.disk_max_bytes),
            "RLIMIT_CORE": NO_CORE_BYTES,
        }


def of_bytes(number: float) -> str:
    """Format a size for display."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} bytes"


@dataclass(frozen=True, slots=True)
class Group:
    """Represent the control groups of one command: one in version 2, one per controller in version 1."""

    places: Mapping[str, Path]
    """Controller -> directory."""
    bounds: ProcessBounds

    @property
    def directories(self) -> list[str]:
        return list(dict.fromkeys(str(place) for place in self.places.values()))

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        text = _text(next(iter(self.places.values())) / "cgroup.procs")
        return [int(line) for line in text.split()]

    def crowded(self) -> bool:
        """Return whether the number of processes has reached its limit."""
        current = _text(self._of("pids") / "pids.current").strip()
        return bool(current) and int(current) >= self.bounds.processes_max

    def starved(self) -> str:
        """Return a message about the memory limit if the kernel killed a process because of it; otherwise an empty
        string.
        """
        memory = self._of("memory")
        events = {**_table(memory / "memory.events"), **_table(memory / "memory.oom_control")}
        return f"memory limit of {of_bytes(self.bounds.memory_max_bytes)} reached" if events.get("oom_kill") else ""

    def refused(self) -> int | None:
        """Return the number of processes and threads that the kernel refused to start; None if it does not count
        them."""
        return _table(self._of("pids") / "pids.events").get("max")

    def weigh(self, part: int) -> None:
        """Set the processor weight of the group, relative to other groups."""
        # Only one of the two files exists; `_write` skips the other.
        for file in ("cpu.weight", "cpu.shares"):
            _write(self._of("cpu") / file, str(part))

    def _of(self, controller: str) -> Path:
        return self.places.get(controller, Path("/nonexistent"))

    def removed(self) -> bool:
        """Remove the group and return whether that succeeded; its processes must have ended."""
        for directory in self.directories:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return not any(os.path.isdir(directory) for directory in self.directories)


@dataclass(slots=True)
class Groups:
    """Manage the control groups of this process; `found` detects `parents`."""

    parents: Mapping[str, Path] = field(default_factory=dict)
    """Controller -> parent directory of the groups of builds."""
    held: tuple[int, ...] = ()
    """Descriptors of locks on these directories, which show other processes that this process is alive."""

    @staticmethod
    def found(mounts: Sequence[str] | None = None, memberships: Sequence[str] | None = None) -> Groups:
        """Return the usable groups. `mounts` and `memberships` are lines of /proc/self/mountinfo and
        /proc/self/cgroup."""
        mounts = _text(Path("/proc/self/mountinfo")).splitlines() if mounts is None else mounts
        memberships = _text(Path("/proc/self/cgroup")).splitlines() if memberships is None else memberships
        parents: dict[str, Path] = {}
        name, locks = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}", list[int]()
        # Try version 2 first: on a machine with both, a controller of version 2 is missing in version 1.
        for controllers, place in sorted(_places(mounts, memberships), key=lambda found: bool(found[0])):
            wanted = [one for one in _CONTROLLERS if one in (controllers or _CONTROLLERS) and one not in parents]
            if wanted and (found := _parent(place, name, wanted, version_2=not controllers)):
                usable, made, lock = found
                parents |= dict.fromkeys(usable, made)
                locks.append(lock)
        return Groups(parents, tuple(locks))

    @property
    def complete(self) -> bool:
        """Return whether the kernel limits both memory and processes."""
        return {"memory", "pids"} <= self.parents.keys()

    def make(self, name: str, bounds: ProcessBounds) -> Group | None:
        """Return a group with the limits; None if none can be made."""
        places: dict[str, Path] = {}
        for controller, parent in self.parents.items():
            place = parent / name
            with contextlib.suppress(OSError):
                place.mkdir(exist_ok=True)
                places[controller] = place
        if not places:
            return None
        for controller, files in _limits(bounds).items():
            for file, value in files:
                if controller in places:
                    _write(places[controller] / file, value)
        return Group(places, bounds)

    def close(self) -> None:
        for parent in set(self.parents.values()):
            with contextlib.suppress(OSError):
                parent.rmdir()
        for lock in self.held:
            os.close(lock)
        self.held = ()


def share(groups: Sequence[Group]) -> None:
    """Divide one share of the processors equally."""
    for group in groups:
        group.weigh(max(PART_MIN, PART // len(groups)))


def _limits(bounds: ProcessBounds) -> dict[str, list[tuple[str, str]]]:
    """Return the files of each controller and their new content, for both versions; `_write` skips the files of the
    other version."""
    memory, processes = str(bounds.memory_max_bytes), str(bounds.processes_max)
    return {
        "memory": [
            # Allow no swap, which would slow down the entire machine. Kill the entire group: a build that lost one
            # process would fail later, without a visible reason.
            ("memory.max", memory), ("memory.swap.max", "0"), ("memory.oom.group", "1"),
            # The order matters: the kernel refuses a limit with swap that is below the one without.
            ("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory),
        ],
        "pids": [("pids.max", processes)],
    }  # fmt: skip


def _places(mounts: Sequence[str], memberships: Sequence[str]) -> Iterator[tuple[frozenset[str], Path]]:
    """Yield each hierarchy's controllers (none for version 2), and this process's group in it."""
    paths = {frozenset(filter(None, line.split(":")[1].split(","))): line.split(":", 2)[2] for line in memberships}
    for line in mounts:
        head, _, tail = line.partition(" - ")
        root, point = head.split()[3:5]
        kind, _, options = tail.split(" ", 2)
        for controllers, path in paths.items():
            fits = kind == "cgroup2" if not controllers else kind == "cgroup" and controllers <= set(options.split(","))
            if fits:
                # In a container, the mount shows only a part of the hierarchy, and the membership may name a group
                # outside of it.
                below = os.path.relpath(path, root) if path.startswith(root) else "."
                yield controllers, Path(point, below)


def _parent(place: Path, name: str, wanted: Sequence[str], *, version_2: bool) -> tuple[list[str], Path, int] | None:
    """Make the directory for groups of builds at the nearest possible place.  Return its controllers, its path, and the
    lock that holds it."""
    # In version 2, no group may have both processes and controlled subgroups, and ours has this process: often only
    # an ancestor can have the groups of builds.
    for at in (place, *place.parents) if version_2 else (place,):
        if not os.access(at, os.W_OK | os.X_OK) or not (at / "cgroup.procs").exists():
            continue
        # Sweep before our own group exists, so that only groups of others are examined.
        _sweep(at)
        usable = [c for c in wanted if not version_2 or c in _handed_down(at, ours=at == place)]
        if not usable:
            continue
        made = at / name
        with contextlib.suppress(OSError):
            lock = _begun(made)
            if version_2:
                # A group delegates only the controllers named here, and builds are limited one level below.
                _write(made / "cgroup.subtree_control", " ".join(f"+{c}" for c in usable))
            total = str(int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MACHINE_SHARE))
            for file in ("memory.max", "memory.limit_in_bytes"):
                _write(made / file, total)
            for file, part in BUILDS_PART.items():
                _write(made / file, part)
            return usable, made, lock
    return None


def _begun(made: Path) -> int:
    """Make the group and lock it; a process that sweeps may hold it for a moment. Raise OSError."""
    for _ in range(LOCK_TRIES_MAX):
        with contextlib.suppress(FileExistsError):
            made.mkdir()
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(made, _DIRECTORY)
            # Check again after locking: a sweep may have removed the directory in between, so that the lock is
            # useless.
            fcntl.flock(lock, fcntl.LOCK_SH)
            if made.exists():
                return lock
            os.close(lock)
    raise OSError(errno.EBUSY, "other processes keep removing a control group", str(made))


def _handed_down(at: Path, *, ours: bool) -> set[str]:
    """Return the controllers of groups that are made below `at`. If possible, first move this process to a subgroup and
    delegate the controllers."""
    names = set(_text(at / "cgroup.subtree_control").split())
    offered = set(_text(at / "cgroup.controllers").split()) & set(_CONTROLLERS)
    if offered <= names or not ours or not _alone(at):
        return names
    with contextlib.suppress(OSError):
        (at / _SELF).mkdir(exist_ok=True)
        # The kernel accepts one process per write.
        for pid in _text(at / "cgroup.procs").split():
            _write(at / _SELF / "cgroup.procs", pid)
        _write(at / "cgroup.subtree_control", " ".join(f"+{name}" for name in offered))
    return set(_text(at / "cgroup.subtree_control").split())


def _alone(at: Path) -> bool:
    """Return whether the group has only this process and its children, and thus belongs to our unit or container."""
    for pid in _text(at / "cgroup.procs").split():
        parent = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1:2]
        if str(os.getpid()) not in (pid, *parent):
            return False
    return True


def _sweep(at: Path) -> None:
    """End and remove groups of dead executors, which no process locks."""
    for left in at.glob(f"{PREFIX}*"):
        pid, dash, _ = left.name.removeprefix(PREFIX).partition("-")
        if not dash:  # made by an earlier version, which held no locks
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                _removed(left)
            continue
        with contextlib.suppress(OSError):
            lock = os.open(left, _DIRECTORY)
            try:
                # The kernel releases a lock when its holder ends: getting this lock proves that the executor is dead,
                # even if another process has its id now.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _emptied(left)
                _removed(left)
            finally:
                os.close(lock)


def _emptied(left: Path) -> None:
    """Kill the processes of a group and of those below it, and wait until they have ended."""
    for _ in range(KILL_ROUNDS_MAX):
        pids = {pid for file in left.rglob("cgroup.procs") for pid in map(int, _text(file).split())}
        for pid in pids - {0}:  # a process outside of this namespace is shown as 0
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(KILL_LOOK_INTERVAL_S)


def _removed(left: Path) -> None:
    # Remove subgroups first; each removal fails while a process is left in the group, and a later sweep retries.
    for directory in (*left.glob("*/"), left):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _table(file: Path) -> dict[str, int]:
    """Read lines of `name number`."""
    pairs = (line.split() for line in _text(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _write(file: Path, text: str) -> None:
    """Write to a file if it exists; which files exist depends on the kernel and the version of control groups."""
    with contextlib.suppress(OSError), open(file, "r+") as opened:
        opened.write(text)
