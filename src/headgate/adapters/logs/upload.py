"""Upload logs from an executor's disk to the log store: in parts while a build runs, completely once it has ended."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest

from headgate.adapters.logs import manifests
from headgate.adapters.logs.local import LocalLogs, UnreadableFile
from headgate.adapters.logs.reader import StoredLogs, cut
from headgate.base.tasks import end, run_until
from headgate.ports.logstore import LogStore, LogStoreError, NotStored

log = logging.getLogger("headgate.logs")

UPLOADS_MAX = 4
"""Limit on the builds that are uploaded concurrently."""
FILES_AT_ONCE = 4
"""Number of files of one build that are uploaded concurrently."""
PART_SIZE_MAX_BYTES = 8_000_000
PARTS_PER_PACE = 100
"""Number of parts after which the interval between two parts of a build doubles."""
PARTS_MAX = 1_000
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 300.0
LOOK_AGAIN_S = 30.0
"""Pause before another check of an interrupted build that another process runs."""
LOCAL_AFTER_UPLOAD_S = 600.0
"""Time for which uploaded logs stay on the disk, so that current readers are not interrupted."""
DRAIN_MAX_S = 60.0
"""Time limit for the last uploads of an executor that shuts down."""
LEVEL = 6


@dataclass(slots=True)
class _Due:
    """Represent a build that has ended here, and the next step of its upload."""

    at_s: float
    """Time of the next step, by the event loop's clock."""
    ran: bool
    """Whether this process ran the build to its end; an interrupted build may run again elsewhere, so its logs are
    incomplete."""
    here: bool
    """Whether this process began the build; otherwise an earlier process did, which may have stored parts."""
    lost: tuple[manifests.StoredFile, ...] | None = None
    """Output of earlier runs; see `_Parts`."""
    tries: int = 0
    stored: bool = False


@dataclass(slots=True)
class _Parts:
    """Track how much of the output of a running build is in the store."""

    offset: int = 0
    parts: list[manifests.OutputPart] = field(default_factory=list)
    lost: tuple[manifests.StoredFile, ...] | None = None
    """Output of earlier runs on lost executors; None until the store has been searched for it."""


