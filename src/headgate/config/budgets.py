"""Limit the size of a configuration. A project that exceeds a limit gets an error; other projects are not affected."""

from __future__ import annotations

from typing import NamedTuple

MB = 1_000_000
FILE_MAX_BYTES = 2 * MB
"""Largest size of one file; a larger file is not read."""
BRANCH_MAX_BYTES = 10 * MB
"""Largest size of all files of one branch of a project together."""
FILES_MAX = 5_000
"""Largest number of files of one branch."""


class Budgets(NamedTuple):
    """Limit the size of files and of items. The defaults are several times what large tenants need."""

    file_max_bytes: int = FILE_MAX_BYTES
    # A few kilobytes of nested aliases can stand for billions of values.
    values_max: int = 500_000
    """Largest number of values in one file, with its aliases expanded."""
    written_max_bytes: int = 40 * MB
    """Largest size of the text of one file, with its aliases expanded."""
    jobs_max: int = 1_000
    """Largest number of jobs of one item."""
    edges_max: int = 20_000
    """Largest number of dependencies between the jobs of one item, including those on initializers, and of names that
    they provide and require."""
    semaphores_max: int = 20
    """Largest number of semaphores of one item that no landed configuration defines. Every turn of a pipeline reads the
    record of each."""
    item_max_bytes: int = 40 * MB
    """Largest size of all frozen jobs of one item together, as they are stored."""


DEFAULTS = Budgets()


def sized(count_bytes: int) -> str:
    """Format a number of bytes for display, in MB or kB."""
    return f"{count_bytes / MB:g} MB" if count_bytes >= MB else f"{count_bytes / 1_000:g} kB"
