"""Limit how much one build may use."""

from __future__ import annotations

from dataclasses import dataclass

NO_CORE_BYTES = 1
"""Size of core dumps: with 0 the kernel still passes them to a program that /proc/sys/kernel/core_pattern names."""


class Exceeded(Exception):
    """Report that a build has reached a limit; the text says which."""


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
        """Return the message about a build that may start no further process."""
        return f"limit of {self.processes_max} processes reached"

    def resources(self) -> dict[str, int]:
        """Return the limits of each process, by their names in `resource`."""
        return {
            "RLIMIT_NOFILE": self.open_files_max,
            "RLIMIT_FSIZE": min(self.file_size_max_bytes, self.disk_max_bytes),
            "RLIMIT_CORE": NO_CORE_BYTES,
        }


def of_bytes(number: float) -> str:
    """Format a size for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} bytes"
