"""Read the logs of a build, wherever they are: on this machine, in the log store, or at its executor."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
from msgspec.structs import replace

from headgate.adapters.logs.manifests import OUTPUT, Manifest
from headgate.adapters.logs.reader import Content, StoredLogs, missing
from headgate.base.errors import HeadgateError
from headgate.ports.logstore import LogStoreError, NotStored
from headgate.rest import HTTPException, NotFoundException, StreamResponse
from headgate.services.context import Context
from headgate.services.nodes.requester import executors
from headgate.store.types import StoreError
from headgate.web import logfiles
from headgate.web.access import PeerFleet
from headgate.web.shapes import LogFile

log = logging.getLogger("headgate.logs")

TIMEOUT_S = 10.0
RELAYED_STATUSES = (200, 206, 304, 416)
"""Statuses of executors' responses that are passed on."""

RELAYED_HEADERS = ("content-encoding", "content-length", "content-range", "etag", "vary")
"""Response headers of executors that are passed on."""


class NoLogs(HeadgateError):
    """Report that no running executor has the logs."""


class RunsHere(NoLogs):
    """Report that the executor serves no logs because it is in one process with the pages."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """Hold an executor's response unchanged."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]
    """Pieces of the body; they end early when the executor ends."""


@dataclass(frozen=True, slots=True)
class RemoteLogs:
    """Read logs from the executors that have them."""

    context: Context
    client: Callable[[], httpx.AsyncClient]
    """Returns the client that calls executors, which is made for the first call."""
    fleet: PeerFleet

    async def files(self, build: str) -> list[LogFile]:
        """List the build's files with the executor's URLs; the list is empty if no executor has any."""
        try:
            answer = await self._get(f"{await self._home(build)}/logs/{build}", build)
            answer.raise_for_status()
        except (NoLogs, StoreError, httpx.HTTPError):
            return []
        return [LogFile(**found) for found in answer.json()]

    async def file(self, build: str, path: str) -> AsyncIterator[bytes]:
        """Yield the file. Raise NoLogs before the first piece."""
        home = await self._home(build)
        async for chunk in self._read(f"{home}/logs/{build}/{path}", build):
            yield chunk

    async def relayed(self, build: str, path: str, request_headers: Mapping[str, str]) -> Relayed:
        """Request a file, or a part of it, from an executor, and return its response.  Raise NoLogs."""
        home = await self._home(build)
        # A quiet build writes nothing for minutes, so reading has no timeout, and only everything else has.
        timeout, proof = httpx.Timeout(TIMEOUT_S, read=None), await self.fleet.headers(build)
        # The client's own header decides: httpx would otherwise request compression that the client cannot read.
        headers = {"accept-encoding": "identity", **request_headers, **proof}
        try:
            request = self.client().build_request(
                "GET", f"{home}/logs/{build}/{path}", timeout=timeout, headers=headers
            )
            answer = await self.client().send(request, stream=True)
        except (StoreError, httpx.HTTPError) as error:
            raise NoLogs(f"build {build}: its executor cannot be reached: {error}") from error
        # Other statuses, such as 404, are about this executor, while the logs may be elsewhere.
        if answer.status_code not in RELAYED_STATUSES:
            await answer.aclose()
            raise NoLogs(f"build {build}: the executor returned status {answer.status_code}")
        return Relayed(answer.status_code, answer.headers, _raw(answer))

    async def follow(self, build: str, offset: int) -> AsyncIterator[bytes]:
        """Yield the job's output from `offset` on, while it is written; a negative offset counts bytes from the end.
        Raise NoLogs."""
        # Until an executor has claimed the request, no log exists; afterwards that executor has it.
        while (found := self.context.build_request(build)) is not None and not found.locked:
            await self.context.mirror.moved(self.context.mirror.moves)
        home = await self._home(build)
        async for chunk in self._read(f"{home}/stream/{build}?offset={offset}", build):
            yield chunk

    async def _read(self, url: str, build: str) -> AsyncIterator[bytes]:
        try:
            timeout, proof = httpx.Timeout(TIMEOUT_S, read=None), await self.fleet.headers(build)
            async with self.client().stream("GET", url, timeout=timeout, headers=proof) as answer:
                if answer.status_code != 200:
                    raise NoLogs(f"build {build}: the executor returned status {answer.status_code}")
                async for chunk in answer.aiter_bytes():
                    yield chunk
        except (StoreError, httpx.HTTPError) as error:
            raise NoLogs(f"build {build}: its executor cannot be reached: {error}") from error

    async def _get(self, url: str, build: str) -> httpx.Response:
        return await self.client().get(url, timeout=TIMEOUT_S, headers=await self.fleet.headers(build))

    async def _home(self, build: str) -> str:
        """Return the URL of the executor that runs the build or still has its logs. Raise NoLogs."""
        running = self.context.build_request(build)
        # Executors without a URL are in the process of the pages.
        urls = {r.data.url: r for r in executors(self.context) if r.data.url}
        if running is not None:
            component = self.context.mirror.get(running.request.owner.component)
            if component is not None:
                url = self.context.map.components.executor.decode(component.value).data.url
                if url:
                    return url
                raise RunsHere(f"build {build}: its executor serves no logs")
        for url in urls:
            try:
                if (await self._get(f"{url}/logs/{build}", build)).status_code == 200:
                    return url
            except (StoreError, httpx.HTTPError):
                continue  # this executor may have died; another may have the logs
        raise NoLogs(f"build {build}: no executor has its logs")


