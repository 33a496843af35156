"""Collect the files that a job leaves for the log store: move them out of the job's reach before trusting them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headgate.adapters.work.directory import Directory, Strange, again, kind, shown
from headgate.base.texts import line

OURS = ("job-output.txt", "job-output.json")
"""Files in a job's directory of logs that are links to the logs themselves."""
FILES_MAX = 50_000
"""Maximum number of files of one build; up to twice as many names are examined."""
DEPTH_MAX = 32
PIECE_SIZE_BYTES = 1_000_000
REMARKS_MAX = 100
"""Maximum number of lines about files that are not collected."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def collect(source: Path, dest: Path, size_max_bytes: int) -> list[str]:
    """Move the regular files below `source`, which the job controls, to `dest`, without overwriting any. Return one
    line for each thing left out. Raise OSError if the disk is full or `dest` cannot be written."""
    dest.mkdir(parents=True, exist_ok=True)
    with Directory.at(source.parent) as top, Directory.at(dest) as place:
        collection = _Collection(os.fstat(top.fd).st_uid, size_max_bytes, size_max_bytes)
        try:
            # A job may have removed all permissions from its directories, which would stop an executor that is not
            # root.
            top.loosen(source.name)
            with top.below(source.name) as logs:
                collection.tree(logs, place, "", DEPTH_MAX)
        except FileNotFoundError:
            return []
        except Strange as strange:
            return [f"The logs are not stored: {strange}"]
    return collection.lines()


@dataclass(slots=True)
class _Collection:
    owner: int
    """User who owns the files of the build."""
    size_max_bytes: int
    left_bytes: int
    left_files: int = FILES_MAX
    left_names: int = 2 * FILES_MAX
    remarks: list[str] = field(default_factory=list)
    remarks_left_out: int = 0

    def lines(self) -> list[str]:
        return (
            [*self.remarks, f"{self.remarks_left_out} more are not stored"] if self.remarks_left_out else self.remarks
        )

    def tree(self, here: Directory, there: Directory, path: str, depth: int) -> None:
        """Collect the files in `here`; `path` is its path in the logs, with a slash at the end."""
        names = []
        for name in here.names():
            if self.left_names <= 0:
                self._not(path, f"there are more than {FILES_MAX} files")
                break
            self.left_names -= 1
            names.append(name)
        # List the names before moving anything, since reading a directory that changes may repeat or skip names.
        for name in sorted(names):
            if path == "" and name in OURS:
                continue
            try:
                self._one(here, there, name, path, depth)
            except OSError as error:
                # A full disk concerns the build and its result; other errors concern only this file.
                if error.errno in _FULL:
                    raise
                self._not(f"{path}{name}", f"it cannot be read ({error.strerror})")

    def _one(self, here: Directory, there: Directory, name: str, path: str, depth: int) -> None:
        found = here.look(name)
        if found is None:
            return
        if why := self._unfit(name, found, depth):
            self._not(f"{path}{name}", why)
        elif stat.S_ISDIR(found.st_mode):
            self._directory(here, there, name, path, depth)
        # The executor's own records are in `there`; a job's file of the same name must not replace them.
        elif there.look(name) is not None:
            self._not(f"{path}{name}", "Headgate uses this name itself")
        elif why := self._taken(here, there, name, found):
            self._not(f"{path}{name}", why)
        else:
            self.left_bytes -= found.st_size
            self.left_files -= 1

    def _directory(self, here: Directory, there: Directory, name: str, path: str, depth: int) -> None:
        here.loosen(name)
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=there.fd)
        try:
            # The job's path a/b may be a directory while ours is a file; `below` refuses anything but a directory.
            with here.below(name) as source, there.below(name) as place:
                self.tree(source, place, f"{path}{name}/", depth - 1)
            os.rmdir(name, dir_fd=there.fd)  # succeeds only if nothing was moved there
        except Strange as strange:
            self._not(f"{path}{name}", str(strange))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _unfit(self, name: str, found: os.stat_result, depth: int) -> str:
        """Return why the object cannot be stored; empty if it can."""
        directory = stat.S_ISDIR(found.st_mode)
        if not directory and not stat.S_ISREG(found.st_mode):
            return f"it is {kind(found.st_mode)}, not a regular file"
        if line(name) != name:
            return "its name has characters that cannot be shown"
        if directory:
            return "" if depth > 1 else f"it is more than {DEPTH_MAX} directories deep"
        # A user may link to a file without permission to read it, and the executor would publish it.
        if found.st_nlink > 1 and found.st_uid != self.owner:
            return "it is a link to another user's file"
        if found.st_size > self.left_bytes:
            limit = f"{self.size_max_bytes / 1_000_000:g} MB"
            return f"its {found.st_size} bytes would exceed the limit of {limit}"
        return "" if self.left_files > 0 else f"there are more than {FILES_MAX} files"

    def _taken(self, here: Directory, there: Directory, name: str, found: os.stat_result) -> str:
        """Move a file out of the job's reach, under a random name, and then examine it again, since the job may have
        replaced it after the first check.  Return why it was not stored; empty if it was."""
        # The final name appears only after the check, so that readers of the logs never see an unchecked file.
        fresh = f".{secrets.token_hex(8)}"
        try:
            if found.st_nlink > 1:  # the job could still write to it under its other name
                _copied(here, name, there, fresh, found)
            else:
                _moved(here, name, there, fresh, found)
            now = there.look(fresh)
            if now is None or not stat.S_ISREG(now.st_mode) or now.st_nlink > 1 or now.st_size > self.left_bytes:
                return "it changed during the move"
            os.rename(fresh, name, src_dir_fd=there.fd, dst_dir_fd=there.fd)
            return ""
        except Strange as strange:
            return str(strange)
        finally:
            there.remove(fresh)

    def _not(self, path: str, why: str) -> None:
        if len(self.remarks) < REMARKS_MAX:
            self.remarks.append(f"{shown(path)} is not stored: {why}")
        else:
            self.remarks_left_out += 1


def _moved(here: Directory, name: str, there: Directory, fresh: str, found: os.stat_result) -> None:
    """Move a file, or copy it to another file system.  Raise Strange, OSError."""
    try:
        os.rename(name, fresh, src_dir_fd=here.fd, dst_dir_fd=there.fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copied(here, name, there, fresh, found)
        return
    with there.held(fresh) as file:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise Strange(f"it is now {kind(mode)}, not a regular file")
        if os.fstat(file).st_uid != os.geteuid():
            os.chown(again(file), os.geteuid(), os.getegid())
        # Leave no setuid bits, no write permission for others, and nothing executable.
        os.chmod(again(file), 0o600 | mode & 0o044)


def _copied(here: Directory, name: str, there: Directory, fresh: str, found: os.stat_result) -> None:
    """Copy the file unchanged, up to its size when it was examined. Raise Strange, OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with here.reading(name) as source, open(os.open(fresh, flags, 0o644, dir_fd=there.fd), "wb") as place:
        # The name may now belong to another file, whose size and links were not checked.
        if not os.path.samestat(os.fstat(source.fileno()), found):
            raise Strange("it changed during the move")
        left_bytes = found.st_size
        # A job that still runs could append forever; only the size at the check counts against the limit.
        while left_bytes > 0 and (piece := source.read(min(left_bytes, PIECE_SIZE_BYTES))):
            place.write(piece)
            left_bytes -= len(piece)
