"""Tag and compress answers, serve the files of the pages, and answer errors."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

from headgate.ports.history import HistoryUnavailable
from headgate.ports.secrets import SecretError
from headgate.rest import HTTPException, HttpRequest, NotFoundException, Response
from headgate.rest.application import Answer
from headgate.store.types import SessionLost, StoreError
from headgate.web.peers.requests import App, Message, Receive, Send

log = logging.getLogger("headgate.web")

COMPRESSED_MIN_BYTES = 1_024
THREAD_MIN_BYTES = 65_536
"""Smallest size of a body that is compressed in another thread."""
LEVEL = 5
TEXTS = (b"text/", b"application/json", b"application/yaml", b"application/vnd.oai", b"image/svg+xml")
"""Beginnings of the media types that are worth compressing."""
STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"
"""Cache policy of an address that names the edition: its content never changes."""
Headers = list[tuple[bytes, bytes]]

_HTML = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title} · Headgate</title>
<link rel="icon" href="/static/{edition}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/{edition}/style.css"></head>
<body><header><a class="brand" href="/"><img src="/static/{edition}/icon.svg" alt="" width="22" height="22">Headgate</a>
</header>
<main><h1>{title}</h1><p>{text}</p><p><a href="/">To the first page</a></p></main></body></html>
"""


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
    taken = dict[str, bool]()
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        taken[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return taken.get("gzip", taken.get("*", False))


def matches(known: str, tag: str) -> bool:
    """Return whether the client has the answer, as far as entity tags tell: weakly."""
    bare = tag.removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == bare for one in known.split(",") if one)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Hold one file as it is sent."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


@cache
def files() -> dict[str, StaticFile]:
    """Return all files by name, as they were at the first call."""
    found = dict[str, StaticFile]()
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            packed, tag = gzip.compress(body, 9, mtime=0), hashlib.sha256(body).hexdigest()[:24]
            found[path.name] = StaticFile(TYPES[path.suffix], body, packed, f'W/"{tag}"')
    return found


@cache
def edition() -> str:
    """Return an identifier of this version of all files."""
    return hashlib.sha256("".join(one.tag for one in files().values()).encode()).hexdigest()[:12]


def document(script: str, title: str) -> str:
    """Return the document of a page."""
    text = (STATIC / "page.html").read_text().replace("{title}", title).replace("{script}", script)
    return text.replace('"/static/', f'"/static/{edition()}/')


def static_file(name: str, wanted_edition: str, accepted: str, known: str) -> Response[bytes | None]:
    """Answer a request for a file: of an edition, or, for an empty one, as it is now.  Modules name each other
    relatively, so that a page has all of one edition; after an upgrade, pages that are open get the files that there
    are.  Raise 404."""
    file = files().get(name)
    if file is None:
        raise NotFoundException(f"there is no {name}")
    # During an upgrade another process may answer for its edition: caches must not keep that under this address.
    cache_control = FOR_EVER if wanted_edition == edition() else "no-cache"
    headers = {"Cache-Control": cache_control, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if matches(known, file.tag):
        return Response(None, status_code=304, headers=headers)
    if takes_gzip(accepted):
        return Response(file.packed, media_type=file.kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.kind, headers=headers)


def wants_html(accept: str) -> bool:
    """Return whether an error is asked for as HTML: by a browser that follows a link, or by a page that names both JSON
    and plain text, as the reference's dashboard does, which takes the first paragraph of it."""
    named = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "text/html" in named or {"application/json", "text/plain"} <= named


def answer(
    request: HttpRequest,
    status: int,
    text: str,
    error: str = "",
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,  # JSON
) -> Response[Any]:
    """Return the answer of this status; `error` is one word for programs, by default the name of the status."""
    sent = {"Vary": "Accept, Authorization, Cookie", "Access-Control-Allow-Origin": "*", **(headers or {})}
    name = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    if wants_html(request.headers.get("accept", "")):
        page = _HTML.format(title=escape(f"{status} {name}"), text=escape(text), edition=edition())
        return Response(page, status_code=status, media_type="text/html", headers=sent)
    body = {"error": error or name, "description": text, **(more or {})}
    return Response(body, status_code=status, media_type="application/json", headers=sent)


def _refused(request: HttpRequest, refused: HTTPException) -> Response[Any]:
    more = dict(refused.extra) if isinstance(refused.extra, dict) else {}
    error = str(more.pop("error", ""))
    text = refused.detail or HTTPStatus(refused.status_code).phrase
    if isinstance(refused.extra, list):  # what is wrong with each part of a body or query
        parts = [f"{one.get('key', '')}: {one['message']}" for one in refused.extra if isinstance(one, dict)]
        text = "; ".join([text, *(part.removeprefix(": ") for part in parts)])
    return answer(request, refused.status_code, text, error, refused.headers, more)


def _no_history(request: HttpRequest, error: HistoryUnavailable) -> Response[Any]:
    return answer(request, 503, f"the history cannot be read just now: {error}; the queues are not affected")


def _no_store(request: HttpRequest, error: Exception) -> Response[Any]:
    return answer(request, 503, f"the store cannot be used just now: {error}")


def _no_keys(request: HttpRequest, error: SecretError) -> Response[Any]:
    return answer(request, 503, str(error))


def _fault(request: HttpRequest, error: Exception) -> Response[Any]:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    # The text of an unexpected error stays in the log: it may name paths, tenants or secrets.
    return answer(request, 500, "this is a fault of Headgate, and is in its log")


def _no_body(request: HttpRequest, error: Exception) -> Response[Any]:
    # A body of 100,000 brackets exhausts the recursion of a decoder: that is the sender's fault, and no fault of ours.
    fault = "nested too deep" if isinstance(error, RecursionError) else "not Unicode"
    return answer(request, 400, f"what was sent is {fault}")


HANDLERS: dict[type[Exception], Answer] = {
    HTTPException: _refused,
    HistoryUnavailable: _no_history,
    StoreError: _no_store,
    SessionLost: _no_store,
    SecretError: _no_keys,
    RecursionError: _no_body,
    UnicodeError: _no_body,
    Exception: _fault,
}
