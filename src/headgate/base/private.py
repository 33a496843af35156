"""Create directories and files that only their owner can access, whichever process creates them first."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("headgate.files")

DIRECTORY, FILE = 0o700, 0o600
_OTHERS = 0o077
_WRITERS = 0o022


def private_directory(path: Path, mode: int = DIRECTORY) -> None:
    """Create the directory if it does not exist. If it exists and is open to others, restrict it and log that.

    Raises OSError if it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        # Created with its final mode: a later `chmod` would leave a moment in which others can enter.
        path.mkdir(mode=mode)
    close_to_others(path, mode)


def private_file(path: Path) -> None:
    """Create an empty database file if it does not exist; SQLite gives the files next to it the same mode. Do nothing
    if this user has no permission to open it. Raise OSError if it cannot be created for any other reason."""
    try:
        # Created before SQLite opens it, because SQLite would use the mode that the umask allows.
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, FILE))
    except PermissionError:
        return
    for file in (path, *(path.with_name(path.name + beside) for beside in ("-wal", "-shm", "-journal"))):
        close_to_others(file, FILE)


@contextlib.contextmanager
def closed_to_writers() -> Iterator[None]:
    """Create files and directories, also in child processes, that at most their owner can write."""
    # The kernel gives no other way to read the umask than to set it.
    before = os.umask(_WRITERS)
    os.umask(before | _WRITERS)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def private_replacement(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that only its owner can read; it takes the place of `path` once it is complete and durable.
    Raise OSError."""
    # A unique name each time: an existing file may be a planted link, or belong to a writer that has not finished.
    number, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    beside = Path(name)
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def close_to_others(path: Path, mode: int) -> None:
    """Remove the permissions of group and others that `mode` does not grant, if this user owns the path and it is not
    shared like /tmp."""
    try:
        found = path.stat()
    except OSError:
        return
    had = stat.S_IMODE(found.st_mode)
    extra = had & _OTHERS & ~mode
    # A directory with the sticky bit is shared on purpose, and only the owner decides about a path.
    if not extra or found.st_uid != os.geteuid() or had & stat.S_ISVTX:
        return
    try:
        path.chmod(had & ~extra)
    except OSError as error:
        log.warning("%s is accessible to other users, and its mode cannot be changed: %s", path, error.strerror)
        return
    log.warning("%s was accessible to other users (mode %o); its mode is now %o", path, had, had & ~extra)
