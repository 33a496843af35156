"""List the log files of a build and serve them, such that no file of a job acts as a page of this site."""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from headgate.adapters.logs.manifests import HEAD_SIZE_BYTES, OUTPUT, TEXT, kind_of, shrinks
from headgate.adapters.logs.reader import Content
from headgate.ports.logstore import LogStoreError, NotStored
from headgate.rest import HTTPException, NotFoundException, Response, StreamResponse
from headgate.services.context import Context
from headgate.web.answers import takes_gzip
from headgate.web.peers.requests import STRICT_POLICY
from headgate.web.shapes import LogFile

FILES_MAX = 1_000
"""Limit on the files of one build in a list."""
ENTRIES_MAX = 10_000
"""Limit on the directory entries that are read for the list."""

CHUNK_SIZE_BYTES = 262_144
PACKED_MIN_BYTES = 1_000
"""Smallest size of a file that is compressed."""
LEVEL = 5
PREVIEW_POLICY = (
    "sandbox; default-src 'none'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Content security policy of pages that jobs wrote: they run no scripts, load nothing from elsewhere, and have no
origin."""
PROGRAMS = ("text/javascript", "application/javascript", "application/wasm")
PASSED_ON = ("range", "if-range", "if-none-match", "accept-encoding")
"""Request headers that are passed on to the executor."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

Follow = Callable[[Path, Callable[[], bool], int], AsyncIterator[bytes]]

Answer = StreamResponse | Response[bytes]


def inside(root: Path, name: str) -> Path:
    """Return the path of the file of this name if it is inside the build's directory. Raise 404."""
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
    """List the log files of a build, up to `FILES_MAX`, without following links. Raise 404 if the logs are gone."""
    return await asyncio.to_thread(_listed, root, url)


def _listed(root: Path, url: str) -> list[LogFile]:
    found: list[LogFile] = []
    waiting, scanned = [root], 0
    while waiting and scanned < ENTRIES_MAX and len(found) < FILES_MAX:
        try:
            with os.scandir(waiting.pop()) as inside:
                # The scan itself is bounded: a job can leave more names in one directory than fit into memory.
                entries = sorted(islice(inside, ENTRIES_MAX - scanned), key=lambda entry: entry.name)
        except FileNotFoundError:  # logs are removed when they are old
            entries = []
            if not scanned:
                raise NotFoundException(f"the logs of build {root.name} are no longer available") from None
        scanned += len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                name = _plain(str(Path(entry.path).relative_to(root)))
                with suppress(FileNotFoundError):
                    found.append(LogFile(name, entry.stat(follow_symlinks=False).st_size, f"{url}/{quote(name)}"))
    return sorted(found[:FILES_MAX], key=lambda file: file.path)


def _plain(name: str) -> str:
    """Return a file name in which bytes that are not valid Unicode, and that JSON cannot represent, are replaced."""
    return name.encode(errors="replace").decode()


async def output(follow: Follow, root: Path, finished: Callable[[], bool], offset: int) -> AsyncIterator[bytes]:
    """Yield the job's output from `offset` on; a negative offset counts bytes from the end."""
    path = root / OUTPUT
    if offset < 0:
        offset = max(0, (path.stat().st_size if path.exists() else 0) + offset)
    async for chunk in follow(path, finished, offset):
        yield chunk


def over(context: Context, build: str) -> Callable[[], bool]:
    """Return a function that tells whether the build has ended, that is, has no request any more."""

    def gone() -> bool:
        return context.build_request(build) is None

    return gone


async def served(content: Content, name: str, given_headers: Mapping[str, str]) -> Answer:
    """Answer a request for a file. `given_headers` are the request's, with names in lower case. Raise 404 if the file
    is gone, 503 if it is unavailable at the moment.
    """
    kind = harmless(content.kind)
    about = headers(name, kind)
    packs = shrinks(kind) and content.size_bytes >= PACKED_MIN_BYTES
    if packs:
        about["Vary"] = "Accept, Authorization, Cookie, Accept-Encoding"
    tag = f'"{content.tag}"' if content.tag else ""
    wanted = (
        None
        if given_headers.get("if-range", tag) != tag
        else _range(given_headers.get("range", ""), content.size_bytes)
    )
    gzips = packs and wanted is None and takes_gzip(given_headers.get("accept-encoding", ""))
    if tag:
        # Each encoding has a tag of its own: clients must never join a range of the plain file to compressed bytes.
        about["ETag"] = f'{tag[:-1]}-gzip"' if gzips else tag
    if tag and about["ETag"] in re.split(r",\s*", given_headers.get("if-none-match", "").replace("W/", "")):
        return Response(b"", status_code=304, headers=about)
    if wanted == ():
        about["Content-Range"] = f"bytes */{content.size_bytes}"
        return Response(b"", status_code=416, headers=about, media_type="text/plain")
    start, end = wanted or (0, content.size_bytes)
    if wanted:
        about["Content-Range"] = f"bytes {start}-{end - 1}/{content.size_bytes}"
    length: int | None = end - start
    pieces = content.read(start, end)
    if gzips:
        about["Content-Encoding"] = "gzip"
        length = content.packed_bytes if content.packed else None
        pieces = content.packed(0, content.packed_bytes) if content.packed else _gzipped(pieces)
    status = 206 if wanted else 200
    if length == 0:
        return Response(b"", status_code=status, headers=about, media_type=unencoded(kind))
    if length is not None:
        about["Content-Length"] = str(length)
    return StreamResponse(await begun(pieces), status_code=status, headers=about, media_type=unencoded(kind))


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Return the same pieces after reading the first one.  Raise 404, 503."""
    try:
        # Read before the response's head is sent: afterwards, 404 could no longer be sent for a missing file.
        first = await anext(pieces, b"")
    except NotStored as error:
        raise NotFoundException(f"the file is no longer available: {error}") from error
    except LogStoreError as error:
        raise HTTPException(f"the log store does not answer: {error}", status_code=503) from error

    async def every() -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    return every()


def harmless(kind: str) -> str:
    """Return the media type to serve a job's file with; scripts are served as plain text."""
    # A job's script at our origin would satisfy `default-src 'self'` of our pages, so they could be made to run it.
    return TEXT if kind.startswith(PROGRAMS) else kind


def headers(name: str, kind: str) -> dict[str, str]:
    """Return the headers to send with a job's file."""
    page = kind.startswith(("text/html", "image/svg+xml"))
    plain = name.rpartition("/")[2]
    return {
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(plain, safe='')}",
        "Content-Security-Policy": PREVIEW_POLICY if page else STRICT_POLICY,
        "Vary": "Accept, Authorization, Cookie",
    }


