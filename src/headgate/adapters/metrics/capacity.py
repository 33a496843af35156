"""Check whether this machine has capacity for another build: load, memory and disk space."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

FREE_MIN_BYTES = 1_000_000
"""Free space below which a full disk counts as the cause of a failure."""
ROOM_BYTES = 16_000_000
"""Free space below which no build begins."""
SHY_S = 10.0
"""Time for which no build begins after a disk was full."""
NO_SPACE = "No space left on device"
"""Message that programs print when the disk is full."""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Refuse builds while the machine is overloaded; see `ports.work.Load`."""

    job_dir: Path
    load_multiplier: float
    """Load average per processor above which no build begins."""
    memory_min_percent: float = 5.0
    disk_min_percent: float = 5.0
    room: Callable[[], str] = lambda: ""
    """Returns the reason why there is no disk space for another build; empty if there is space."""

    def refuses(self, running: int) -> str:
        """Return the reason why no further build may begin; empty if one may. A machine without builds accepts one
        whatever its load."""
        average, most = os.getloadavg()[0], self.load_multiplier * (os.cpu_count() or 1)
        # The average covers the last minute and includes other programs. If it also applied to a machine without
        # builds, an executor might never begin one.
        if running and average > most:
            return f"the load average is {average:.1f}, above {most:.1f}"
        memory = psutil.virtual_memory()
        free = 100 * memory.available / memory.total
        if free < self.memory_min_percent:
            return f"{free:.1f} % of memory is free, less than {self.memory_min_percent:.1f} %"
        disk = 100 - psutil.disk_usage(str(_that_is(self.job_dir))).percent
        if disk < self.disk_min_percent:
            return f"{disk:.1f} % of the disk of {self.job_dir} is free, less than {self.disk_min_percent:.1f} %"
        return self.room()


def _that_is(path: Path) -> Path:
    """Return the path if it exists, otherwise the nearest existing directory above it."""
    return next(p for p in (path, *path.parents) if p.exists())


class DiskRoom:
    """Check whether the disks of builds have space, and remember when one was full."""

    def __init__(self, places: Callable[[], Sequence[Path]], *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Watch the disks of `places`: directories, some of which may not exist yet."""
        self._places, self._now_s = places, now_s
        self._gone_s = -math.inf

    def gone(self, since_s: float, why: OSError | str = "") -> bool:
        """Return whether a disk is full now, or has been full since `since_s` (of the monotonic clock). `why`: an error
        that may report a full disk."""
        # EDQUOT means that a disk quota of the user or the project is used up.
        is_full = why.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(why, OSError) else NO_SPACE in why
        if is_full or self._less_than(FREE_MIN_BYTES) is not None:
            self._gone_s = self._now_s()
        return self._gone_s >= since_s

    def refuses(self) -> str:
        """Return a message about why no build should start; empty if one may start."""
        place = self._less_than(ROOM_BYTES)
        if place is not None:
            return f"the disk of {place} is full: less than {ROOM_BYTES // 1_000_000} MB are free"
        # The build that filled the disk has ended and freed the space; without this pause, its next attempt could begin
        # here immediately.
        if self._now_s() < self._gone_s + SHY_S:
            return "a disk of builds was full a moment ago"
        return ""

    def _less_than(self, size_bytes: int) -> Path | None:
        return next((p for p in self._places() if p.is_dir() and _free_bytes(p) < size_bytes), None)


def _free_bytes(place: Path) -> int:
    """Return the number of bytes that this user can still use on the disk of `place`."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
