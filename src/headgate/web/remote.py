"""Logs of builds that other processes ran: each executor serves its own, and the registry says where."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from headgate.recipes.requestforms import Open
from headgate.services.context import Context
from headgate.services.nodes.zones import executors
from headgate.store.types import StoreError
from headgate.web.peers.fleet import PeerFleet
from headgate.web.shapes import LogFile

TIMEOUT_S = 10.0
RELAYED = (200, 206, 304, 416)
"""Statuses of executors' answers that are passed on."""


class NoLogs(Exception):
    """Report that no running executor has the logs."""


class RunsHere(NoLogs):
    """Report that the executor serves no logs because it is in one process with the pages."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """Hold an executor's answer unchanged."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]
    """Pieces of the body; they end early when the executor ends."""


@dataclass(frozen=True, slots=True)
class RemoteLogs:
    context: Context
    client: httpx.AsyncClient
    fleet: PeerFleet

    async def files(self, build: str) -> list[LogFile]:
        """List files with URLs below the executor's; the list is empty if no executor has any."""
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
        """Ask an executor for a file, or a part of it, and return its answer.  Raise NoLogs."""
        home = await self._home(build)
        # A quiet build writes nothing for minutes, so everything but reading is limited.
        timeout, proof = httpx.Timeout(TIMEOUT_S, read=None), await self.fleet.headers(build)
        # The client's own wish decides: httpx would otherwise ask for compression that the client cannot read.
        headers = {"accept-encoding": "identity", **request_headers, **proof}
        try:
            request = self.client.build_request("GET", f"{home}/logs/{build}/{path}", timeout=timeout, headers=headers)
            answer = await self.client.send(request, stream=True)
        except (StoreError, httpx.HTTPError) as error:
            raise NoLogs(f"build {build}: its executor cannot be reached: {error}") from error
        if answer.status_code not in RELAYED:
            await answer.aclose()
            raise NoLogs(f"build {build}: the executor answers {answer.status_code}")
        return Relayed(answer.status_code, answer.headers, _raw(answer))

    async def follow(self, build: str, offset: int) -> AsyncIterator[bytes]:
        """Yield the job's output from `offset` on, as it is written; a negative offset counts bytes from the end.
        Raise NoLogs."""
        # Until an executor holds the request, nobody has a log; afterwards its holder is the one to ask.
        while (found := self._under_way(build)) is not None and not found.locked:
            await self.context.mirror.moved(self.context.mirror.moves)
        home = await self._home(build)
        async for chunk in self._read(f"{home}/stream/{build}?offset={offset}", build):
            yield chunk

    async def _read(self, url: str, build: str) -> AsyncIterator[bytes]:
        try:
            timeout, proof = httpx.Timeout(TIMEOUT_S, read=None), await self.fleet.headers(build)
            async with self.client.stream("GET", url, timeout=timeout, headers=proof) as answer:
                if answer.status_code != 200:
                    raise NoLogs(f"build {build}: the executor answers {answer.status_code}")
                async for chunk in answer.aiter_bytes():
                    yield chunk
        except (StoreError, httpx.HTTPError) as error:
            raise NoLogs(f"build {build}: its executor cannot be reached: {error}") from error

    async def _get(self, url: str, build: str) -> httpx.Response:
        return await self.client.get(url, timeout=TIMEOUT_S, headers=await self.fleet.headers(build))

    def _under_way(self, build: str) -> Open | None:
        opened = (o for queue in self.context.zones() for o in queue.open(self.context.mirror))
        return next((o for o in opened if o.request.id == build), None)

    async def _home(self, build: str) -> str:
        """Find the URL of the executor that runs the build, or that has its logs still. Raise NoLogs."""
        running = self._under_way(build)
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
                continue  # it may have died; others are asked
        raise NoLogs(f"build {build}: no executor has its logs")


async def _raw(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
