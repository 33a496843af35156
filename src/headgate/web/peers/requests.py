"""What every request is held against before an application sees it, and what every answer says of itself."""

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
"""Of whatever is no page: what a job wrote cannot act as one, whatever a browser takes it for."""
READING = frozenset({"GET", "HEAD"})
PREFLIGHT_KNOWN_S = 600
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

Message = MutableMapping[str, Any]  # as ASGI has it
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]  # ASGI


class CheckedApplication:
    """An application whose requests are well-formed, and whom no page of another server has write anything."""

    def __init__(
        self, app: App, hosts: Collection[str] = (), names: Collection[str] = (), *, shared: bool = False
    ) -> None:
        """`hosts`: those it is reached by; any, if there are none.  `names`: those its own pages come from, beside the
        one that a request names.  `shared`: pages of other servers may read with a token of theirs."""
        self._app, self._hosts, self._names, self._shared = app, hosts, names, shared

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status, why = self._wrong(scope)
        wanted = _header(scope, b"access-control-request-method") if scope.get("method") == "OPTIONS" else ""
        if not why and wanted:
            await self._preflight(send, wanted.upper())
        elif not why:
            await self._app(scope, receive, _saying_more(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            await _refuse(send, status, why)

    def _wrong(self, scope: Message) -> tuple[int, str]:
        if (what := _unreadable(scope["raw_path"])) or (what := _unreadable(scope["query_string"])):
            return 400, f"the address has {what}"
        if scope["query_string"].count(b"&") >= QUERY_FIELDS_MAX:
            return 400, f"a query has at most {QUERY_FIELDS_MAX} fields"
        if self._hosts and _host(scope) not in self._hosts:
            return 421, "this server is for this machine; name it so, or set [web] root to the address people use"
        if self._hosts and (page := _header(scope, b"origin")) and _name_of(page) not in self._hosts:
            return 403, "this server is for this machine, and no page of another one may ask it; see [web] root"
        if scope.get("method", "GET") not in READING | {"OPTIONS"} and self._foreign(scope):
            return 403, "a page of another server may not change anything here; see [web] root"
        return 0, ""

    def _foreign(self, scope: Message) -> bool:
        """Whether a page of another server asks."""
        page = _header(scope, b"origin")
        return bool(page) and _name_of(page) not in {_host(scope), *self._hosts, *self._names}

    async def _preflight(self, send: Send, wanted: str) -> None:
        """What a browser asks before a page of another server may: to read with a token, never to write; and nothing
        rides on a browser, as no answer lets it send what it keeps for us."""
        if not self._shared or wanted not in READING:
            await _refuse(send, 403, "pages of other servers may read here at most, and change nothing")
            return
        headers = [
            (b"access-control-allow-origin", b"*"),
            (b"access-control-allow-methods", b", ".join(sorted(one.encode() for one in READING))),
            (b"access-control-allow-headers", b"Authorization"),
            (b"access-control-max-age", str(PREFLIGHT_KNOWN_S).encode()),
            (b"vary", b"Origin, Access-Control-Request-Method"),
        ]
        await _saying_more(send)({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _unreadable(part: bytes) -> str:
    """What is in a path or query that nobody writes into one."""
    plain = unquote_to_bytes(part.replace(b"+", b" "))
    try:
        text = plain.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return "control characters" if any(c < " " or c == "\x7f" for c in text) else ""


def _host(scope: Message) -> str:
    """As the request has it, without a port."""
    return _without_port(_header(scope, b"host"))


def _header(scope: Message, wanted: bytes) -> str:
    """In lower case; empty when there is none."""
    return next((value for name, value in scope["headers"] if name == wanted), b"").decode("latin-1").lower()


def _without_port(named: str) -> str:
    head, colon, port = named.rpartition(":")
    return head if colon and port.isdecimal() else named


def _name_of(origin: str) -> str:
    """The host of a page; empty for one that has none."""
    return _without_port(origin.partition("://")[2])


def _saying_more(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            known = {name.lower(): value for name, value in headers}
            page = known.get(b"content-type", b"").startswith(b"text/html")
            for name, value in (
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"same-origin"),
                (b"content-security-policy", (PAGE_POLICY if page else STRICT_POLICY).encode()),
            ):
                if name not in known:
                    headers.append((name, value))
            message = {**message, "headers": headers}
        await send(message)

    return told


async def _refuse(send: Send, status: int, why: str) -> None:
    body = b'{"error":"%b","description":"%b"}' % (HTTPStatus(status).phrase.encode(), why.encode())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await _saying_more(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