class Uploads:
    """Upload the logs of builds; see `ports.logstore.Following`. `run` does the work, and `close` the last uploads."""

    def __init__(
        self,
        local: LocalLogs,
        store: LogStore,
        now_ms: Callable[[], int],
        *,
        host: str,
        interval_s: float,
        running: Callable[[str], bool] = lambda build: False,
    ) -> None:
        """Create an uploader. `interval_s` is the shortest interval between two parts of a build's output; `running`
        returns whether an executor runs a build or is going to."""
        self._local, self._store, self._now_ms = local, store, now_ms
        self._host, self._interval_s, self._running = host, interval_s, running
        self._due = dict[str, _Due]()
        self._busy = dict[str, asyncio.Task[None]]()
        self._following = set[str]()
        self._stir = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Return the number of ended builds that are not in the store yet."""
        return sum(due.ran and not due.stored for due in self._due.values())

    @asynccontextmanager
    async def following(self, build: str) -> AsyncIterator[None]:
        """Store parts of the output while the context lasts, and queue the upload of all files at its end; see
        `Following.following`."""
        self._following.add(build)
        so_far = _Parts()
        # The build may have been interrupted here and begins again, so the files of that run must not be uploaded
        # in the meantime.
        self._due.pop(build, None)
        self._local.hold(build, new=True)
        parts, ran = asyncio.ensure_future(self._parts(build, so_far)), False
        try:
            yield
            ran = True
        finally:
            # First, because a late part and the complete upload would both write the record.
            await end(parts)
            self._following.discard(build)
            self._due[build] = _Due(asyncio.get_running_loop().time(), ran, True, so_far.lost)
            self._stir.set()

    async def run(self) -> None:
        """Upload until cancelled, starting with the files that a dead executor has left."""
        loop = asyncio.get_running_loop()
        # `ran` is False because the files do not show whether the dead executor had finished the build.
        for build in await asyncio.to_thread(self._local.builds):
            if build not in self._following:
                self._due.setdefault(build, _Due(loop.time(), ran=False, here=False))
        try:
            while True:
                self._stir.clear()
                self._begin(loop.time())
                await self._moved(loop)
        finally:
            await end(*self._busy.values())

    async def close(self, drain_max_s: float = DRAIN_MAX_S) -> None:
        """Try once more to upload the remaining builds; call this after `run` has ended, when no build runs any
        more."""
        left = [build for build, due in self._due.items() if due.ran and not due.stored]
        if not left:
            return
        try:
            async with asyncio.timeout(drain_max_s):
                await run_until(asyncio.Event(), *(self._last(build) for build in left))
        except TimeoutError:
            pass
        if self.waiting:
            log.error(
                "the logs of %s builds are only on this disk; the next executor that starts here uploads them",
                self.waiting,
            )

    async def _last(self, build: str) -> None:
        try:
            await self._upload_all(build, self._due[build])
            self._due[build].stored = True
        except LogStoreError as error:
            log.error("build %s: its logs cannot be stored: %s", build, error)

    # --- builds that have ended

    def _begin(self, now_s: float) -> None:
        free = UPLOADS_MAX - len(self._busy)
        due = ((one.at_s, build) for build, one in self._due.items() if one.at_s <= now_s and build not in self._busy)
        for _, build in nsmallest(free, due):
            # A build stays in `_due` while it is busy; `_busy` prevents a second task for it.
            self._busy[build] = task = asyncio.ensure_future(self._next(build))
            task.add_done_callback(partial(self._done, build))

    def _done(self, build: str, task: asyncio.Task[None]) -> None:
        del self._busy[build]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("build %s: its logs: %s: %s", build, type(error).__name__, error)
        self._stir.set()

    async def _moved(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when work may be due: at the next step's time, or when something changes."""
        at_s = min((one.at_s for build, one in self._due.items() if build not in self._busy), default=None)
        if len(self._busy) >= UPLOADS_MAX:
            at_s = None
        try:
            async with asyncio.timeout_at(at_s):
                await self._stir.wait()
        except TimeoutError:
            pass

    async def _next(self, build: str) -> None:
        """Upload a build to the store and, later, remove it from the disk."""
        due, loop = self._due[build], asyncio.get_running_loop()
        if due.stored:
            del self._due[build]
            await asyncio.to_thread(self._local.remove, build)
            return
        # If the build runs again elsewhere, the files of that run replace these; uploading both would mix them under
        # the same keys.
        if not due.ran and self._running(build):
            due.at_s = loop.time() + LOOK_AGAIN_S
            return
        if not self._local.hold(build):  # another process holds the build, or has already uploaded and removed it
            del self._due[build]
            return
        try:
            await self._upload_all(build, due)
        except Exception as error:
            # Any error leads to another attempt, because the files on this disk are the only copy.
            due.tries += 1
            # The exponent is bounded, because the number of attempts is not, and a huge power does not fit into a
            # float.
            wait_s = min(RETRY_FIRST_S * 2 ** min(due.tries - 1, 20), RETRY_MAX_S)
            reason = error if isinstance(error, LogStoreError) else f"{type(error).__name__}: {error}"
            log.error("build %s: its logs are only on this disk, next attempt in %.0f s: %s", build, wait_s, reason)
            due.at_s = loop.time() + wait_s
        else:
            due.stored, due.at_s = True, loop.time() + LOCAL_AFTER_UPLOAD_S
            self._local.release(build)

    async def _upload_all(self, build: str, due: _Due) -> None:
        """Upload all files, the record last. An interrupted build never replaces a complete one. Raise
        LogStoreError."""
        known = await self._known(build)
        # Another run, or an upload of this one before a crash, has already stored everything.
        if known is not None and known.complete and not due.ran:
            await self._without_parts(build)
            return
        # The record names parts from a dead executor. It is replaced below, so their content becomes a file first.
        if due.lost is None:
            due.lost = await self._lost_runs(known, own=not due.here)
        # Written before the files: after a crash, the removal of old logs finds the incomplete build by its record.
        if known is None or known.complete:
            await self._record(manifests.Manifest(build, self._now_ms(), self._host))
        paths, lost = await asyncio.to_thread(self._local.files, build)
        # All workers share one iterator, so that none is idle while another still has many files.
        found, left = list[manifests.StoredFile](), iter(paths)

        async def some() -> None:
            for path in left:
                try:
                    found.append(await self._file(build, path))
                except UnreadableFile as error:
                    lost.append(f"{path} is not stored: it cannot be read ({error})")

        await run_until(asyncio.Event(), *(some() for _ in range(FILES_AT_ONCE)))
        paths = [file.path for file in found]
        found += (file for file in due.lost if file.path not in paths)
        files = tuple(sorted(found, key=lambda file: file.path))
        manifest = manifests.Manifest(build, self._now_ms(), self._host, complete=True, files=files, lost=tuple(lost))
        # The files are stored before the record, and the parts deleted after it, so a record never names missing files.
        await self._record(manifest)
        if known is not None:
            await self._without_parts(build)

    async def _without_parts(self, build: str) -> None:
        """Delete the parts of the output. Raise LogStoreError."""
        await self._store.delete([part.key async for part in self._store.keys(manifests.parts_of(build))])

    async def _known(self, build: str) -> manifests.Manifest | None:
        """Return the stored manifest. Raise LogStoreError."""
        try:
            return manifests.parsed(
                b"".join([piece async for piece in self._store.read(manifests.manifest_key(build))])
            )
        except (NotStored, ValueError):
            return None

    async def _file(self, build: str, path: str) -> manifests.StoredFile:
        """Store one file, and return its entry in the manifest. Raise LogStoreError, UnreadableFile."""
        size, kind = await asyncio.to_thread(self._local.kind, build, path)
        return await self._stored(build, path, kind, size, self._local.pieces(build, path))

    async def _stored(
        self, build: str, path: str, kind: str, size: int, pieces: AsyncIterator[bytes]
    ) -> manifests.StoredFile:
        """Put a file into the store, and return its entry in the manifest; all `pieces` except the last have
        `MEMBER_SIZE_BYTES`. Raise LogStoreError."""
        # An empty file has no pieces, and a file without pieces counts as stored uncompressed.
        encodes = self._store.encodes and manifests.shrinks(kind) and size > 0
        digest, members, sizes = hashlib.sha256(), list[int](), list[int]()

        packing = Packing()

        async def content() -> AsyncGenerator[bytes, None]:
            async for piece in pieces:
                digest.update(piece)
                sizes.append(len(piece))
                stored = await asyncio.to_thread(packing.piece, piece) if encodes else piece
                members.append(len(stored))
                yield stored
            if encodes:
                stored = packing.end()
                # The end of the stream belongs to the last piece. There is no piece if the build emptied the file after
                # its size was read.
                members[-1:] = [sum(members[-1:]) + len(stored)]
                yield stored

        encoding = "gzip" if encodes else ""
        await self._store.put(manifests.file_key(build, path), content(), kind=kind, encoding=encoding)
        return manifests.StoredFile(path, sum(sizes), kind, digest.hexdigest(), tuple(members) if encodes else ())

    async def _lost_runs(self, known: manifests.Manifest | None, *, own: bool) -> tuple[manifests.StoredFile, ...]:
        """Return the output of earlier runs on lost executors, each as a file. If the stored parts do not belong to the
        `own` run of this process, store them as one more file. Raise LogStoreError."""
        if known is None or known.complete:
            return ()
        files = known.files
        if known.parts and not own and (output := StoredLogs(self._store).file(known, manifests.OUTPUT)) is not None:
            # The number depends only on the record, so after a crash, a repetition writes the same file again.
            path = f"job-output.lost-{len(files) + 1}.txt"
            pieces = cut(output)
            files = (*files, await self._stored(known.build, path, manifests.TEXT, output.size_bytes, pieces))
            await self._record(manifests.Manifest(known.build, self._now_ms(), self._host, files=files))
        return files

    # --- builds that run

    async def _parts(self, build: str, so_far: _Parts) -> None:
        """Store the output of a running build in parts, at growing intervals, until cancelled or until there are
        PARTS_MAX parts."""
        while len(so_far.parts) < PARTS_MAX:
            # Doubling keeps the number of objects small for builds of any length: 1,000 parts cover 1,023 times the
            # duration of the first 100.
            await asyncio.sleep(self._interval_s * 2 ** (len(so_far.parts) // PARTS_PER_PACE))
            try:
                await self._part(build, so_far)
            except LogStoreError as error:
                log.warning("build %s: its output is only on this disk for now: %s", build, error)

    async def _part(self, build: str, so_far: _Parts) -> None:
        """Upload the next part. Raise LogStoreError."""
        if so_far.lost is None:
            so_far.lost = await self._lost_runs(await self._known(build), own=False)
        found = await asyncio.to_thread(self._local.output, build, so_far.offset, PART_SIZE_MAX_BYTES)
        if not found:
            return
        packed = await asyncio.to_thread(_packed, found)
        key = manifests.part_key(build, len(so_far.parts))
        # The offset moves last: after a failure, the same part is stored again, together with newer output.
        await self._store.put(key, _once(packed), kind=manifests.TEXT, encoding="gzip" if self._store.encodes else "")
        parts = (*so_far.parts, manifests.OutputPart(len(found), len(packed)))
        await self._record(manifests.Manifest(build, self._now_ms(), self._host, files=so_far.lost, parts=parts))
        so_far.parts.append(parts[-1])
        so_far.offset += len(found)

    async def _record(self, manifest: manifests.Manifest) -> None:
        await self._store.put(
            manifests.manifest_key(manifest.build), _once(manifests.written(manifest)), kind="application/json"
        )


class Packing:
    """Compress pieces so that each can be decompressed without the earlier ones, and all together as one gzip
    stream."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)

    def piece(self, content: bytes) -> bytes:
        # A full flush also resets the window; after a sync flush, the next piece could refer to this one.
        return self._stream.compress(content) + self._stream.flush(zlib.Z_FULL_FLUSH)

    def end(self) -> bytes:
        """Return the remainder of the last piece."""
        return self._stream.flush()


def _packed(content: bytes) -> bytes:
    """Compress the content reproducibly."""
    # Without a time in the header, a part that is stored twice has the same bytes, and the size in the record is right.
    return gzip.compress(content, LEVEL, mtime=0)


async def _once(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content
