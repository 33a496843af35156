"""Hold directories in which one process works at a time, for as long as that process lives.

The hold is a kernel lock, which is released however its owner ends, so a directory that nobody holds was left behind.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.adapters.work.directory import remove

log = logging.getLogger("headgate.executor")

TRIES_MAX = 5
"""Attempts to make and hold a directory, since a process that sweeps may take it in between."""


@contextmanager
def fresh(path: Path) -> Iterator[None]:
    """Hold a new empty directory, after removing one that was left behind. Raise OSError, for example if another
    process holds it."""
    held = _made(path)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def left(path: Path, *, ours: bool = False) -> Iterator[bool]:
    """Hold the directory, and tell whether that was possible: False if its owner lives. If the file system does not
    support locks, the owner is assumed to live, unless the directory is `ours`."""
    held = _taken(path, ours=ours)
    try:
        yield held is not None
    finally:
        if held is not None:
            os.close(held)


def _made(path: Path) -> int:
    """Make and hold the directory. Raise OSError."""
    for _ in range(TRIES_MAX):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            with left(path) as nobody_s:
                # Do not reuse what a dead executor left: its content is unknown, and only a new directory has a new
                # inode.
                if nobody_s:
                    remove(path)
            continue
        held = _taken(path, ours=True)
        if held is not None:
            # Another process may have removed the directory between mkdir and the lock, which is then useless.
            if _is(held, path):
                return held
            os.close(held)
    raise OSError(errno.EBUSY, "another process on this machine works in this directory", str(path))


def _taken(path: Path, *, ours: bool) -> int | None:
    """Lock the directory, and return its descriptor; None if another process holds it, if it is gone, or if the file
    system does not support locks and the directory is not `ours`."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # The lock belongs to the open directory: the kernel drops it with the owner's last descriptor, however it ends.
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        return None
    except OSError as error:
        # Without locks, a dead owner looks like a living one, whose processes a sweep would kill.
        if not ours:
            os.close(found)
            log.warning("%s cannot be locked (%s): assuming that its owner lives", path, error.strerror)
            return None
    return found


def _is(held: int, path: Path) -> bool:
    """Return whether the path still leads to the held directory."""
    try:
        return os.path.samestat(os.fstat(held), os.stat(path))
    except OSError:
        return False
