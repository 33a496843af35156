"""Watch a build while one of its commands runs: the limits that the kernel enforces, and the use of the disk.

An ordinary user cannot set quotas, so the use of the disk is measured: cheaply while little is written, and never for
more than a small part of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import stat
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headgate.adapters.process.bounds.limits import Exceeded, Group, Groups, ProcessBounds, of_bytes, share

log = logging.getLogger("headgate.executor")

LOOK_INTERVAL_S = 0.5
# 0.2 s in all: rmdir fails until the kernel has released the last task. The next sweep removes the rest.
REMOVE_TRIES_MAX = 20
REMOVE_DELAY_S = 0.01
"""Pause for the kernel to remove the last process of a group."""
COSTLY_LOOK_INTERVAL_S = 2.0
"""Interval between two checks without a control group, which visit each process."""
CROWDED_S = 10.0
"""Time at the limit of processes after which a build is ended: it would fail, or never end."""
REST = 20
"""Seconds without a measurement after each second that a measurement takes."""
ANYWAY_S = 30.0
"""Interval between two measurements of a build while the disk does not fill: others may free what the build writes."""
DU_TIMEOUT_S = 60.0
STEP = 50
"""A build is measured once the free space of the disk has shrunk by the build's limit divided by this."""
RESERVE_SHARE = 0.05
"""Largest reserve, as a share of the disk; it applies to small disks."""
FILES_RESERVE_SHARE = 0.02
GUILTY_SHARE = 0.1
"""Share of the reserve; a build that uses less is not ended when the disk is full."""
MOMENT_S = 0.4
"""Time within which the checks of several commands of a build count as one."""
SETTLE_S = 3.0
"""Pause between ending two builds because the disk is full, in which the files of the first one are removed."""


