"""The logs of one build in a directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from litestar.exceptions import NotFoundException

from headgate.web.shapes import LogFile

LOG = "job-output.txt"
FILES_MAX = 1_000
"""Of one build, in a list."""

Follow = Callable[[Path, Callable[[], bool], int], AsyncIterator[bytes]]


def inside(root: Path, name: str) -> Path:
    """The file of this name in the build's directory, and nowhere else.  Raises 404."""
    file = (root / name.lstrip("/")).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        raise NotFoundException(f"build {root.name} has no log {name.lstrip('/')!r}")
    return file


async def listed(root: Path, url: str) -> list[LogFile]:
    return await asyncio.to_thread(_listed, root, url)


def _listed(root: Path, url: str) -> list[LogFile]:
    found: list[LogFile] = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.resolve().is_relative_to(root) and len(found) < FILES_MAX:
            name = str(path.relative_to(root))
            found.append(LogFile(name, path.stat().st_size, f"{url}/{quote(name)}"))
    return found


async def output(follow: Follow, root: Path, finished: Callable[[], bool], offset: int) -> AsyncIterator[bytes]:
    """The job's output from `offset` on; below 0: so many bytes from the end."""
    path = root / LOG
    if offset < 0:
        offset = max(0, (path.stat().st_size if path.exists() else 0) + offset)
    async for chunk in follow(path, finished, offset):
        yield chunk
