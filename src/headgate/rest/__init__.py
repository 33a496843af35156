"""Serve functions over HTTP and websockets, on Starlette's requests and responses.

A route module turns functions into handlers (`@get("/api/tenant/{tenant:str}/jobs")`) and raises HTTPException. A
`WebApplication` finds the handler, calls it with the arguments that its signature names, and sends what it returns.
"""

from starlette.requests import HTTPConnection as Connection
from starlette.websockets import WebSocketDisconnect

from headgate.rest.application import WebApplication, WebSocket
from headgate.rest.request import FromQuery, HttpRequest, JSONBody, QueryValues
from headgate.rest.response import (
    Cookie,
    HTTPException,
    NotFoundException,
    Redirect,
    Response,
    ServerSentEvents,
    StreamResponse,
)
from headgate.rest.routes import Handler, delete, get, post, put, route, websocket

__all__ = [
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
