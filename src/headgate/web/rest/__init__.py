"""Serve functions over HTTP and websockets, on Starlette's requests and responses.

A route module makes handlers of functions (`@get("/api/tenant/{tenant:str}/jobs")`) and raises HTTPException. A
`WebApplication` finds the handler, calls it with what its signature asks for and answers with what it returns.
"""

from starlette.requests import HTTPConnection as Connection
from starlette.websockets import WebSocketDisconnect

from headgate.web.rest.application import WebApplication
from headgate.web.rest.decorators import Handler, delete, get, post, put, route, websocket
from headgate.web.rest.errors import HTTPException, NotFoundException
from headgate.web.rest.parameters import AppState, FromQuery, JSONBody
from headgate.web.rest.request import HttpRequest, QueryValues
from headgate.web.rest.response import Cookie, Redirect, Response, ServerSentEvents, StreamResponse
from headgate.web.rest.socket import WebSocket

__all__ = [
    "AppState",
    "Connection",
    "Cookie",
    "FromQuery",
    "HTTPException",
    "Handler",
    "HttpRequest",
    "JSONBody",
    "NotFoundException",
    "QueryValues",
    "Redirect",
    "Response",
    "ServerSentEvents",
    "StreamResponse",
    "WebApplication",
    "WebSocket",
    "WebSocketDisconnect",
    "delete",
    "get",
    "post",
    "put",
    "route",
    "websocket",
]
