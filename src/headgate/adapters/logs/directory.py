"""Store logs in a directory, which several machines may share."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from itertools import islice
from pathlib import Path

from headgate.adapters.work.directory import Directory, Strange
from headgate.base.tasks import run_to_end
from headgate.ports.logstore import LogStoreError, NotStored, StoredLog, checked_key

CHUNK_SIZE_BYTES = 262_144
LISTED_AT_A_TIME = 1_000
WRITING = ".writing-"
"""Prefix of the names of incomplete files."""
WRITING_MAX_S = 86_400
"""Age above which an incomplete file must come from a crash; it is then listed, so that it can be removed."""


class LogDirectory:
    """Store logs in a directory; see `ports.logstore.LogStore`.  Links below `root` are never followed.  `mode`: mode
    of new directories."""

    encodes = False

    def __init__(self, root: Path, mode: int = 0o700) -> None:
        self.root, self._mode = root, mode

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        """Write the content to a temporary file and rename it; see `LogStore.put`. The kind is not stored."""
        *above, name = checked_key(key).split("/")
        fresh = f"{WRITING}{secrets.token_hex(8)}"
        with ExitStack() as held:
            with _translated(key):
                # The temporary file is next to its target, because a rename is atomic only within one file system.
                place = await run_to_end(asyncio.to_thread(self._made, held, above))
                file = await run_to_end(asyncio.to_thread(self._fresh, held, place, fresh))
            async for piece in content:
                with _translated(key):
                    await run_to_end(asyncio.to_thread(_write, file, piece))
            with _translated(key):
                # Synced before the rename: otherwise a crash of the machine could leave an empty file under the final
                # name.
                await run_to_end(asyncio.to_thread(_settle, file.fileno()))
                file.close()
                os.replace(fresh, name, src_dir_fd=place.fd, dst_dir_fd=place.fd)

    def _made(self, held: ExitStack, above: list[str]) -> Directory:
        """Create the directories if necessary, and return the last one, which `held` closes. Raise OSError, Strange."""
        with suppress(FileExistsError):
            self.root.mkdir(self._mode, parents=True)
        # One by one, because `mkdir(parents=True)` follows links, and gives intermediate directories the default mode.
        with ExitStack() as passed:
            here = passed.enter_context(Directory.at(self.root))
            for name in above:
                with suppress(FileExistsError):
                    os.mkdir(name, self._mode, dir_fd=here.fd)
                here = passed.enter_context(here.below(name))
            return held.enter_context(here.below())

    def _fresh(self, held: ExitStack, place: Directory, name: str) -> FileIO:
        """Create a file that `held` closes, and removes unless it was renamed. Raise OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = FileIO(os.open(name, flags, 0o600 | self._mode & 0o044, dir_fd=place.fd), "w")
        held.callback(_discard, file, place, name)
        return file

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield a range of a file; see `LogStore.read`."""
        *above, name = checked_key(key).split("/")
        with ExitStack() as held:
            try:
                file = await run_to_end(asyncio.to_thread(self._opened, held, above, name))
            except (FileNotFoundError, NotADirectoryError, Strange) as error:
                raise NotStored(f"there is no {key}") from error
            except OSError as error:
                raise LogStoreError(f"{key} cannot be read: {error.strerror}") from error
            at = start
            while end is None or at < end:
                most = CHUNK_SIZE_BYTES if end is None else min(CHUNK_SIZE_BYTES, end - at)
                with _translated(key):
                    piece = await run_to_end(asyncio.to_thread(os.pread, file, most, at))
                if not piece:
                    return
                at += len(piece)
                yield piece

    def _opened(self, held: ExitStack, above: list[str], name: str) -> int:
        """Open a file, and return a descriptor that `held` closes. Raise OSError, Strange."""
        with Directory.at(self.root) as root, root.below(*above) as place, place.reading(name) as file:
            descriptor = os.dup(file.fileno())
        held.callback(os.close, descriptor)
        return descriptor

    async def look(self, key: str) -> StoredLog | None:
        """Return size and time of a file; see `LogStore.look`."""
        *above, name = checked_key(key).split("/")

        def looked() -> os.stat_result | None:
            with Directory.at(self.root) as root, root.below(*above) as place:
                return place.look(name)

        try:
            found = await asyncio.to_thread(looked)
        except (FileNotFoundError, NotADirectoryError, Strange):
            return None
        except OSError as error:
            raise LogStoreError(f"{key} cannot be examined: {error.strerror}") from error
        return _stored(key, found) if found is not None else None

    async def keys(self, prefix: str = "") -> AsyncIterator[StoredLog]:
        """Yield the files below a prefix; see `LogStore.keys`."""
        found = self._walked(checked_key(prefix) if prefix else "")
        while True:
            with _translated(prefix):
                some = await asyncio.to_thread(lambda: list(islice(found, LISTED_AT_A_TIME)))
            for one in some:
                yield one
            if not some:
                return

    def _walked(self, prefix: str) -> Iterator[StoredLog]:
        waiting = [prefix]
        while waiting:
            place = waiting.pop()
            with (
                suppress(FileNotFoundError, NotADirectoryError, Strange),
                Directory.at(self.root) as root,
                root.below(*place.split("/") if place else ()) as here,
                os.scandir(here.fd) as entries,
            ):
                for entry in entries:
                    key = f"{place}/{entry.name}" if place else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(key)
                    elif (found := _listed(entry, key)) is not None:
                        yield found

    async def delete(self, keys: Collection[str]) -> None:
        """Delete files, and directories that become empty; see `LogStore.delete`."""
        for key in keys:
            with _translated(key):
                await asyncio.to_thread(self._delete, checked_key(key).split("/"))

    def _delete(self, parts: list[str]) -> None:
        """Delete the file and the directories above that are empty. Raise OSError."""
        *above, name = parts
        try:
            with Directory.at(self.root) as root, root.below(*above) as place:
                os.unlink(name, dir_fd=place.fd)
        except (FileNotFoundError, Strange):
            pass
        with suppress(OSError, Strange), Directory.at(self.root) as root:
            for depth in range(len(above), 0, -1):
                with root.below(*above[: depth - 1]) as place:
                    os.rmdir(above[depth - 1], dir_fd=place.fd)  # the first one that is not empty ends the loop


def _listed(entry: os.DirEntry[str], key: str) -> StoredLog | None:
    """Return the entry as a stored file; None if it is incomplete, or not a file that Headgate stored. Raise
    OSError."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    writing = entry.name.startswith(WRITING) and time.time() - found.st_mtime < WRITING_MAX_S
    if writing or not entry.is_file(follow_symlinks=False):
        return None
    try:
        return _stored(checked_key(key), found)
    except ValueError:  # Headgate never uses such a name
        return None


def _discard(file: FileIO, place: Directory, name: str) -> None:
    file.close()
    # After the rename, this name no longer exists; otherwise the file is incomplete.
    with suppress(OSError):
        os.unlink(name, dir_fd=place.fd)


def _stored(key: str, found: os.stat_result) -> StoredLog:
    return StoredLog(key, found.st_size, found.st_mtime_ns // 1_000_000)


def _write(file: FileIO, piece: bytes) -> None:
    """Write the complete piece. Raise OSError."""
    # A disk with too little space accepts the beginning of a piece, and refuses only the next write.
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]


def _settle(file: int) -> None:
    """Force a file to the disk, so that a crash of the machine does not lose it."""
    os.fsync(file)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogStoreError(f"{key}: {error.strerror or error}") from error
    except Strange as error:
        raise LogStoreError(f"{key}: {error}") from error
