"""Hold directories that one process works in at a time, for as long as that process lives.

The hold is a lock of the kernel, which releases it however its owner ends: what nobody holds was left behind.
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
"""Attempts to make and hold a directory, since a sweeping process may take it in between."""


@contextmanager
def anew(path: Path) -> Iterator[None]:
    """Hold an empty directory in place of any leftover one. Raise OSError, also when another process holds it."""
    held = _made(path)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def left(path: Path, *, ours: bool = False) -> Iterator[bool]:
    """Hold the directory, and tell whether that was possible: False when its owner lives. Where the file system refuses
    locks, the owner may live, unless the directory is `ours`."""
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
                # What a dead executor left is not used again: its content is unknown, and a new directory has an inode
                # of its own.
                if nobody_s:
                    remove(path)
            continue
        held = _taken(path, ours=True)
        if held is not None:
            # Another process may have removed the directory between mkdir and the lock; the lock is then on nothing.
            if _is(held, path):
                return held
            os.close(held)
    raise OSError(errno.EBUSY, "another process of this machine works in this directory", str(path))


def _taken(path: Path, *, ours: bool) -> int | None:
    """Lock the directory, and return its descriptor; None if another process has it, it is gone, or the
    file system refuses locks and it is not `ours`."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # The lock belongs to the open directory: it goes with the last descriptor of its owner, whatever kills that.
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        return None
    except OSError as error:
        # Without locks nothing tells the dead from the living, whose processes a sweep would kill.
        if not ours:
            os.close(found)
            log.warning("%s cannot be locked (%s): it is left as if its owner lived", path, error.strerror)
            return None
    return found


def _is(held: int, path: Path) -> bool:
    """Tell whether the path still leads to the held directory."""
    try:
        return os.path.samestat(os.fstat(held), os.stat(path))
    except OSError:
        return False
