"""Read the logs that builds left on the executor's disk, before their upload to the log store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

from headgate.adapters.logs.manifests import FILES_MAX, HEAD_SIZE_BYTES, MEMBER_SIZE_BYTES, OUTPUT, kind_of
from headgate.adapters.work import ownership
from headgate.adapters.work.directory import Directory, Strange, kind, remove, shown
from headgate.base.errors import HeadgateError
from headgate.base.tasks import run_to_end
from headgate.ports.logstore import checked_key

DEPTH_MAX = 40
ENTRIES_MAX = 60_000
LOST_MAX = 100
"""Limit on the lines about files that cannot be stored."""


class UnreadableFile(HeadgateError):
    """Report a file of a build that cannot be stored. The message is shown to users."""


class LocalLogs:
    """Hold the logs of one executor, or of several on one machine; each build is held by one of them until it is
    removed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._holds: dict[str, ExitStack] = {}

    def hold(self, build: str, *, new: bool = False) -> bool:
        """Lock the files of a build, or begin a new one. Return False if another process holds it, or there are no
        files."""
        if build in self._holds:
            return True
        with ExitStack() as stack, suppress(OSError):
            if new:
                (self._root / build).mkdir(parents=True, exist_ok=True)
            # The kernel releases the lock of a dead executor; of several executors that start here, one takes it and
            # uploads the remaining files.
            if stack.enter_context(ownership.left(self._root / build, ours=new)):
                self._holds[build] = stack.pop_all()
                return True
        return False

    def release(self, build: str) -> None:
        if (stack := self._holds.pop(build, None)) is not None:
            stack.close()

    def builds(self) -> list[str]:
        """Return the builds that have files here, oldest first."""
        with suppress(FileNotFoundError), os.scandir(self._root) as entries:
            found = [
                (e.stat(follow_symlinks=False).st_mtime, e.name) for e in entries if e.is_dir(follow_symlinks=False)
            ]
            # Ids of builds are alphanumeric; anything else here was not made by Headgate.
            return [name for _, name in sorted(found) if name.isalnum() and name.isascii()]
        return []

    def remove(self, build: str) -> None:
        remove(self._root / build)
        self.release(build)

    def files(self, build: str) -> tuple[list[str], list[str]]:
        """Return the paths of the build's files that can be stored, its output first, and lines about the other
        files."""
        found, lost = list[str](), list[str]()
        with suppress(FileNotFoundError), Directory.at(self._root) as root, root.below(build) as top:
            # One budget for the complete tree: a build may leave any number of files, and each costs memory and
            # requests.
            left = iter(range(ENTRIES_MAX))
            for path, why in _walked(top, "", left, DEPTH_MAX):
                if why or (why := _refused(build, path, len(found))):
                    lost.append(f"{shown(path)} is not stored: {why}")
                else:
                    found.append(path)
            if next(left, None) is None:
                lost.append(f"there are more than {ENTRIES_MAX} files and directories; the rest is not stored")
        more = [f"{len(lost) - LOST_MAX} more are not stored"] if len(lost) > LOST_MAX else []
        return sorted(found, key=lambda path: (not path.startswith("job-output."), path)), lost[:LOST_MAX] + more

    def kind(self, build: str, path: str) -> tuple[int, str]:
        """Return size and media type.  Raise UnreadableFile."""
        file = self._opened(build, path)
        try:
            return os.fstat(file).st_size, kind_of(path, os.pread(file, HEAD_SIZE_BYTES, 0))
        finally:
            os.close(file)

    async def pieces(self, build: str, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in pieces of MEMBER_SIZE_BYTES.  Raise UnreadableFile."""
        # Closed only after the thread that reads it has ended, even if this task is cancelled: the next file that is
        # opened gets the number of a closed descriptor.
        with ExitStack() as held:
            file = await run_to_end(asyncio.to_thread(self._held, held, build, path))
            while piece := await run_to_end(asyncio.to_thread(_full, file)):
                yield piece

    def _held(self, held: ExitStack, build: str, path: str) -> int:
        """Open a file, and return a descriptor that `held` closes. Raise UnreadableFile."""
        file = self._opened(build, path)
        held.callback(os.close, file)
        return file

    def output(self, build: str, offset: int, size_max_bytes: int) -> bytes:
        """Return the complete lines of the build's output from `offset` on."""
        try:
            file = self._opened(build, OUTPUT)
        except UnreadableFile:
            return b""
        try:
            found = os.pread(file, size_max_bytes, offset)
        finally:
            os.close(file)
        # The last line is still being written if it has no end, unless the part is full: then the next part continues
        # the line.
        return found if len(found) == size_max_bytes else found[: found.rfind(b"\n") + 1]

    def _opened(self, build: str, path: str) -> int:
        *above, name = path.split("/")
        try:
            with (
                Directory.at(self._root) as root,
                root.below(build, *above) as place,
                place.reading(name) as file,
            ):
                return os.dup(file.fileno())
        except (OSError, Strange) as error:
            raise UnreadableFile(str(error.strerror if isinstance(error, OSError) else error)) from error


def _full(file: int) -> bytes:
    """Return a piece of full size, unless the file ends earlier. Raise UnreadableFile."""
    pieces, left = list[bytes](), MEMBER_SIZE_BYTES
    try:
        while left and (piece := os.read(file, left)):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        raise UnreadableFile(error.strerror) from error
    return b"".join(pieces)


def _walked(here: Directory, path: str, left: Iterator[int], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the path of each file, and the reason why it cannot be read, or an empty string."""
    # `islice` before `sorted`, so that memory never holds a directory with millions of names.
    for name in sorted(islice(here.names(), ENTRIES_MAX)):
        if next(left, None) is None:
            return
        found = here.look(name)
        if found is None:
            continue
        full_path = f"{path}{name}"
        match kind(found.st_mode):
            case "a regular file":
                yield full_path, ""
            # Each level holds a descriptor and a frame, so a build cannot exhaust either with a deep tree.
            case "a directory" if depth:
                try:
                    with here.below(name) as inner:
                        yield from _walked(inner, f"{full_path}/", left, depth - 1)
                except (OSError, Strange) as error:
                    yield full_path, str(error)
            case what:
                yield full_path, f"it is {what}" if depth else f"it is more than {DEPTH_MAX} directories deep"


def _refused(build: str, path: str, count: int) -> str:
    try:
        checked_key(f"{build}/{path}")
    except (ValueError, UnicodeEncodeError) as error:
        return str(error) if type(error) is ValueError else "its name is not UTF-8"
    return "" if count < FILES_MAX else f"there are more than {FILES_MAX} files"