@dataclass(slots=True)
class CommandWatch:
    """Watch one command. `begun` finds its first process if there is no group; `say` writes to the build's log."""

    bounds: ProcessBounds
    root: Path
    group: Group | None
    disk: DiskAccounts
    begun: Callable[[], Iterable[int]]
    say: Callable[[str], None]
    _crowded_s: float = field(default=0.0, init=False)
    _refused: bool = field(default=False, init=False)
    """Whether the kernel refused another process, or probably did."""

    async def exceeded(self) -> str:
        """Wait until a limit is reached, and return a message about it."""
        interval_s = LOOK_INTERVAL_S if self.group else COSTLY_LOOK_INTERVAL_S
        while True:
            await asyncio.sleep(interval_s)
            # Use a thread, since visiting every process may take longer than the event loop can wait.
            found = self._reported_limit(interval_s) if self.group else await asyncio.to_thread(self._counted)
            with contextlib.suppress(FileNotFoundError):  # the directory is removed at the end of the build
                found = found or await self.disk.look(self.root, self._pids)
            if found:
                return found

    @property
    def groups(self) -> list[str]:
        """Return the directories of the groups that the command joins."""
        return self.group.directories if self.group else []

    def check(self, status: int | str) -> None:
        """Raise Exceeded if the command failed and the kernel had enforced a limit. If the command succeeded
        although it could not start all its processes, log that."""
        if self.group is None:
            return
        self._check_refusals(self.group)
        reached = self.group.starved() or (self.bounds.crowded if self._refused else "")
        # If a killed compiler was retried and succeeded, the limit did no harm.
        if reached and status not in (0, "cancel"):
            raise Exceeded(reached)

    def _pids(self) -> Iterable[int]:
        return self.group.pids() if self.group else [process.pid for process in self._tree()]

    def _reported_limit(self, interval_s: float) -> str:
        """Return the limit that the kernel reports as reached, or nothing. Version 1 kills single processes when memory
        is short: the rest of the build is ended here."""
        assert self.group is not None, "called only with a group"
        # `make -j` may reach the limit for a moment and continue.
        self._crowded_s = self._crowded_s + interval_s if self.group.crowded() else 0.0
        self._check_refusals(self.group)
        return self.bounds.crowded if self._refused and self._crowded_s >= CROWDED_S else self.group.starved()

    def _check_refusals(self, group: Group) -> None:
        """Report the first refusal immediately: its effect, such as a missing helper process, may show much later or
        never."""
        refused = group.refused()
        if not self._refused and (group.crowded() if refused is None else refused > 0):
            self._refused = True
            self.say(f"{self.bounds.crowded}: the build cannot start another process")

    def _tree(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for pid in self.begun():
            with contextlib.suppress(psutil.Error):
                first = psutil.Process(pid)
                found |= {process.pid: process for process in (first, *first.children(recursive=True))}
        return list(found.values())

    def _counted(self) -> str:
        """Return the limit that the processes reach, for a machine without control groups; empty if there is none."""
        used_bytes, count = 0, 0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                # Shared pages count for each process that maps them: a hundred workers of one program would seem to
                # exceed the limit.
                used_bytes += memory.rss - memory.shared
                # The kernel's limit counts threads too.
                count += process.num_threads()
        if count > self.bounds.processes_max:
            return self.bounds.crowded
        if used_bytes > self.bounds.memory_max_bytes:
            return f"memory limit of {of_bytes(self.bounds.memory_max_bytes)} reached"
        return ""


class Limiter:
    """Keep the builds of this executor within their bounds."""

    def __init__(self, bounds: ProcessBounds | None = None) -> None:
        self.bounds = bounds or ProcessBounds()
        self.groups = Groups.found()
        self._disk, self._count = DiskAccounts(self.bounds), 0
        self._running: dict[str, list[Group]] = {}
        """Owner -> groups of the owner's running commands."""
        if self.groups.complete:
            log.info("The kernel limits memory and processes of each build")
        else:
            log.info(
                "No control group can be made here (in a systemd unit, Delegate=yes permits it): memory and processes "
                "of builds are checked every %g s",
                COSTLY_LOOK_INTERVAL_S,
            )

    @contextlib.asynccontextmanager
    async def around(
        self, build: str, whose: str, root: Path, begun: Callable[[], Iterable[int]], say: Callable[[str], None]
    ) -> AsyncIterator[CommandWatch]:
        """Watch one command until the context ends; by then, the command and all its processes must have ended. See
        `CommandWatch`. All commands of the same `whose` together get one share of the processors."""
        self._count += 1
        # Number the groups, since a build may have two at the same time: its container, and a playbook that works in
        # it.
        group = self.groups.make(f"{build}-{self._count}", self.bounds)
        self._disk.begin(root)
        try:
            with self._sharing(whose, group):
                yield CommandWatch(self.bounds, root, group, self._disk, begun, say)
        finally:
            self._disk.forget(root)
            for _ in range(REMOVE_TRIES_MAX):
                if group is None or group.removed():
                    break
                await asyncio.sleep(REMOVE_DELAY_S)

    @contextlib.contextmanager
    def _sharing(self, whose: str, group: Group | None) -> Iterator[None]:
        if group is None:
            yield
            return
        mine = self._running.setdefault(whose, [])
        mine.append(group)
        share(mine)
        try:
            yield
        finally:
            mine.remove(group)
            share(mine)
            if not mine:
                self._running.pop(whose, None)

    def close(self) -> None:
        """Remove the groups; requires that no build runs."""
        self.groups.close()


@dataclass(frozen=True, slots=True)
class Use:
    """Count what a build uses."""

    size_bytes: int = 0
    files: int = 0
    written_bytes: int = 0
    """Total bytes that its readable processes have written, including data that the other measures do not show."""


@dataclass(frozen=True, slots=True)
class Free:
    size_bytes: int
    files: int
    total_bytes: int
    total_files: int


@dataclass(slots=True)
class _Account:
    use: Use
    free: Free
    """Free space at the time of the last measurement."""
    measured_s: float
    rest_until_s: float
    low: int = 0
    """Moments in a row that found too little space."""
    low_s: float = -math.inf
    """Last of these moments."""


class DiskAccounts:
    """Account for the disk use of builds, with one account for each running build. `now_s` returns monotonic time."""

    def __init__(self, bounds: ProcessBounds, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._now_s = bounds, now_s
        self._accounts: dict[Path, _Account] = {}
        self._commands = Counter[Path]()
        """Directory -> running commands of its build."""
        self._ended_s = -math.inf

    async def look(self, root: Path, pids: Callable[[], Iterable[int]]) -> str:
        """Return a message about the limit that the build in the directory has reached; empty if there is none. Raise
        OSError if the disk is nearly full and the build uses the most of it."""
        free, now_s, bounds = free_of(root), self._now_s(), self._bounds
        account = self._accounts.setdefault(root, _Account(Use(), free, now_s, now_s))
        low = self._low(free)
        if not low:
            account.low, account.low_s = 0, -math.inf
        elif now_s - account.low_s >= MOMENT_S:
            account.low, account.low_s = account.low + 1, now_s
        if now_s < account.rest_until_s or not (low or self._grown(account, free, now_s)):
            return ""
        account.use = await asyncio.to_thread(measured, root, list(pids()))
        done_s = self._now_s()
        account.free, account.measured_s = free, done_s
        # When space is short, measure as often as possible: more load is better than a full disk.
        account.rest_until_s = done_s + (done_s - now_s) * (1 if low else REST)
        if account.use.size_bytes > bounds.disk_max_bytes:
            return f"disk limit of {of_bytes(bounds.disk_max_bytes)} reached"
        if account.use.files > bounds.files_max:
            return f"limit of {bounds.files_max} files reached"
        # Require two in a row: the first check may have caught a peak, and others' accounts are as old as their
        # last check.
        if account.low > 1 and (guilty := self._guilty(account)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), guilty)
        return ""

    def begin(self, root: Path) -> None:
        """Count a command of the build in this directory; `forget` must follow."""
        self._commands[root] += 1

    def forget(self, root: Path) -> None:
        """Count a command as ended; the account is closed with the last one of the build in this directory."""
        self._commands[root] -= 1
        # After a playbook that works in a container has ended, the container still runs.
        if self._commands[root] <= 0:
            del self._commands[root]
            self._accounts.pop(root, None)

    def _low(self, free: Free) -> bool:
        reserve = min(self._bounds.reserve_bytes, free.total_bytes * RESERVE_SHARE)
        return free.size_bytes < reserve or free.files < free.total_files * FILES_RESERVE_SHARE

    def _grown(self, account: _Account, free: Free, now_s: float) -> bool:
        bounds = self._bounds
        return (
            account.free.size_bytes - free.size_bytes >= bounds.disk_max_bytes // STEP
            or account.free.files - free.files >= max(1, bounds.files_max // STEP)
            or now_s - account.measured_s >= ANYWAY_S
        )

    def _guilty(self, account: _Account) -> str:
        """Return the reason to end this build if it uses the most space or, if no running build uses much, has written
        the most; otherwise an empty string."""
        now_s = self._now_s()
        # Removing the files of the last ended build takes time: without a pause, all builds would be ended for one.
        if now_s < self._ended_s + SETTLE_S:
            return ""
        least, others = self._bounds.reserve_bytes * GUILTY_SHARE, self._accounts.values()
        least = min(least, account.free.total_bytes * RESERVE_SHARE * GUILTY_SHARE)
        held = max((one.use.size_bytes for one in others), default=0)
        # If no build seems to use much, the data is where du cannot see it, and the written bytes are the only trace.
        written = max((one.use.written_bytes for one in others), default=0)
        few_files = account.free.files < account.free.total_files * FILES_RESERVE_SHARE
        if few_files:
            guilty = account.use.files >= max((one.use.files for one in others), default=0)
        elif held >= least:
            guilty = account.use.size_bytes >= held
        else:
            guilty = account.use.written_bytes >= max(written, least)
        if not guilty:
            return ""
        self._ended_s = now_s
        use = f"{account.use.files} files" if few_files else of_bytes(max(account.use.size_bytes, held))
        return f"it is nearly full, and this build uses the most of it, {use}"


def free_of(place: Path) -> Free:
    found = os.statvfs(place)
    return Free(
        found.f_bavail * found.f_frsize,
        found.f_favail if found.f_files else 1,  # some file systems do not count files
        found.f_blocks * found.f_frsize,
        found.f_files,
    )


def measured(root: Path, pids: Iterable[int]) -> Use:
    """Return the size below a directory, including deleted files that are held open on its disk."""
    try:
        device = root.stat().st_dev
    except FileNotFoundError:
        return Use()
    deleted: dict[int, int] = {}
    written_bytes = 0
    for pid in pids:
        deleted |= _deleted(pid, device)
        written_bytes += _written_bytes(pid)
    return Use(_du(root, "--block-size=1") + sum(deleted.values()), _du(root, "--inodes"), written_bytes)


def _du(root: Path, unit: str) -> int:
    """Measure a tree with du, which handles trees deeper than the longest path and changes in the meantime; return 0 if
    du fails. `unit` is the option for the unit."""
    # --one-file-system excludes mounts below, and keeps the walk on the build's disk.
    command = ["du", "--summarize", "--one-file-system", unit, str(root)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DU_TIMEOUT_S, check=False)
        return int(done.stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return 0


def _deleted(pid: int, device: int) -> dict[int, int]:
    """Return the deleted files that a process holds open on the disk: inode -> bytes. A process in a container sees the
    disk through its root file system."""
    found: dict[int, int] = {}
    devices = {device}
    with contextlib.suppress(OSError):
        root = os.stat(f"/proc/{pid}/root").st_dev
        # An overlay has a separate device number, with major 0, although its files are on the build's disk.
        devices |= {root} if os.major(root) == 0 else set()
    for place in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(place)
        for name in names:
            with contextlib.suppress(OSError):
                at = os.stat(f"{place}/{name}")
                if not at.st_nlink and at.st_dev in devices and stat.S_ISREG(at.st_mode):
                    # Use the inode as the key, since many processes may hold the same file, and count blocks, since
                    # a file may be mostly holes.
                    found[at.st_ino] = at.st_blocks * 512
    return found


def _written_bytes(pid: int) -> int:
    """Return the bytes that a process and its ended children have written."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        found = {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}
        # Cancelled bytes were written to the cache, and deleted before they reached the disk.
        return max(0, found["write_bytes"] - found["cancelled_write_bytes"])
    return 0
