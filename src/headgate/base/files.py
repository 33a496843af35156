"""Read files that people name, and nothing that would have to be waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_NULL = os.makedev(1, 3)
"""The device /dev/null, which people name for an empty file."""


def text_of(path: Path | str, encoding: str | None = None, errors: str = "strict", size_max: int = -1) -> str:
    """Return the text of a file as `Path.read_text` does, at most `size_max` characters of it. Raise OSError, also for
    a device or a named pipe, and UnicodeDecodeError."""
    with open(path, encoding=encoding, errors=errors, opener=_opened) as file:
        return file.read(size_max)


def bytes_of(path: Path) -> bytes:
    """Return the content of a file as `Path.read_bytes` does. Raise OSError, also for a device or a named pipe."""
    with open(path, "rb", opener=_opened) as file:
        return file.read()


def _opened(name: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block forever.
    found = os.open(name, flags | os.O_NONBLOCK)
    try:
        state = os.fstat(found)
        if what := _not_a_file(name, state):
            raise OSError(errno.EINVAL, f"this is {what}; name a regular file", name)
        os.set_blocking(found, True)
    except BaseException:
        os.close(found)
        raise
    return found


def _not_a_file(name: str, state: os.stat_result) -> str:
    """Return a word for a device or a pipe with a name; an empty string for files, and for pipes of this process."""
    if stat.S_ISFIFO(state.st_mode):
        # A pipe without a name is an input of this process, as in `<(command)`: its writer exists.
        return "" if os.path.realpath(name).startswith("/proc/") else "a named pipe"
    if stat.S_ISCHR(state.st_mode):
        return "" if state.st_rdev == _NULL else "a device"
    return "a device" if stat.S_ISBLK(state.st_mode) else ""