async def _raw(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


@dataclass(frozen=True, slots=True)
class BuildLogs:
    """Find the logs of builds. Callers have checked that the build may be read, and that its id is alphanumeric."""

    root: Path
    """Directory of the logs on this machine."""
    follow: logfiles.Follow
    remote: RemoteLogs | None = None
    """Access to logs of executors in other processes."""
    stored: StoredLogs | None = None
    """Access to logs in the log store."""

    async def files(self, build: str, url: str) -> list[LogFile]:
        """Return the files of a build, with addresses below `url`. Raise 404 if no logs are left, 503."""
        root, found = self._here(build), await self._stored(build)
        if root is None and (found is None or not found.complete) and self.remote is not None:
            files = await self.remote.files(build)
            if files:
                # The executor's own addresses may not be reachable for browsers.
                return [replace(file, url=f"{url}/{quote(file.path)}") for file in files]
        if root is not None or found is None or self.stored is None:
            return await logfiles.listed(root or (self.root / build).resolve(), url)
        files = [LogFile(file.path, file.size_bytes, f"{url}/{quote(file.path)}") for file in found.files]
        if not found.complete and (content := self.stored.file(found, OUTPUT)) is not None:
            files.insert(0, LogFile(OUTPUT, content.size_bytes, f"{url}/{OUTPUT}"))
        return files

    async def file(self, build: str, path: str, headers: Mapping[str, str]) -> logfiles.Answer:
        """Answer a request for a file that has these request headers.  Raise 404, 503."""
        found = await self.content(build, path)
        if found is not None:
            return await logfiles.served(found, path, headers)
        # Only these headers: an executor must not see the client's token and cookie.
        wanted = {name: headers[name] for name in logfiles.PASSED_ON if name in headers}
        try:
            return await self._relayed(build, path, wanted)
        except NoLogs as error:
            part = await self._part(build, path)
            if part is None:
                raise NotFoundException(str(error)) from error
            return await logfiles.served(part, path, headers)

    async def content(self, build: str, path: str) -> Content | None:
        """Return a file that can be read without an executor; None: an executor may have it. Raise 404, 503."""
        if (root := self._here(build)) is not None:
            return logfiles.local(logfiles.inside(root, path))
        found = await self._stored(build)
        # An incomplete record proves nothing: the executor may have more files, so it is queried first.
        if found is not None and found.complete and self.stored is not None:
            content = self.stored.file(found, path.lstrip("/"))
            if content is None:
                raise NotFoundException(f"build {build} has no log {path!r}{_why(found)}")
            return content
        if self.remote is None:
            part = await self._part(build, path)
            return part or logfiles.local(logfiles.inside((self.root / build).resolve(), path))
        return None

    async def pieces(self, build: str, path: str) -> AsyncIterator[bytes]:
        """Yield a file, wherever it is.  Raise NoLogs, NotStored, LogStoreError, 404, 503."""
        found = await self.content(build, path)
        if found is not None:
            async for piece in found.read(0, found.size_bytes):
                yield piece
        elif self.remote is not None:
            async for piece in self.remote.file(build, quote(path.lstrip("/"))):
                yield piece

    async def output(  # noqa: C901 - tries one source of logs after the other
        self, build: str, over: Callable[[], bool], offset: int
    ) -> AsyncIterator[bytes]:
        """Yield the build's output from `offset` on, until the build has ended; a negative offset counts bytes from the
        end.  Raise NoLogs, 404, 503."""
        if (root := self._here(build)) is not None:
            async for chunk in logfiles.output(self.follow, root, over, offset):
                yield chunk
            return
        found = await self._stored(build)
        if self.remote is not None and (found is None or not found.complete):
            try:
                async for chunk in self.remote.follow(build, offset):
                    yield chunk
                return
            except RunsHere:
                found = None  # the build runs in this process but has no log directory yet
            except NoLogs:
                if found is None:
                    raise
        if found is None or self.stored is None:
            async for chunk in logfiles.output(self.follow, (self.root / build).resolve(), over, offset):
                yield chunk
            return
        content = self.stored.file(found, OUTPUT)
        if content is None:
            raise NotFoundException(f"build {build} has no output{_why(found)}")
        async for piece in _from(content, offset, build):
            yield piece

    async def missing(self, build: str) -> str:
        """Return a message about the missing logs of a build that has ended; empty: they are complete."""
        if self.stored is None or self._here(build) is not None:
            return ""
        try:
            found = await self.stored.of(build)
        except LogStoreError as error:
            return f"the log store does not answer: {error}"
        if found is not None and found.complete:
            return missing(found)
        if self.remote is not None and await self.remote.files(build):
            return ""  # the executor is still uploading them
        if found is None:
            return "its executor uploaded none of its logs"
        return missing(found).strip("- ")

    def _here(self, build: str) -> Path | None:
        root = (self.root / build).resolve()
        return root if root.is_dir() else None

    async def _stored(self, build: str) -> Manifest | None:
        """Return the log store's manifest of a build. Raise 503 if the store does not answer and no executor could have
        the logs."""
        if self.stored is None:
            return None
        try:
            return await self.stored.of(build)
        except LogStoreError as error:
            log.error("the log store does not answer: %s", error)
            if self.remote is not None:
                return None
            raise HTTPException(f"the log store does not answer: {error}", status_code=503) from error

    async def _part(self, build: str, path: str) -> Content | None:
        """Return a file of a build whose logs may be in the store only in part; None: it is missing. Raise 503."""
        found = await self._stored(build)
        return self.stored.file(found, path.lstrip("/")) if found is not None and self.stored is not None else None

    async def _relayed(self, build: str, path: str, request_headers: Mapping[str, str]) -> logfiles.Answer:
        """Return the response of an executor that has the file. Raise NoLogs."""
        if self.remote is None:
            raise NoLogs(f"build {build}: its logs are not on this machine")
        answer = await self.remote.relayed(build, quote(path.lstrip("/")), request_headers)
        kind = logfiles.harmless(answer.headers.get("content-type", "text/plain; charset=utf-8"))
        about = logfiles.headers(path, kind)
        # Security headers are our own, whatever the executor sends: a log must never run as a page of this site.
        about |= {name.title(): answer.headers[name] for name in RELAYED_HEADERS if name in answer.headers}
        kind = logfiles.unencoded(kind)
        return StreamResponse(answer.pieces, status_code=answer.status, headers=about, media_type=kind)


def _why(found: Manifest) -> str:
    return f": {missing(found)}" if missing(found) else ""


async def _from(content: Content, offset: int, build: str) -> AsyncIterator[bytes]:
    """Yield stored output from `offset` on; a negative offset counts bytes from the end.  Raise NoLogs."""
    start = offset if offset >= 0 else max(0, content.size_bytes + offset)
    try:
        async for piece in content.read(start, content.size_bytes):
            yield piece
    except (NotStored, LogStoreError) as error:
        raise NoLogs(f"build {build}: {error}") from error
