"""Show how two files differ: git compares them once, and writes its output to a file that is read in parts."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple
from weakref import WeakValueDictionary

from headgate.adapters.git.command import GitError, GitImpossible, GitLimits, GitTimeout, git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.gate.state.gitwork import DiffLine, PatchAnswer

LINES_A_PART, PART_MAX_BYTES, LINE_MAX_BYTES = 1_000, 200_000, 1_000
"""A part ends at whichever limit comes first; a longer line is cut."""
PATCH_MAX_BYTES = 128 * 2**20
FILE_MAX_BYTES = 64 * 2**20
"""Size above which files are not compared."""
CACHE_MAX_BYTES = 256 * 2**20
"""Total size of the differences that are cached for one repository."""
LIMITS = GitLimits(timeout_s=30.0, out_max_bytes=2**20, file_max_bytes=PATCH_MAX_BYTES, memory_max_bytes=2**30)
ATTEMPTS_MAX = 3
"""Maximum number of comparisons for one part, if other requests remove the file before it is read."""
INDEXES_MAX = 50
PARTS_MAX = 100_000
PLACE = "headgate-review"
"""Directory of the differences, within the bare repository."""
_HUNK = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
ENDS = f"the difference is larger than {PATCH_MAX_BYTES // 2**20} MB; see the rest with git"


class PatchPart(NamedTuple):
    """Locate a part of a patch."""

    offset: int
    old: int
    """Number of the next line in the file before the change, and in the file after it."""
    new: int


class Patches:
    """Cache the patches of all repositories."""

    def __init__(self) -> None:
        self._marks: OrderedDict[Path, list[PatchPart]] = OrderedDict()
        """File -> the beginnings of its parts, as far as the file has been read."""
        self._making = WeakValueDictionary[Path, asyncio.Lock]()
        """File -> lock, which lasts as long as somebody holds it or waits for it."""

    async def part(self, mirror: MirrorRepository, old: str, new: str, number: int) -> PatchAnswer:
        """Return one part of the difference between two objects. Raise GitError, OSError."""
        if not 0 <= number <= PARTS_MAX:
            raise GitImpossible(("diff",), 1, f"there is no part {number}")
        path = mirror.path / PLACE / f"{old}-{new}"
        # Another request, or another process, may remove the file to make room before it is read.
        for _ in range(ATTEMPTS_MAX - 1):
            with suppress(FileNotFoundError):
                return await self._part(mirror, path, old, new, number)
        return await self._part(mirror, path, old, new, number)

    async def _part(self, mirror: MirrorRepository, path: Path, old: str, new: str, number: int) -> PatchAnswer:
        lock = self._making.setdefault(path, asyncio.Lock())
        async with lock:
            complete = await self._made(mirror, path, old, new)
        return await asyncio.to_thread(self._read, path, number, complete)

    async def _made(self, mirror: MirrorRepository, path: Path, old: str, new: str) -> bool:
        """Compare if the file does not exist; return whether it has the complete difference. Raise GitError,
        OSError."""
        cut = path.with_name(f"{path.name}.cut")
        if path.exists():
            return not cut.exists()
        sides = await asyncio.to_thread(_sides, mirror, old, new)
        path.parent.mkdir(exist_ok=True)
        made = path.with_name(f"{path.name}.new-{os.getpid()}")
        complete = True
        args = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "-U3", f"--output={made}", *sides)
        try:
            await git(*args, at=mirror.path, limits=LIMITS)
        except GitTimeout as error:
            made.unlink(missing_ok=True)
            raise GitImpossible(args, -1, "it takes too long to compare these files here; use git") from error
        except GitError:
            # git dies of SIGXFSZ at the file limit. A file close to the limit was cut there, and its beginning is
            # valid; a smaller one is a real failure.
            if not made.exists() or made.stat().st_size < PATCH_MAX_BYTES - 2**20:
                made.unlink(missing_ok=True)
                raise
            complete = False
            # Do this before the rename: a crash in between leaves a mark without a file, so the files are compared
            # again.
            cut.touch()
        await asyncio.to_thread(_bounded, path.parent)
        made.rename(path)
        return complete

    def _read(self, path: Path, number: int, complete: bool) -> PatchAnswer:
        with open(path, "rb") as file:
            marks = self._marks.get(path)
            if marks is None:
                marks = _begun(file)
                if marks is None:
                    binary = path.stat().st_size > 0
                    return PatchAnswer(True, binary=binary)
                self._marks[path] = marks
                if len(self._marks) > INDEXES_MAX:
                    self._marks.popitem(last=False)
            self._marks.move_to_end(path)
            # A part begins where the one before it ends, so earlier
            # parts must be read once before a later one can be found.
            while len(marks) <= number:
                after = list(_lines(file, marks[-1]))[-1][1]  # reads only the part that was not read yet
                if after.offset == marks[-1].offset or after.offset >= path.stat().st_size:
                    return PatchAnswer(True)
                marks.append(after)
            read = list(_lines(file, marks[number]))
            after, lines = read[-1][1], [line for line, _ in read]
            more = after.offset < path.stat().st_size
            if more and len(marks) == number + 1:
                marks.append(after)
            return PatchAnswer(True, lines=tuple(lines), more=more, ends="" if complete or more else ENDS)


def _sides(mirror: MirrorRepository, old: str, new: str) -> tuple[str, str]:
    """Return the objects to compare; an empty object represents a missing file. Raise GitImpossible."""
    repository, sides = mirror.repository, list[str]()
    for id in (old, new):
        if not id.strip("0"):
            sides.append(str(repository.create_blob(b"")))
            continue
        try:
            _, size = repository.odb.read_header(id)
        except (KeyError, ValueError) as error:
            raise GitImpossible(("diff",), 1, f"the object {id} does not exist") from error
        if size > FILE_MAX_BYTES:
            why = f"a file of {size} bytes is not compared here, at most {FILE_MAX_BYTES}; use git"
            raise GitImpossible(("diff",), 1, why)
        sides.append(id)
    return sides[0], sides[1]


def _bounded(place: Path) -> None:
    """Remove the oldest differences until there is room for one more."""
    found = sorted((one.stat().st_mtime_ns, one.stat().st_size, one) for one in place.iterdir() if one.is_file())
    left = sum(size for _, size, _ in found)
    for _, size, one in found:
        if left <= CACHE_MAX_BYTES - PATCH_MAX_BYTES:
            return
        # Another request is still writing that file.
        if ".new-" not in one.name:
            one.unlink(missing_ok=True)
            left -= size


def _begun(file: IO[bytes]) -> list[PatchPart] | None:
    """Return the offset of the first hunk; None if there is none."""
    while line := file.readline(LINE_MAX_BYTES):
        if line.startswith(b"@@ "):
            return [PatchPart(file.tell() - len(line), 0, 0)]
    return None


def _lines(file: IO[bytes], at: PatchPart) -> Iterator[tuple[DiffLine, PatchPart]]:
    """Yield the lines of one part, each with the offset of the next one."""
    file.seek(at.offset)
    offset, old, new, count = at.offset, at.old, at.new, 0
    while count < LINES_A_PART and offset - at.offset < PART_MAX_BYTES and (raw := file.readline(LINE_MAX_BYTES)):
        count += 1
        size = len(raw)
        shown = raw
        # Skip the rest of an overlong line in pieces, so that a line of 60 MB is never completely in memory.
        while not shown.endswith(b"\n") and (rest := file.readline(2**16)):
            size += len(rest)
            shown = raw if not rest.endswith(b"\n") else raw + b"\n"
        offset += size
        if (hunk := _HUNK.match(raw)) is not None:
            old, new = int(hunk[1]), int(hunk[2])
        kind = raw[:1].decode("ascii", "replace")
        cut = max(0, size - len(shown))
        body = (raw.rstrip(b"\n") if kind in "@\\" else raw[1:].removesuffix(b"\n")).decode(errors="backslashreplace")
        sides = (old if kind in " -" else 0, new if kind in " +" else 0)
        old, new = old + (kind in " -"), new + (kind in " +")
        yield DiffLine(kind, *sides, body, cut), PatchPart(offset, old, new)
