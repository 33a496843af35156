"""Check every request before an application sees it, and add what every answer says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

QUERY_FIELDS_MAX = 100
PAGE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'self'; base-uri 'none'; form-action 'self'"
)
STRICT_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Policy of every answer that is not a page: files that jobs wrote cannot act as pages in any browser."""
READING = frozenset({"GET", "HEAD"})
WRITING = frozenset({"DELETE", "POST", "PUT"})
PREFLIGHT_KNOWN_S = 600
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

Message = MutableMapping[str, Any]  # as ASGI has it
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]  # ASGI


class CheckedApplication:
    """Wrap an application: reject malformed requests, and writes that a page of another server sends."""

    def __init__(
        self,
        app: App,
        hosts: Collection[str] = (),
        names: Collection[str] = (),
        *,
        shared: bool = False,
        dashboards: Collection[str] = (),
    ) -> None:
        """Check requests to `app`. `hosts`: those it is reached by; any, if there are none. `names`: those its own
        pages come from, beside the one that a request names. `shared`: pages of other servers may read with a bearer
        token; pages from the origins in `dashboards` may also write with one."""
        self._app, self._hosts, self._names = app, hosts, names
        self._shared, self._dashboards = shared, dashboards

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status, why = self._wrong(scope)
        wanted = _header(scope, b"access-control-request-method") if scope.get("method") == "OPTIONS" else ""
        if not why and wanted:
            await self._preflight(scope, send, wanted.upper())
        elif not why:
            await self._app(scope, receive, _saying_more(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            await _refuse(send, status, why, to_pages=self._shared and not self._hosts)

    def _wrong(self, scope: Message) -> tuple[int, str]:
        if (fault := _unreadable(scope["raw_path"])) or (fault := _unreadable(scope["query_string"])):
            return 400, f"the address has {fault}"
        # Counted before parsing, which is what makes many fields expensive.
        if scope["query_string"].count(b"&") >= QUERY_FIELDS_MAX:
            return 400, f"a query has at most {QUERY_FIELDS_MAX} fields"
        # Without this, a page whose name is rebound to 127.0.0.1 reads a server that is meant for this machine alone.
        if self._hosts and _host(scope) not in self._hosts:
            return 421, "this server is for this machine; name it so, or set [web] root to the address people use"
        page = _header(scope, b"origin")
        if self._hosts and page and _name_of(page) not in self._hosts and page not in self._dashboards:
            return 403, "this server is for this machine, and no page of another one may ask it; see [web] root"
        if scope.get("method", "GET") not in READING | {"OPTIONS"} and self._foreign(scope):
            return 403, "a page of another server may not change anything here; see [web] root and dashboards"
        return 0, ""

    def _foreign(self, scope: Message) -> bool:
        """Return whether a page of another server asks."""
        page = _header(scope, b"origin")
        if page in self._dashboards and scope["path"].lstrip("/").startswith("api/"):
            # Even a named dashboard needs a token of its own: what the
            # browser stores for our pages never counts for it.
            return not _header(scope, b"authorization")
        return bool(page) and _name_of(page) not in {_host(scope), *self._hosts, *self._names}

    async def _preflight(self, scope: Message, send: Send, wanted: str) -> None:
        """Answer what a browser asks before a page of another server may do something.  Every page may read with a
        token, and a known dashboard may write with one; no answer lets a browser send what it keeps for us."""
        known = _header(scope, b"origin") in self._dashboards
        allowed = READING | WRITING if known else READING
        if not self._shared or wanted not in allowed:
            await _refuse(send, 403, "pages of other servers may read here at most; see [web] dashboards")
            return
        headers = [
            # A wildcard never permits credentials, so a browser sends no cookie of ours along.
            (b"access-control-allow-origin", b"*"),
            (b"access-control-allow-methods", b", ".join(sorted(one.encode() for one in allowed))),
            (b"access-control-allow-headers", b"Authorization, Content-Type" if known else b"Authorization"),
            (b"access-control-max-age", str(PREFLIGHT_KNOWN_S).encode()),
            (b"vary", b"Origin, Access-Control-Request-Method"),
        ]
        await _saying_more(send)({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _unreadable(part: bytes) -> str:
    """Return the part of a path or query that no valid one contains; empty: there is none."""
    # Checked as applications will read it: `%00` and broken UTF-8 must fail here and not in a database or a log.
    plain = unquote_to_bytes(part.replace(b"+", b" "))
    try:
        text = plain.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return "control characters" if any(c < " " or c == "\x7f" for c in text) else ""


def _host(scope: Message) -> str:
    """Return the host as the request has it, without a port."""
    return _without_port(_header(scope, b"host"))


def _header(scope: Message, wanted: bytes) -> str:
    """Return a header in lower case; empty when there is none."""
    return next((value for name, value in scope["headers"] if name == wanted), b"").decode("latin-1").lower()


def _without_port(named: str) -> str:
    head, colon, port = named.rpartition(":")
    return head if colon and port.isdecimal() else named


def _name_of(origin: str) -> str:
    """Return the host of a page; empty for one that has none."""
    return _without_port(origin.partition("://")[2])


def _saying_more(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            known = {name.lower(): value for name, value in headers}
            page = known.get(b"content-type", b"").startswith(b"text/html")
            for name, value in (
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"same-origin"),
                (b"content-security-policy", (PAGE_POLICY if page else STRICT_POLICY).encode()),
            ):
                # An answer may bring a policy of its own, as previews of jobs' pages do.
                if name not in known:
                    headers.append((name, value))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


async def _refuse(send: Send, status: int, why: str, *, to_pages: bool = False) -> None:
    """Refuse a request. `to_pages`: those of other servers may read why, too."""
    body = b'{"error":"%b","description":"%b"}' % (HTTPStatus(status).phrase.encode(), why.encode())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if to_pages:
        headers.append((b"access-control-allow-origin", b"*"))
    await _saying_more(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
