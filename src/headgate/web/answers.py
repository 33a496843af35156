"""Tag and compress responses, serve the static files of the pages, and turn errors into responses."""

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
"""Prefixes of the media types that are worth compressing."""
STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"
"""Cache policy of an address that contains the edition: its content never changes."""
Headers = list[tuple[bytes, bytes]]

_HTML = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title} · Headgate</title>
<link rel="icon" href="/static/{edition}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/{edition}/style.css"></head>
<body><header><a class="brand" href="/"><img src="/static/{edition}/icon.svg" alt="" width="22" height="22">Headgate</a>
</header>
<main><h1>{title}</h1><p>{text}</p><p><a href="/">Back to the start page</a></p></main></body></html>
"""


class Mannered:
    """Wrap an application: compress its responses to GET, and send 304 to a client that has the current response."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        # HEAD arrives here as GET; see `HeadApplication`.
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Answer(scope, send).send)


class _Answer:
    """Send one response: tag and compress it if it comes in one piece, and pass a stream through unchanged."""

    def __init__(self, scope: Message, send: Send) -> None:
        self._send = send
        self._api = scope["path"].lstrip("/").startswith("api")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self._known = headers.get(b"if-none-match", "")
        self._gzip = takes_gzip(headers.get(b"accept-encoding", ""))
        self._start: Message | None = None
        # Shared caches must not store what a session of a person may read.
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
                # Weak, because the plain and the compressed body have the same tag.
                known[b"etag"] = b'W/"%s"' % hashlib.sha256(body).hexdigest()[:24].encode()
                headers.append((b"etag", known[b"etag"]))
            # The response was computed in any case: the tag saves the transfer, and `web/shots` the computation.
            if matches(self._known, known[b"etag"].decode("latin-1")):
                # These headers describe a body, which a 304 does not have.
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
    """Add headers that make caches revalidate, as the content depends on the caller and changes at any moment; `own`
    is the cache policy."""
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
    """Return whether this Accept-Encoding header accepts gzip."""
    taken = dict[str, bool]()
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        taken[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return taken.get("gzip", taken.get("*", False))


def matches(known: str, tag: str) -> bool:
    """Return whether an `If-None-Match` header names this entity tag, by weak comparison."""
    bare = tag.removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == bare for one in known.split(",") if one)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Hold one static file, plain and compressed."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


@cache
def files() -> dict[str, StaticFile]:
    """Return all static files by name; they are read once, at the first call."""
    found = dict[str, StaticFile]()
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            # These files are compressed only once, so the slowest level pays off.
            packed, tag = gzip.compress(body, 9, mtime=0), hashlib.sha256(body).hexdigest()[:24]
            found[path.name] = StaticFile(TYPES[path.suffix], body, packed, f'W/"{tag}"')
    return found


@cache
def edition() -> str:
    """Return an identifier of this version of the static files."""
    return hashlib.sha256("".join(one.tag for one in files().values()).encode()).hexdigest()[:12]


def document(script: str, title: str) -> str:
    """Return the document of a page."""
    text = (STATIC / "page.html").read_text().replace("{title}", title).replace("{script}", script)
    return text.replace('"/static/', f'"/static/{edition()}/')


def static_file(name: str, wanted_edition: str, accepted: str, known: str) -> Response[bytes | None]:
    """Answer a request for a static file; every edition gets the current file.

    Modules import each other by relative addresses, so a page loads all its files under one edition. After an upgrade,
    a page that is still open gets the new files.  Raise 404.
    """
    file = files().get(name)
    if file is None:
        raise NotFoundException(f"there is no {name}")
    # During an upgrade, a process of the other version may answer: caches must not keep its file under this address.
    cache_control = FOR_EVER if wanted_edition == edition() else "no-cache"
    headers = {"Cache-Control": cache_control, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if matches(known, file.tag):
        return Response(None, status_code=304, headers=headers)
    if takes_gzip(accepted):
        return Response(file.packed, media_type=file.kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.kind, headers=headers)


def wants_html(accept: str) -> bool:
    """Return whether this Accept header wants errors as HTML: that of a browser that follows a link, or of a page that
    accepts both JSON and plain text, as Zuul's dashboard does: it shows the first paragraph of the HTML."""
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
    """Return an error response; `error` is a code for programs, by default the name of the status."""
    # Refusals do not get the usual headers (`description.HEADERS`), but pages of other origins must be able to read
    # them, too.
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
    if isinstance(refused.extra, list):  # one problem for each wrong part of a body or query
        parts = [f"{one.get('key', '')}: {one['message']}" for one in refused.extra if isinstance(one, dict)]
        text = "; ".join([text, *(part.removeprefix(": ") for part in parts)])
    return answer(request, refused.status_code, text, error, refused.headers, more)


def _no_history(request: HttpRequest, error: HistoryUnavailable) -> Response[Any]:
    return answer(request, 503, f"the history is unavailable at the moment: {error}; the queues are not affected")


def _no_store(request: HttpRequest, error: Exception) -> Response[Any]:
    return answer(request, 503, f"the store is unavailable at the moment: {error}")


def _no_keys(request: HttpRequest, error: SecretError) -> Response[Any]:
    return answer(request, 503, str(error))


def _fault(request: HttpRequest, error: Exception) -> Response[Any]:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    # The message of an unexpected error stays in the log: it may name paths, tenants or secrets.
    return answer(request, 500, "this is an error in Headgate; its log has the details")


def _no_body(request: HttpRequest, error: Exception) -> Response[Any]:
    # A body of 100,000 brackets exhausts a decoder's recursion limit: that is an error of the client, not of Headgate.
    fault = "nested too deeply" if isinstance(error, RecursionError) else "not valid Unicode"
    return answer(request, 400, f"the request is {fault}")


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
