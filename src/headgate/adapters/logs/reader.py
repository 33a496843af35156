"""Read logs from the log store, including those that are not uploaded completely."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from headgate.adapters.logs import manifests
from headgate.ports.logstore import LogStore, LogStoreError, NotStored

log = logging.getLogger("headgate.logs")

GZIP_HEADER_BYTES = 10
"""Length of the gzip header, which precedes the first piece."""
KNOWN_MAX = 16
"""Number of records that are cached; only complete ones are, because they rarely change."""

Read = Callable[[int, int], AsyncGenerator[bytes, None]]
"""(start, end) -> the bytes from start to before end; raises NotStored or LogStoreError before the first piece."""


@dataclass(frozen=True, slots=True)
class Content:
    """Represent one file, of which any range can be read."""

    size_bytes: int
    kind: str
    """Media type."""
    tag: str
    """Identifies the content; empty while the file grows."""
    read: Read
    packed: Read | None = None
    """Reads the stored bytes, compressed with gzip; None if the file is stored uncompressed."""
    packed_bytes: int = 0


class StoredLogs:
    """Read the stored logs of all builds. Raise LogStoreError."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known = OrderedDict[str, manifests.Manifest]()

    async def of(self, build: str) -> manifests.Manifest | None:
        """Return the record of a build's stored files, or None if there is none."""
        known = self._known.get(build)
        if known is not None:
            self._known.move_to_end(build)
            return known
        content = b""
        try:
            async for piece in self._store.read(manifests.manifest_key(build)):
                content += piece
                if len(content) > manifests.SIZE_MAX_BYTES:
                    raise LogStoreError(f"the record of build {build} is larger than {manifests.SIZE_MAX_BYTES} bytes")
            found = manifests.parsed(content)
        except NotStored:
            return None
        except ValueError as error:
            log.error("the record of the logs of build %s cannot be read: %s", build, error)
            return None
        # An incomplete record changes with every part, and a build that ends replaces it.
        if found.complete:
            self._known[build] = found
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return found

    def file(self, manifest: manifests.Manifest, path: str) -> Content | None:
        """Return one file of a build. An incomplete build has only its output so far, with a note that the rest is
        missing, and the output of earlier runs."""
        if path == manifests.OUTPUT and not manifest.complete:
            return self._parts(manifest)
        file = manifest.file(path)
        return self._file_content(manifest.build, file) if file is not None else None

    def _file_content(self, build: str, file: manifests.StoredFile) -> Content:
        key = manifests.file_key(build, file.path)
        stored = partial(self._store.read, key)
        if not file.members:
            return Content(file.size_bytes, file.kind, file.digest, stored)
        read = partial(self._unpacked, key, file.members, manifests.member_sizes(file))
        return Content(file.size_bytes, file.kind, file.digest, read, stored, sum(file.members))

    def _parts(self, manifest: manifests.Manifest) -> Content:
        build, sizes = manifest.build, [part.size_bytes for part in manifest.parts]
        keys = [manifests.part_key(build, number) for number in range(len(sizes))]
        warning = f"{missing(manifest)}\n".encode()

        async def read(start: int, end: int) -> AsyncGenerator[bytes, None]:
            # The warning is served like one more part, so that ranges and sizes match the content that readers get.
            for number, low, high in manifests.spans([*sizes, len(warning)], start, end):
                if number == len(sizes):
                    yield warning[low:high]
                    continue
                packed = await self._stored(keys[number], 0, manifest.parts[number].stored_bytes)
                yield (await _unpacked(keys[number], zlib.MAX_WBITS + 16, packed, sizes[number]))[low:high]

        return Content(sum(sizes) + len(warning), manifests.TEXT, "", read)

    async def _unpacked(
        self, key: str, stored: tuple[int, ...], sizes: list[int], start: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        for number, low, high in manifests.spans(sizes, start, end):
            # Every piece ends with a full flush, at a byte boundary and with an empty window, so each is a raw deflate
            # stream. The first piece follows the gzip header, and the checksum after the last one is ignored.
            at, head = sum(stored[:number]), 0 if number else GZIP_HEADER_BYTES
            packed = await self._stored(key, at + head, at + stored[number])
            yield (await _unpacked(key, -zlib.MAX_WBITS, packed, sizes[number]))[low:high]

    async def _stored(self, key: str, start: int, end: int) -> bytes:
        return b"".join([piece async for piece in self._store.read(key, start, end)])


async def cut(content: Content) -> AsyncGenerator[bytes, None]:
    """Yield the content in pieces of `MEMBER_SIZE_BYTES`, the last of which may be shorter.  Raise LogStoreError."""
    for start in range(0, content.size_bytes, manifests.MEMBER_SIZE_BYTES):
        end = min(start + manifests.MEMBER_SIZE_BYTES, content.size_bytes)
        yield b"".join([piece async for piece in content.read(start, end)])


async def _unpacked(key: str, kind: int, packed: bytes, size: int) -> bytes:
    """Decompress a piece, and check that it has this size, without reading more than that. Raise LogStoreError."""
    try:
        # One byte more than expected reveals a piece that is too long, without unpacking all of a compression bomb.
        found = await asyncio.to_thread(zlib.decompressobj(kind).decompress, packed, size + 1)
    except zlib.error as error:
        raise LogStoreError(f"{key} is damaged: {error}") from error
    if len(found) != size:
        raise LogStoreError(f"{key} is damaged: a piece does not have its {size} bytes")
    return found


def missing(manifest: manifests.Manifest) -> str:
    """Return a one-line message about incomplete logs; empty if they are complete."""
    if manifest.complete:
        return "; ".join(manifest.lost)
    return (
        f"-- {manifest.host or 'the executor'} stopped before it stored the rest: later output and other files of the "
        "build are missing --"
    )
