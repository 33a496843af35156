"""The logs of one build in a directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from headgate.rest import NotFoundException
from headgate.services.context import Context
from headgate.web.shapes import LogFile

LOG = "job-output.txt"
FILES_MAX = 1_000
"""Limit on the files of one build in a list."""
ENTRIES_MAX = 10_000
"""Limit on the directory entries that are read to make the list."""

Follow = Callable[[Path, Callable[[], bool], int], AsyncIterator[bytes]]


def inside(root: Path, name: str) -> Path:
    """Return the path of the file of this name, which lies in the build's directory. Raise 404."""
    try:
        file = (root / name.lstrip("/")).resolve()
        # Compared after links are resolved: `..` and links that a job left must not lead out of its directory.
        known = file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError, RuntimeError):  # a name that is too long, or links in a circle
        known = False
    if not known:
        raise NotFoundException(f"build {root.name} has no log {name.lstrip('/')!r}")
    return file


async def listed(root: Path, url: str) -> list[LogFile]:
    """Return the files of a job, within the limits on examined and listed ones; no link is followed. Raise 404 when its
    logs are gone.
    """
    return await asyncio.to_thread(_listed, root, url)


def _listed(root: Path, url: str) -> list[LogFile]:
    found: list[LogFile] = []
    waiting, looked_at = [root], 0
    while waiting and looked_at < ENTRIES_MAX and len(found) < FILES_MAX:
        try:
            with os.scandir(waiting.pop()) as inside:
                # The scan itself is bounded: a job can leave more names in one directory than fit into memory.
                entries = sorted(islice(inside, ENTRIES_MAX - looked_at), key=lambda entry: entry.name)
        except FileNotFoundError:  # logs are removed when they are old
            entries = []
            if not looked_at:
                raise NotFoundException(f"the logs of build {root.name} are no longer kept") from None
        looked_at += len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                name = _plain(str(Path(entry.path).relative_to(root)))
                with suppress(FileNotFoundError):
                    found.append(LogFile(name, entry.stat(follow_symlinks=False).st_size, f"{url}/{quote(name)}"))
    return sorted(found[:FILES_MAX], key=lambda file: file.path)


def _plain(name: str) -> str:
    """Replace what JSON cannot say in a name."""
    return name.encode(errors="replace").decode()


async def output(follow: Follow, root: Path, finished: Callable[[], bool], offset: int) -> AsyncIterator[bytes]:
    """Yield the job's output from `offset` on; a negative offset counts bytes from the end."""
    path = root / LOG
    if offset < 0:
        offset = max(0, (path.stat().st_size if path.exists() else 0) + offset)
    async for chunk in follow(path, finished, offset):
        yield chunk


def over(context: Context, build: str) -> Callable[[], bool]:
    """Return a function that says whether no executor runs the build any more."""

    def gone() -> bool:
        paths = (queue.places.requests for queue in context.zones())
        return all(context.mirror.get(f"{path}/{build}") is None for path in paths)

    return gone
