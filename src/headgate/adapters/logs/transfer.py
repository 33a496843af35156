"""Read the records of all logs from a log store, and put them into another one that lacks them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice

from headgate.adapters.logs import manifests
from headgate.base.texts import line
from headgate.ports.logstore import LogStore, LogStoreError, NotStored, checked_key

TOGETHER = 8
"""Records that are read or written at once, and so are in memory."""
_KIND = re.compile(r"[\w.+-]+/[\w.+-]+(; charset=[\w-]+)?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}|")

Record = tuple[str, bytes]
"""Id of a build, and its record as JSON."""


async def records(store: LogStore) -> AsyncGenerator[Record, None]:
    """Yield the record of each build; what cannot be read as one is left out. Raise LogStoreError."""
    waiting: list[str] = []
    async for one in store.keys(manifests.RECORDS):
        waiting.append(manifests.build_of(one.key)[0])
        if len(waiting) == TOGETHER:
            for record in await _read(store, waiting):
                yield record
            waiting = []
    for record in await _read(store, waiting):
        yield record


async def _read(store: LogStore, builds: Sequence[str]) -> list[Record]:
    async def one(build: str) -> Record | None:
        content = b""
        try:
            async for piece in store.read(manifests.manifest_key(build)):
                content += piece
                if len(content) > manifests.SIZE_MAX_BYTES:
                    return None
            return build, manifests.written(fitting(build, content))
        except (NotStored, ValueError):  # removed meanwhile, or not written by Headgate
            return None

    return [found for found in await asyncio.gather(*map(one, builds)) if found is not None]


async def put_back(store: LogStore, found: Iterable[Record]) -> int:
    """Put the records of builds of which the store has none, and return their number. Raise LogStoreError, also for a
    record that readers could not use."""
    count, left = 0, iter(found)
    while some := list(islice(left, TOGETHER)):
        count += sum(await asyncio.gather(*(_put(store, build, content) for build, content in some)))
    return count


async def _put(store: LogStore, build: str, content: bytes) -> bool:
    try:
        manifest = fitting(build, content)
    except ValueError as error:
        raise LogStoreError(
            f"the record of logs of {line(build)} is not one of Headgate: {line(str(error))}"
        ) from error
    key = manifests.manifest_key(build)
    # What is there may be newer: a build that ran on, or artifacts that were removed.
    if await store.look(key) is not None:
        return False

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield manifests.written(manifest)

    await store.put(key, pieces(), kind="application/json")
    return True


def fitting(build: str, content: bytes) -> manifests.Manifest:
    """Decode the record of a build. Raise ValueError for anything that a reader could not use, since a file may come
    from anywhere."""
    found = manifests.parsed(content)
    if found.build != build or manifests.build_of(manifests.file_key(build, "x")) != (build, "x"):
        raise ValueError("its id is another one")
    if len(found.files) > manifests.FILES_MAX:
        raise ValueError("it has too many files")
    for file in found.files:
        checked_key(manifests.file_key(build, file.path))
        if not _KIND.fullmatch(file.kind) or not _DIGEST.fullmatch(file.digest):
            raise ValueError(f"{file.path} has a type or a digest that is none")
        sizes = manifests.member_sizes(file)
        if min(file.size_bytes, *file.members, *sizes, 0) < 0 or max(sizes, default=0) > manifests.MEMBER_SIZE_BYTES:
            raise ValueError(f"{file.path} has a size that is none")
    if any(min(part.size_bytes, part.stored_bytes) < 0 for part in found.parts):
        raise ValueError("a part has a size that is none")
    if not all(text.isprintable() for text in (found.host, *found.lost)):
        raise ValueError("it has text that is not printable")
    return found
