"""Check every request before an application sees it, route it to its application, and schedule requests fairly."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, MutableMapping
from http import HTTPStatus
from typing import Any, Generic, TypeVar, cast
from urllib.parse import unquote_to_bytes

from headgate.web.peers.connections import peer_of

QUERY_FIELDS_MAX = 100
PAGE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'self'; base-uri 'none'; form-action 'self'"
)
STRICT_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Content security policy of every response that is not a page: no browser runs a file of a job as a page."""
READING = frozenset({"GET", "HEAD"})
WRITING = frozenset({"DELETE", "POST", "PUT"})
PREFLIGHT_KNOWN_S = 600
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

QUEUES, INVENTORY = "/queues", "/inventory"
"""Path prefixes of the queue server's description and metrics, and of the inventory. The queues' API is below /v1."""
SHARE_BESIDE, SHARE_ALONE = 0.25, 0.9
"""Shares of the processor time for requests: with a gate in the same process, and without one."""
BURST_S = 0.5
"""Processor time that requests may use without waiting after a quiet period."""
WAITING_MAX = 100
"""Limit on the waiting requests of one peer; more are refused."""
EXEMPT = ("/health", "/static/")
"""Paths that never wait: they cost next to nothing, and monitoring requests them."""
BUSY = b'{"error": "Service Unavailable", "description": "too many requests of this address wait; try again later"}'

Message = MutableMapping[str, Any]  # a message of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]  # ASGI

T = TypeVar("T")


class CheckedApplication:
    """Wrap an application: reject malformed requests, and writes from pages of other servers."""

    def __init__(
        self,
        app: App,
        hosts: Collection[str] = (),
        names: Collection[str] = (),
        *,
        shared: bool = False,
        dashboards: Collection[str] = (),
    ) -> None:
        """Check requests to `app`.

        `hosts` are the host names that requests may use; empty: any. `names` are further host names of its own pages.
        With `shared`, pages of other servers may read with a bearer token, and pages of the origins in `dashboards` may
        also write with one.
        """
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
        # Counted before parsing, as it is the parsing that makes many fields expensive.
        if scope["query_string"].count(b"&") >= QUERY_FIELDS_MAX:
            return 400, f"a query has at most {QUERY_FIELDS_MAX} fields"
        # Protects against DNS rebinding: a foreign page whose host name now resolves to 127.0.0.1 could read a server
        # that is meant for this machine alone.
        if self._hosts and _host(scope) not in self._hosts:
            return 421, "this server serves this machine only; use localhost, or set [web] root to its public address"
        page = _header(scope, b"origin")
        if self._hosts and page and _name_of(page) not in self._hosts and page not in self._dashboards:
            return 403, "this server serves this machine only; pages of other servers may not use it; see [web] root"
        if scope.get("method", "GET") not in READING | {"OPTIONS"} and self._foreign(scope):
            return 403, "pages of other servers may not write; see [web] root and dashboards"
        return 0, ""

    def _foreign(self, scope: Message) -> bool:
        """Return whether a page of another server sends the request."""
        page = _header(scope, b"origin")
        if page in self._dashboards and scope["path"].lstrip("/").startswith("api/"):
            # Even a configured dashboard needs a token of its own: the
            # session cookie of our pages never authorizes it.
            return not _header(scope, b"authorization")
        return bool(page) and _name_of(page) not in {_host(scope), *self._hosts, *self._names}

    async def _preflight(self, scope: Message, send: Send, wanted: str) -> None:
        """Answer a browser's preflight request.  Every page may read with a token, and a configured dashboard may write
        with one; none may make the browser send our cookies."""
        known = _header(scope, b"origin") in self._dashboards
        allowed = READING | WRITING if known else READING
        if not self._shared or wanted not in allowed:
            await _refuse(send, 403, "pages of other servers may only read; see [web] dashboards")
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
    """Return the flaw of an invalid path or query; empty: it is valid."""
    # Checked in decoded form: `%00` and broken UTF-8 must fail here and not in a database or a log.
    plain = unquote_to_bytes(part.replace(b"+", b" "))
    try:
        text = plain.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return "control characters" if any(c < " " or c == "\x7f" for c in text) else ""


def _host(scope: Message) -> str:
    """Return the host of the request's Host header, without a port."""
    return _without_port(_header(scope, b"host"))


def _header(scope: Message, wanted: bytes) -> str:
    """Return the value of a header in lower case; empty if there is none."""
    return next((value for name, value in scope["headers"] if name == wanted), b"").decode("latin-1").lower()


def _without_port(named: str) -> str:
    head, colon, port = named.rpartition(":")
    return head if colon and port.isdecimal() else named


def _name_of(origin: str) -> str:
    """Return the host of an origin, without a port; empty if it has none."""
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
                # A response may have a policy of its own, as previews of jobs' pages do.
                if name not in known:
                    headers.append((name, value))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


