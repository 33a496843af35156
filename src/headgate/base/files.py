"""Read files that people name, and nothing that has no end or would have to be waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, AnyStr

_NULL = os.makedev(1, 3)
"""The device /dev/null, which people name for an empty file."""


SIZE_MAX_BYTES = 200_000_000
"""Limit on the size of a file that is read as a whole; the largest ones are exports of ten thousand projects' keys."""
PIECE_SIZE = 1 << 20


def text_of(path: Path | str, encoding: str | None = None, errors: str = "strict", size_max: int = -1) -> str:
    """Return the text of a file as `Path.read_text` does, at most `size_max` characters of it. Raise OSError, also for
    a device, a named pipe or a huge file, and UnicodeDecodeError."""
    with open(path, encoding=encoding, errors=errors, opener=file_opener) as file:
        return file.read(size_max) if size_max >= 0 else _content(file, path)


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Return why a file cannot be used, for a message that names the file; the text of an OSError would repeat it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def bytes_of(path: Path) -> bytes:
    """Return the content of a file as `Path.read_bytes` does. Raise OSError, also for a device, a named pipe or a huge
    file."""
    with open(path, "rb", opener=file_opener) as file:
        return _content(file, path)


def check_file(path: Path | str) -> None:
    """Check that a library may open the file itself. Raise OSError, also for a device, a named pipe or a huge file."""
    state = os.stat(path)
    _check(str(path), state)
    if state.st_size > SIZE_MAX_BYTES:
        raise _too_large(path)


def file_opener(name: str, flags: int) -> int:
    """Open a file for reading, as the `opener` of `open`. Raise OSError, also for a device or a named pipe."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block forever.
    found = os.open(name, flags | os.O_NONBLOCK)
    try:
        _check(name, os.fstat(found))
        os.set_blocking(found, True)
    except BaseException:
        os.close(found)
        raise
    return found


def _content(file: IO[AnyStr], path: Path | str) -> AnyStr:
    """Read the file to its end, in pieces: a pipe does not tell how long it is."""
    pieces, size = [file.read(PIECE_SIZE)], 0
    while pieces[-1]:
        size += len(pieces[-1])
        if size > SIZE_MAX_BYTES:
            raise _too_large(path)
        pieces.append(file.read(PIECE_SIZE))
    return pieces[-1].join(pieces)


def _too_large(path: Path | str) -> OSError:
    return OSError(errno.EFBIG, f"the file is larger than {SIZE_MAX_BYTES // 1_000_000} MB", str(path))


def _check(name: str, state: os.stat_result) -> None:
    if what := _not_a_file(name, state):
        raise OSError(errno.EINVAL, f"this is {what}; name a regular file", name)


def _not_a_file(name: str, state: os.stat_result) -> str:
    """Return a word for a device or a pipe with a name; an empty string for files, and for pipes of this process."""
    if stat.S_ISFIFO(state.st_mode):
        # A pipe without a name is an input of this process, as in `<(command)`: its writer exists.
        return "" if os.path.realpath(name).startswith("/proc/") else "a named pipe"
    if stat.S_ISCHR(state.st_mode):
        return "" if state.st_rdev == _NULL else "a device"
    return "a device" if stat.S_ISBLK(state.st_mode) else ""
