"""Files of earlier builds for a build that follows them: read-only, of those builds alone, at an address of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import h11

from headgate.adapters.process.network.listeners import CHUNK_SIZE_BYTES, Serve

ADDRESS, PORT = "127.72.71.1", 80
"""Address and port in the network of a build; programs of jobs are unlikely to use this address."""
REQUEST_TIMEOUT_S = 30.0
HEAD_SIZE_MAX_BYTES = 16_384

ReadLog = Callable[[str, str], AsyncGenerator[bytes, None]]
"""(id of a build, path of a log file) -> the content; raises LookupError before the first piece."""


def given(zuul: Mapping[str, Any]) -> set[str]:
    """Return the builds whose artifacts the `zuul` variable passes to a build."""
    artifacts = zuul.get("artifacts")
    found = (one.get("build") for one in artifacts or () if isinstance(one, Mapping))
    # Ids of builds are letters and digits; anything else could become a path when it is looked up.
    return {build for build in found if isinstance(build, str) and build.isalnum()}


def reached(zuul: Mapping[str, Any], tenant: str) -> list[Any]:
    """Return the artifacts for a build in a network of its own: those that Headgate serves, under whichever root URL it
    had at the time, are at `ADDRESS`. JSON."""
    artifacts = zuul.get("artifacts")
    found = list(artifacts) if isinstance(artifacts, list | tuple) else []
    for number, artifact in enumerate(found):
        if not isinstance(artifact, Mapping) or not isinstance(artifact.get("url"), str):
            continue
        # The root before it is not compared: an operator may have moved the server since the artifact was returned.
        _, own, path = artifact["url"].partition(f"/t/{quote(tenant)}/logs/{artifact.get('build')}/")
        if own:
            found[number] = {**artifact, "url": f"http://{ADDRESS}/logs/{artifact['build']}/{path}"}
    return found


def serving(read: ReadLog, builds: Collection[str]) -> Serve:
    """Serve one request per connection, for a file of one of `builds`."""

    async def serve(connection: socket.socket) -> None:
        speaking = _HttpConnection(connection)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await speaking.request()
            if request.method not in (b"GET", b"HEAD"):
                return await speaking.refuse(405, "files are only read here")
            build, path = _named(request.target)
            # The access check: the path of a request is the job's, and the set of builds is the gate's.
            if build not in builds or not path:
                return await speaking.refuse(404, "this is not a file of a build that this one is given artifacts of")
            await speaking.answer(read(build, path), body=request.method == b"GET")
        except h11.RemoteProtocolError as error:
            await speaking.refuse(error.error_status_hint, str(error))

    return serve


def _named(target: bytes) -> tuple[str, str]:
    """Return build and path of `/logs/BUILD/PATH`; empty for anything else."""
    parts = urlsplit(target.decode("ascii", errors="replace")).path.split("/", 3)
    if len(parts) != 4 or parts[:2] != ["", "logs"]:
        return "", ""
    path = unquote(parts[3])
    # Checked after unquoting, or %2e%2e would pass.
    return ("", "") if {"", ".", ".."}.intersection(path.split("/")) else (parts[2], path)


class _HttpConnection:
    """Speak HTTP over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX_BYTES)

    async def request(self) -> h11.Request:
        """Read a request.  Raise RemoteProtocolError, OSError."""
        loop = asyncio.get_running_loop()
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise h11.RemoteProtocolError("this is not a request")
            self._http.receive_data(await loop.sock_recv(self._connection, CHUNK_SIZE_BYTES))

    async def answer(self, content: AsyncGenerator[bytes, None], *, body: bool) -> None:
        """Answer with the content if a `body` is wanted, or refuse if it does not exist. Raise OSError."""
        async with aclosing(content):
            try:
                # The first piece tells whether there is such a file, while a status can still be sent.
                first = await anext(content, b"")
            except LookupError as error:
                return await self.refuse(404, str(error))
            await self._head(200)
            if body:
                await self._send(h11.Data(data=first))
                async for piece in content:
                    await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int, why: str) -> None:
        """Refuse a request with a status and why, unless the answer has begun.  Raise OSError."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._head(status)
            await self._send(h11.Data(data=f"{why}\n".encode()))
            await self._send(h11.EndOfMessage())

    async def _head(self, status: int) -> None:
        kind = "application/octet-stream" if status == 200 else "text/plain"
        headers = [("Content-Type", kind), ("Connection", "close")]
        await self._send(h11.Response(status_code=status, headers=headers))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await asyncio.get_running_loop().sock_sendall(self._connection, data)