def unencoded(kind: str) -> str:
    """Return the media type without the charset, which the response adds itself."""
    return kind.removesuffix("; charset=utf-8")


def local(file: Path) -> Content:
    """Return a file of this machine, which may grow.  Raise 404."""
    try:
        # The job may have replaced the file by a pipe or a link since it was
        # found: a pipe must not block this process, nor a link lead elsewhere.
        held = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundException(f"there is no {file.name}: {error.strerror}") from error
    try:
        found = os.fstat(held)
        kind = kind_of(file.name, os.pread(held, HEAD_SIZE_BYTES, 0))
    finally:
        os.close(held)
    tag = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    return Content(found.st_size, kind, tag, partial(_pieces, file))


async def _pieces(file: Path, start: int, end: int) -> AsyncGenerator[bytes, None]:
    try:
        held = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotStored(f"{file.name}: {error.strerror}") from error
    try:
        while start < end and (
            piece := await asyncio.to_thread(os.pread, held, min(CHUNK_SIZE_BYTES, end - start), start)
        ):
            start += len(piece)
            yield piece
    finally:
        os.close(held)


async def _gzipped(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    # 31 is the largest window (15) plus 16, which makes zlib write a gzip header.
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    async for piece in pieces:
        if packed := await asyncio.to_thread(packing.compress, piece):
            yield packed
    yield packing.flush()


def _range(header: str, size_bytes: int) -> tuple[int, int] | tuple[()] | None:
    """Return the start and the end of the requested range; () if it cannot be satisfied; None for the complete file,
    even if several ranges are requested."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or header.strip() == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return (max(0, size_bytes - int(last)), size_bytes) if int(last) and size_bytes else ()
    if last and int(last) < int(first):
        return None
    start, end = int(first), min(size_bytes, int(last) + 1 if last else size_bytes)
    return (start, end) if start < end else ()
