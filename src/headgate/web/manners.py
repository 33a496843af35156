"""Give every answer of the pages' port what all have in common: entity tags, compression, and what caches may keep."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re

from headgate.web.peers.requests import App, Message, Receive, Send

COMPRESSED_MIN_BYTES = 1_024
THREAD_MIN_BYTES = 65_536
"""Smallest size of a body that is compressed in another thread."""
LEVEL = 5
TEXTS = (b"text/", b"application/json", b"application/yaml", b"application/vnd.oai", b"image/svg+xml")
"""Beginnings of the media types that are worth compressing."""
Headers = list[tuple[bytes, bytes]]


class Mannered:
    """Wrap an application that answers GET, and send less to a client that knows the answer already."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Answer(scope, send).send)


class _Answer:
    """Send one answer on its way: tag and compress what is whole, and leave what is streamed as it is."""

    def __init__(self, scope: Message, send: Send) -> None:
        self._send = send
        self._api = scope["path"].lstrip("/").startswith("api")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self._known = headers.get(b"if-none-match", "")
        self._gzip = takes_gzip(headers.get(b"accept-encoding", ""))
        self._start: Message | None = None
        self._own = b"private, no-cache" if b"cookie" in headers else b"no-cache"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # The head is held back until the body is known: tag, length and encoding follow from it.
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None:
            await self._send(message)
            return
        start, self._start = self._start, None
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            start, body = await self._complete(start, body)
        await self._send(start)
        await self._send({**message, "body": body})

    async def _complete(self, start: Message, body: bytes) -> tuple[Message, bytes]:
        headers: Headers = [(name.lower(), value) for name, value in start.get("headers", ())]
        known = dict(headers)
        if start["status"] == 200 and self._api:
            known = _added(headers, known, self._own)
            if b"etag" not in known:
                known[b"etag"] = b'W/"%s"' % hashlib.sha256(body).hexdigest()[:24].encode()
                headers.append((b"etag", known[b"etag"]))
            # The answer is made in any case: this saves the transfer, and `web/shots` saves the making.
            if matches(self._known, known[b"etag"].decode("latin-1")):
                gone = (b"content-length", b"content-type")
                return {**start, "status": 304, "headers": [h for h in headers if h[0] not in gone]}, b""
        if len(body) >= COMPRESSED_MIN_BYTES and known.get(b"content-type", b"").startswith(TEXTS):
            headers.append((b"vary", b"Accept-Encoding"))
            if self._gzip and b"content-encoding" not in known:
                body = await compressed(body)
                headers = [h for h in headers if h[0] != b"content-length"]
                headers += [(b"content-encoding", b"gzip"), (b"content-length", b"%d" % len(body))]
        return {**start, "headers": headers}, body


def _added(headers: Headers, known: dict[bytes, bytes], own: bytes) -> dict[bytes, bytes]:
    """Have caches ask again: what is shown depends on who asks, and changes at any moment; `own`: what they may do with
    it."""
    for name, value in ((b"cache-control", own), (b"vary", b"Authorization, Cookie")):
        if name not in known:
            headers.append((name, value))
    return dict(headers)


async def compressed(body: bytes) -> bytes:
    """Return a body as gzip."""
    if len(body) < THREAD_MIN_BYTES:
        return gzip.compress(body, LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)


def takes_gzip(header: str) -> bool:
    """Return whether the sender of this Accept-Encoding header accepts gzip."""
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() in ("gzip", "*"):
            return re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return False


def matches(known: str, tag: str) -> bool:
    """Return whether the client has the answer, as far as entity tags tell: weakly."""
    bare = tag.removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == bare for one in known.split(",") if one)
