"""Tell whether this machine should begin another build, by its load, memory and disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """See `ports.load.Load`."""

    job_dir: Path
    load_multiplier: float
    """Load average per processor above which no build begins."""
    memory_min_percent: float = 5.0
    disk_min_percent: float = 5.0
    room: Callable[[], str] = lambda: ""
    """Returns why there is no disk space for another build; empty if there is."""

    def refuses(self, running: int) -> str:
        """Return why no further build may begin; empty if one may. A machine without builds accepts one whatever its
        load is."""
        average, most = os.getloadavg()[0], self.load_multiplier * (os.cpu_count() or 1)
        # The average covers the last minute, and other programs count in it; without `running`, an executor might never
        # begin.
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
    """Return the path if it exists, else the nearest existing directory above it."""
    return next(p for p in (path, *path.parents) if p.exists())
