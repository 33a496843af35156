"""Hold directories that a job can write by descriptors: no link is followed and nothing special is opened.

A name is looked up in a directory that is held, one at a time, so what a job renames or replaces meanwhile leads
nowhere else.  What is read must be a regular file, and is read without waiting.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from headgate.base.texts import line

NAME_SHOWN_MAX = 200
REMOVING_STEPS_MAX = 50_000_000
"""Directories that are visited while a tree is removed: more than a file system has."""
NAMES_MAX = 1_000
"""Names of one directory that are read at a time."""
SWEPT_DEPTH_MAX = 50
"""Depth of nested directories that are held open at once."""
MOVED_MAX = 10_000
"""Most subdirectories that are moved out of a directory before they are removed."""
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: an open of a pipe that a job put there must not wait for a writer.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a regular file",
}
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_HELD_FAST = 0x10 | 0x20
"""Flags of a file that is immutable or append-only."""


class Strange(Exception):
    """Report that something unexpected is in a place. The text is for people."""


def shown(name: str) -> str:
    """Return a name that a job chose, for people."""
    return line(name, NAME_SHOWN_MAX)


def kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


class Directory:
    """Represent an open directory. Everything is done by name in it, never by path."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name = fd, name

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Iterator[Directory]:
        """Open a directory of ours whose path nobody else can rename. Raise OSError."""
        # The operator may have put a link where a directory of ours is.
        fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            yield cls(fd, path.name)
        finally:
            os.close(fd)

    @contextmanager
    def below(self, *names: str) -> Iterator[Directory]:
        """Provide each of `names` a directory in the one before.  Raises Strange, FileNotFoundError, OSError."""
        here = Directory(os.dup(self.fd), self.name)
        try:
            for name in names:
                fd = here._directory(name)
                os.close(here.fd)
                here = Directory(fd, name)
            yield here
        finally:
            os.close(here.fd)

    def _directory(self, name: str) -> int:
        try:
            return os.open(_single(name), _DIRECTORY, dir_fd=self.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            found = self.look(name)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                raise Strange(f"{shown(name)} is {kind(found.st_mode)}, and no directory") from error
            if isinstance(error, NotADirectoryError):
                raise Strange(f"{shown(name)} was exchanged while it was opened") from error
            raise

    def look(self, name: str) -> os.stat_result | None:
        """Return the stat of what has this name, a link itself included, or None."""
        try:
            return os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_directory(self, *names: str) -> bool:
        """Return whether the names lead through directories only."""
        try:
            with self.below(*names):
                return True
        except (Strange, OSError):
            return False

    @contextmanager
    def held(self, name: str) -> Iterator[int]:
        """Provide a descriptor of the object of this name, without opening it. Raises OSError."""
        fd = os.open(_single(name), _HOLD, dir_fd=self.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """Provide the regular file of this name.  Raises Strange, OSError."""
        with self.held(name) as held:
            mode = os.fstat(held).st_mode
            if not stat.S_ISREG(mode):
                raise Strange(f"{shown(name)} is {kind(mode)}, and no regular file")
            # By its descriptor: a second look-up of the name could find a pipe or a device in place of what was
            # checked.
            with open(os.open(again(held), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                yield file

    def read(self, name: str, size_max_bytes: int) -> bytes | None:
        """Return the content of the regular file of this name, at most `size_max_bytes` and one more; None if it does
        not exist. Raises Strange, OSError."""
        try:
            with self.reading(name) as file:
                return file.read(size_max_bytes + 1)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, mode: int = 0o600) -> None:
        """Write a new file in place of whatever has this name. Raise OSError."""
        fresh = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(fresh, flags, 0o600, dir_fd=self.fd), "wb") as file:
            file.write(content)
            # The umask would apply to a mode that is given to open.
            os.fchmod(file.fileno(), mode)
        try:
            os.rename(fresh, _single(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        # rename replaces a file or a link, but no directory.
        except IsADirectoryError:
            self.remove(name)
            os.rename(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove whatever has this name, including a whole tree. What cannot be removed stays, without an error.

        What is deep, or resists, gives its directories to this one until it is empty, so a deep tree costs no more than
        a wide one.
        """
        if self._swept(_single(name), SWEPT_DEPTH_MAX):
            return
        # A list and no recursion: the depth of the tree is a job's choice.
        rest = [name]
        for _ in range(REMOVING_STEPS_MAX):
            if not rest:
                return
            one = rest[-1]
            moved = [] if self._unlinked(one) else self._emptied(one)
            if moved:
                rest += moved
                continue
            rest.pop()
            with suppress(OSError):
                os.rmdir(one, dir_fd=self.fd)

    def _swept(self, name: str, depth: int) -> bool:
        """Remove what has this name, as far as nothing in it resists and it is no deeper than `depth`; return whether
        it is gone."""
        gone = self._gone(name)
        if gone is not None:
            return gone
        try:
            with self.below(name) as inner:
                # Each level keeps a descriptor open, of which a deep tree would need more than a process may have.
                if not depth or os.fstat(inner.fd).st_dev != os.fstat(self.fd).st_dev:
                    return False
                for one in inner.names():
                    if not inner._swept(one, depth - 1):
                        return False
            os.rmdir(name, dir_fd=self.fd)
        except (OSError, Strange):
            return False
        return True

    def _gone(self, name: str) -> bool | None:
        """Unlink the object of this name. False: that is refused, None: it is a directory."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return True
        except IsADirectoryError:
            return None
        except OSError:
            return False
        return True

    def _unlinked(self, name: str) -> bool:
        """Unlink the object of this name. Return False if it is a directory, or that is refused."""
        gone = self._gone(name)
        # Loosened only when needed: most names of a tree go without it.
        if gone is False:
            self.loosen(name)
            gone = self._gone(name)
        return bool(gone)

    def _emptied(self, name: str) -> list[str]:
        """Unlink the contents of a directory. Its subdirectories are moved into this one; return their new names."""
        self.loosen(name)
        moved = list[str]()
        with suppress(OSError, Strange), self.below(name) as inner:
            if os.fstat(inner.fd).st_dev != os.fstat(self.fd).st_dev:
                return moved  # something is mounted there, which is not ours to remove
            while len(moved) < MOVED_MAX and (names := list(islice(inner.names(), NAMES_MAX))):
                left = [one for one in names if not inner._unlinked(one)]
                given = [fresh for one in left if (fresh := self._taken(one, inner))]
                moved += given
                if len(left) == len(names) and not given:
                    break  # none of these can be removed
        return moved

    def _taken(self, name: str, inner: Directory) -> str:
        """Move a directory in `inner` to this one. Return its new name; empty if that is refused."""
        inner.loosen(name)
        fresh = f".{secrets.token_hex(8)}"
        try:
            os.rename(name, fresh, src_dir_fd=inner.fd, dst_dir_fd=self.fd)
        except OSError:
            return ""
        return fresh

    def loosen(self, name: str) -> None:
        """Remove permissions and attributes that keep us from changing what has this name, and ignore failures."""
        with suppress(OSError), self.held(name) as held:
            mode = os.fstat(held).st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                os.chmod(again(held), 0o700)
            # Removing these flags takes CAP_LINUX_IMMUTABLE. What is neither a directory nor a regular file has none,
            # and opening it might do something.
            if os.geteuid() == 0 and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                _unfasten(held)

    def names(self) -> Iterator[str]:
        """Yield the names as listed; names added meanwhile may be missing."""
        with os.scandir(self.fd) as found:
            for entry in found:
                yield entry.name


def again(held: int) -> str:
    """Return a path to the object of a descriptor, and to nothing else."""
    return f"/proc/self/fd/{held}"


def _single(name: str) -> str:
    """Return a name in a directory.  Raise ValueError if it is anything else."""
    # dir_fd protects nothing from a name that is a path: an absolute one ignores it.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a name in a directory")
    return name


def _unfasten(held: int) -> None:
    """Remove the flags that make a file or directory immutable. Raise OSError."""
    fd = os.open(again(held), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, struct.pack("i", 0)))[0]
        if flags & _HELD_FAST:
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("i", flags & ~_HELD_FAST))
    finally:
        os.close(fd)


def remove(tree: Path) -> None:
    """Remove the whole tree, also what a job made unwritable; ignore what cannot be removed."""
    with suppress(OSError), Directory.at(tree.parent) as parent:
        parent.remove(tree.name)
