"""Hold directories that a job can write by descriptors, so that no link is followed and no special file is opened.

Each name is looked up in an open directory, one component at a time, so a job that renames or replaces directories
in the meantime cannot redirect the access.  Only regular files are read, without blocking.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from headgate.base.errors import HeadgateError
from headgate.base.texts import line

NAME_SHOWN_MAX = 200
REMOVING_STEPS_MAX = 50_000_000
"""Maximum number of directories that are visited while a tree is removed: more than a file system has."""
NAMES_MAX = 1_000
"""Names of one directory that are read at a time."""
SWEPT_DEPTH_MAX = 50
"""Depth of nested directories that are held open at the same time."""
MOVED_MAX = 10_000
"""Maximum number of subdirectories that are moved out of a directory before they are removed."""
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that a job created must not wait for a writer.
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


class Strange(HeadgateError):
    """Report that a place contains something unexpected; the message is shown to users."""


def shown(name: str) -> str:
    """Return a name that a job chose in a form that is safe to show."""
    return line(name, NAME_SHOWN_MAX)


def kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


class Directory:
    """Represent an open directory. All methods take names in it, never paths."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name = fd, name

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Iterator[Directory]:
        """Open a directory of ours, none of whose parents anybody else can rename. Raise OSError."""
        # Follow a link here, since the operator may have replaced a directory of ours with one.
        fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            yield cls(fd, path.name)
        finally:
            os.close(fd)

    @contextmanager
    def below(self, *names: str) -> Iterator[Directory]:
        """Open `names` one after the other, each in the directory before it, and provide the last one.  Raise Strange,
        FileNotFoundError, OSError."""
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
                raise Strange(f"{shown(name)} is {kind(found.st_mode)}, not a directory") from error
            if isinstance(error, NotADirectoryError):
                raise Strange(f"{shown(name)} was replaced while it was opened") from error
            raise

    def look(self, name: str) -> os.stat_result | None:
        """Return the status of the object with this name, without following a link; None if there is none."""
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
        """Provide a descriptor of the object with this name, without opening it for access. Raise OSError."""
        fd = os.open(_single(name), _HOLD, dir_fd=self.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """Provide the regular file with this name.  Raise Strange, OSError."""
        with self.held(name) as held:
            mode = os.fstat(held).st_mode
            if not stat.S_ISREG(mode):
                raise Strange(f"{shown(name)} is {kind(mode)}, not a regular file")
            # Open it by its descriptor: a second lookup of the name could find a pipe or a device instead of the
            # object that was checked.
            with open(os.open(again(held), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                yield file

    def read(self, name: str, size_max_bytes: int) -> bytes | None:
        """Return the content of the regular file with this name, or its first `size_max_bytes` + 1 bytes; None if it
        does not exist. Raise Strange, OSError."""
        try:
            with self.reading(name) as file:
                return file.read(size_max_bytes + 1)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, mode: int = 0o600) -> None:
        """Write a new file that replaces whatever has this name. Raise OSError."""
        fresh = f".{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(fresh, flags, 0o600, dir_fd=self.fd), "wb") as file:
            file.write(content)
            # The umask would restrict a mode that is passed to open.
            os.fchmod(file.fileno(), mode)
        try:
            os.rename(fresh, _single(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        # rename replaces a file or a link, but not a directory.
        except IsADirectoryError:
            self.remove(name)
            os.rename(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove whatever has this name, even a tree. What cannot be removed stays, without an error.

        If a tree is deep or resists, its subdirectories are moved to this directory and emptied there, so that a deep
        tree costs no more than a wide one.
        """
        if self._swept(_single(name), SWEPT_DEPTH_MAX):
            return
        # Use a list instead of recursion, since a job chooses the depth of the tree.
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
        """Remove what has this name, unless something in it resists or it is deeper than `depth`; return whether it
        is gone.
        """
        gone = self._gone(name)
        if gone is not None:
            return gone
        try:
            with self.below(name) as inner:
                # Each level keeps a descriptor open; a very deep tree would need more than a process may have.
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
        """Unlink the object with this name, and return True. Return False if that is refused, None if it is a
        directory."""
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
        """Unlink the object with this name. Return False if it is a directory, or if that is refused."""
        gone = self._gone(name)
        # Loosen it only when needed: most objects of a tree can be removed without that.
        if gone is False:
            self.loosen(name)
            gone = self._gone(name)
        return bool(gone)

    def _emptied(self, name: str) -> list[str]:
        """Unlink the contents of a directory, and move its subdirectories into this one; return their new names."""
        self.loosen(name)
        moved = list[str]()
        with suppress(OSError, Strange), self.below(name) as inner:
            if os.fstat(inner.fd).st_dev != os.fstat(self.fd).st_dev:
                return moved  # a file system is mounted there, which is not ours
            while len(moved) < MOVED_MAX and (names := list(islice(inner.names(), NAMES_MAX))):
                left = [one for one in names if not inner._unlinked(one)]
                given = [fresh for one in left if (fresh := self._taken(one, inner))]
                moved += given
                if len(left) == len(names) and not given:
                    break  # none of these can be removed
        return moved

    def _taken(self, name: str, inner: Directory) -> str:
        """Move a directory from `inner` to this one. Return its new name; empty if that is refused."""
        inner.loosen(name)
        fresh = f".{os.urandom(8).hex()}"
        try:
            os.rename(name, fresh, src_dir_fd=inner.fd, dst_dir_fd=self.fd)
        except OSError:
            return ""
        return fresh

    def loosen(self, name: str) -> None:
        """Change permissions and attributes that protect the object with this name from us; ignore failures."""
        with suppress(OSError), self.held(name) as held:
            mode = os.fstat(held).st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                os.chmod(again(held), 0o700)
            # Removing these flags needs CAP_LINUX_IMMUTABLE. Only directories and regular files have them, and opening
            # anything else may have side effects.
            if os.geteuid() == 0 and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                _unfasten(held)

    def names(self) -> Iterator[str]:
        """Yield the names in this directory; names that are added in the meantime may be missing."""
        with os.scandir(self.fd) as found:
            for entry in found:
                yield entry.name


def again(held: int) -> str:
    """Return a path that always leads to the object of a descriptor."""
    return f"/proc/self/fd/{held}"


def _single(name: str) -> str:
    """Return a name in a directory.  Raise ValueError if it is anything else."""
    # dir_fd does not protect against a name that is a path: an absolute path ignores it.
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
    """Remove the entire tree, even parts that a job made unwritable; ignore what cannot be removed."""
    with suppress(OSError), Directory.at(tree.parent) as parent:
        parent.remove(tree.name)
