"""Copy the records of all builds from one log store to another one that lacks them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice

from headgate.adapters.logs import manifests
from headgate.base.texts import line
from headgate.ports.logstore import LogStore, LogStoreError, NotStored, checked_key

TOGETHER = 8
"""Number of records that are read or written concurrently, and that memory holds."""
_KIND = re.compile(r"[\w.+-]+/[\w.+-]+(; charset=[\w-]+)?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}|")

Record = tuple[str, bytes]
"""Id of a build, and its record as JSON."""


async def records(store: LogStore) -> AsyncGenerator[Record, None]:
    """Yield the record of each build; skip records that are damaged or not from Headgate. Raise LogStoreError."""
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
        except (NotStored, ValueError):  # removed in the meantime, or not written by Headgate
            return None

    return [found for found in await asyncio.gather(*map(one, builds)) if found is not None]


async def put_back(store: LogStore, found: Iterable[Record]) -> int:
    """Store the records of builds that have none in the store, and return how many were stored. Raise LogStoreError,
    also for a record that readers could not use."""
    count, left = 0, iter(found)
    while some := list(islice(left, TOGETHER)):
        count += sum(await asyncio.gather(*(_put(store, build, content) for build, content in some)))
    return count


async def _put(store: LogStore, build: str, content: bytes) -> bool:
    try:
        manifest = fitting(build, content)
    except ValueError as error:
        raise LogStoreError(f"the log record of build {line(build)} is not valid: {line(str(error))}") from error
    key = manifests.manifest_key(build)
    # An existing record may be newer: the build may have continued, or its artifacts may have been removed.
    if await store.look(key) is not None:
        return False

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield manifests.written(manifest)

    await store.put(key, pieces(), kind="application/json")
    return True


def fitting(build: str, content: bytes) -> manifests.Manifest:
    """Decode the record of a build. Raise ValueError for anything that a reader could not use, because the file may
    come from anywhere."""
    found = manifests.parsed(content)
    if found.build != build or manifests.build_of(manifests.file_key(build, "x")) != (build, "x"):
        raise ValueError("it has the id of another build")
    if len(found.files) > manifests.FILES_MAX:
        raise ValueError("it has too many files")
    for file in found.files:
        checked_key(manifests.file_key(build, file.path))
        if not _KIND.fullmatch(file.kind) or not _DIGEST.fullmatch(file.digest):
            raise ValueError(f"{file.path} has an invalid type or digest")
        sizes = manifests.member_sizes(file)
        if min(file.size_bytes, *file.members, *sizes, 0) < 0 or max(sizes, default=0) > manifests.MEMBER_SIZE_BYTES:
            raise ValueError(f"{file.path} has an invalid size")
    if any(min(part.size_bytes, part.stored_bytes) < 0 for part in found.parts):
        raise ValueError("a part has an invalid size")
    if not all(text.isprintable() for text in (found.host, *found.lost)):
        raise ValueError("it has text that is not printable")
    return found