async def _refuse(send: Send, status: int, why: str, *, to_pages: bool = False) -> None:
    """Refuse a request. With `to_pages`, pages of other servers may read the reason, too."""
    body = b'{"error":"%b","description":"%b"}' % (HTTPStatus(status).phrase.encode(), why.encode())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if to_pages:
        headers.append((b"access-control-allow-origin", b"*"))
    await _saying_more(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class HeadApplication:
    """Wrap an application that handles only GET, so that it also handles HEAD."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle HEAD as GET without sending the body; pass on everything else."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def waited() -> Message:
            # Streams end when the client leaves: signalling that immediately ends an endless stream after its head.
            return {"type": "http.disconnect"} if answered else await receive()

        async def bare(message: Message) -> None:
            nonlocal answered
            if answered:
                return
            answered = message["type"] == "http.response.body"
            await send({**message, "body": b"", "more_body": False} if answered else message)

        await self._app({**scope, "method": "GET"}, waited, bare)


class Front:
    """Pass requests to several ASGI applications by the prefix of the path."""

    def __init__(self, gate: App, queues: App | None = None, inventory: App | None = None) -> None:
        self._gate, self._queues, self._inventory = gate, queues, inventory

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and self._queues is not None and _below(path, "/v1"):
            await self._queues(scope, receive, send)
        elif scope["type"] == "http" and self._queues is not None and _below(path, QUEUES):
            await self._queues(_without(scope, QUEUES), receive, send)
        elif scope["type"] == "http" and self._inventory is not None and _below(path, INVENTORY):
            await self._inventory(_without(scope, INVENTORY), receive, send)
        else:
            await self._gate(scope, receive, send)


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _without(scope: Message, place: str) -> Message:
    """Return the request with the prefix removed from its path."""
    raw = scope["raw_path"]
    begin = place.encode()
    return {
        **scope,
        "path": scope["path"].removeprefix(place) or "/",
        # The raw path may contain the prefix in percent-encoded form; then it stays unchanged.
        "raw_path": (raw.removeprefix(begin) or b"/") if raw.startswith(begin) else raw,
    }


class PeerTurns:
    """Decide which request may start.

    The processor time of requests is measured. While all requests together stay within their share, none waits. Beyond
    it, they wait in one line for each peer and kind of request, and the lines are served in turn, so that a peer that
    repeats the most expensive request delays mostly itself.
    """

    def __init__(
        self,
        share: float,
        now_s: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Give requests this share of the processor time; `observe` receives the cost of each step."""
        self._share, self._now_s, self._observe = share, now_s, observe
        self._even_s = now_s() - BURST_S
        """Time at which the processor time used so far is within the share again."""
        self._lines: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        """(peer, kind) -> its waiting requests; the first line is served next."""
        self._counts: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def spent(self, seconds: float) -> None:
        """Count the processor time that a request used."""
        # Unused time accumulates only up to the burst; otherwise a quiet
        # night would permit minutes of uninterrupted requests.
        self._even_s = max(self._even_s, self._now_s() - BURST_S) + seconds / self._share
        self._observe(seconds)

    async def begin(self, peer: str, kind: str) -> bool:
        """Wait for a turn, and return True; return False if too many requests of this peer are already waiting."""
        # No request overtakes: while a line waits, new requests wait, too, even if time is left.
        if not self._lines and self._now_s() >= self._even_s:
            return True
        if self._counts.get(peer, 0) >= WAITING_MAX:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault((peer, kind), deque()).append(turn)
        self._counts[peer] = self._counts.get(peer, 0) + 1
        self._later()
        try:
            await turn
        finally:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]
        return True

    def _later(self) -> None:
        if self._timer is None and self._lines:
            wait_s = max(0.0, self._even_s - self._now_s())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        """Let one request begin; the next one begins only after this one's first step is measured."""
        self._timer = None
        while self._lines and self._now_s() >= self._even_s:
            line = next(iter(self._lines))
            waiting = self._lines.pop(line)
            turn = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # behind the others
            if not turn.done():  # otherwise the client has left in the meantime
                turn.set_result(None)
                break
        self._later()


class Paced:
    """Wrap an application, and make its requests wait for their turn."""

    def __init__(self, app: App, turns: PeerTurns) -> None:
        self._app, self._turns = app, turns

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path.startswith(EXEMPT):
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("", 0))[0]
        if not await self._turns.begin(peer_of(host), _kind(path)):
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
            headers.append((b"access-control-allow-origin", b"*"))
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": BUSY})
            return
        await Measured(self._app(scope, receive, send), self._turns.spent)


class Measured(Generic[T]):
    """Run a coroutine, and report the processor time of each of its steps."""

    def __init__(self, work: Awaitable[T], spent: Callable[[float], None]) -> None:
        self._work = cast(Coroutine[Any, Any, T], work)  # ASGI declares it as Awaitable
        self._spent = spent

    def __await__(self) -> Generator[Any, None, T]:
        thrown: BaseException | None = None
        while True:
            # Processor time of this thread, not elapsed time: waiting
            # for the store or a client costs the gate nothing.
            began = time.thread_time()
            try:
                waits = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as ended:
                return cast(T, ended.value)
            finally:
                self._spent(time.thread_time() - began)
            thrown = None
            try:
                yield waits
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # for example a cancellation, which the coroutine handles
                thrown = error


def _kind(path: str) -> str:
    """Return the kind of a request: its path without the object that it concerns."""
    words = path.split("/")
    # Without the tenant, so that one client does not get a line for each tenant that it queries.
    return words[4] if words[1:3] == ["api", "tenant"] and len(words) > 4 else "/".join(words[1:3])
