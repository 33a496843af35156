"""Run an ASGI application of handlers, over HTTP and websockets."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette import responses, websockets
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from headgate.rest.request import BODY_MAX_BYTES, Binding, HttpRequest, bound
from headgate.rest.response import JSON, HTTPException, NotFoundException, Response
from headgate.rest.routes import SOCKET, Guard, Handler, RouteTarget, RouteTrie, segments

log = logging.getLogger("headgate.web")

Answer = Callable[[HttpRequest, Any], responses.Response]
"""Makes the response to an exception."""
CLOSED = 4_000
"""Close code of a refused websocket, to which the HTTP status is added."""
_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")


class WebApplication:
    """Answer requests with handlers."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        shared: Iterable[object] = (),
        *,
        guard: Guard | None = None,
        headers: Mapping[str, str] | None = None,
        answers: Mapping[type[Exception], Answer] | None = None,
        refused: Callable[[Exception, Scope], Awaitable[None]] | None = None,
        body_max_bytes: int = BODY_MAX_BYTES,
    ) -> None:
        """Create an application from handlers and shared objects: a parameter annotated with the class of one of
        `shared` receives that object. The guard is called before any handler. `headers` are added to every response
        that does not set them. `answers` make the responses to exceptions; `refused` is called with each exception
        first."""
        self.handlers = tuple(handlers)
        self._guard, self._refused, self._body_max_bytes = guard, refused, body_max_bytes
        self._headers = dict(headers or {})
        self._answers: Mapping[type[Exception], Answer] = {HTTPException: _plain, Exception: _fault} | dict(
            answers or {}
        )
        self._paths = RouteTrie[Handler]()
        objects, self._bound = {type(one): one for one in shared}, dict[Handler, Binding]()
        for handler in self.handlers:
            self._bound[handler] = bound(handler, objects)
            for path in handler.paths:
                for method in handler.methods or (SOCKET,):
                    self._paths.add(path, method, handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except ClientDisconnect:
            return
        except Exception as error:
            if self._refused is not None:
                await self._refused(error, scope)
            answer = self._answer_of(HttpRequest(scope), error)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> responses.Response:
        """Return the response of the handler. Raise HTTPException, and whatever the handler raises."""
        found = self._found(scope)
        method = scope["method"]
        one = found.get(method)
        if one is None:  # without the guard: the allowed methods are no secret
            allowed = ", ".join(sorted({*found, "OPTIONS"} - {SOCKET}))
            if method != "OPTIONS":
                raise HTTPException(status_code=405, headers={"Allow": allowed})
            return self._with_headers(Response(None, status_code=204, headers={"Allow": allowed}))
        handler = one.handler
        request = HttpRequest(scope, receive, handler.body_max_bytes or self._body_max_bytes)
        # Before the arguments are bound, so that the body of a caller without permission is never read.
        await self._guarded(request, handler)
        result = await handler.fn(**await self._bound[handler](request))
        if not isinstance(result, responses.Response):
            result = Response(result, status_code=handler.status_code, media_type=handler.media_type or JSON)
        return self._with_headers(result)

    def _found(self, scope: Scope) -> dict[str, RouteTarget[Handler]]:
        """Return the targets of the address, by method, and put its keys into the scope. Raise 400, 404."""
        scope["path_params"] = {}
        # If the settings name no root, URLs in responses are built from this header.
        if any(name == b"host" and _HOST.fullmatch(value) is None for name, value in scope["headers"]):
            raise HTTPException("Invalid host header", status_code=400)
        words = segments(scope["path"])
        found, values = self._paths.find(words)
        if not found:
            raise NotFoundException
        # Guards and logs see one spelling, however many slashes the client wrote.
        scope["path"] = "/" + "/".join(words)
        method = SOCKET if scope["type"] == "websocket" else scope["method"]
        one = found.get(method) or next(iter(found.values()))
        scope["handler"], scope["template"] = one.handler, one.template
        scope["path_params"] = dict(zip(one.keys, values, strict=True))
        return found

    async def _guarded(self, connection: HTTPConnection, handler: Handler) -> None:
        """Call the guard. Raise what it raises."""
        if self._guard is not None:
            await self._guard(connection, handler)

    def _with_headers(self, answer: responses.Response) -> responses.Response:
        for name, value in self._headers.items():
            answer.headers.setdefault(name, value)
        return answer

    def _answer_of(self, request: HttpRequest, error: Exception) -> responses.Response:
        # The most specific class wins; `Exception` always has a response.
        kind = next(kind for kind in type(error).__mro__ if kind in self._answers)
        return self._answers[kind](request, error)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, why = 500, "Internal Server Error"
        try:
            one = self._found(scope).get(SOCKET)
            if one is None:
                raise NotFoundException
            socket = WebSocket(scope, receive, send)
            await self._guarded(socket, one.handler)
            await one.handler.fn(**await self._bound[one.handler](socket))
            return
        except WebSocketDisconnect:
            return
        except HTTPException as error:
            status, why = error.status_code, error.detail
        except Exception as error:
            log.error("websocket %s", scope["path"], exc_info=error)
        await send({"type": "websocket.close", "code": CLOSED + status, "reason": why})


def _plain(_: HttpRequest, error: HTTPException) -> Response[dict[str, Any]]:  # JSON
    body = {"status_code": error.status_code, "detail": error.detail}
    return Response(body, status_code=error.status_code, headers=error.headers)


def _fault(request: HttpRequest, error: Exception) -> Response[dict[str, Any]]:  # JSON
    log.error("%s %s", request.method, request.scope["path"], exc_info=error)
    return _plain(request, HTTPException())


class WebSocket(websockets.WebSocket):
    """Represent a websocket to a client."""

    async def receive_text(self) -> str:
        """Return the next message, whether it was sent as text or as bytes. Raise WebSocketDisconnect."""
        message = await self.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text if text is not None else (message.get("bytes") or b"").decode(errors="replace")
