"""Handlers: functions with the addresses and methods that they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from starlette.requests import HTTPConnection

Function = Callable[..., Awaitable[Any]]
Guard = Callable[[HTTPConnection, "Handler"], Awaitable[None]]
"""Raises HTTPException for a caller that may not use the handler."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Handler:
    """Answer requests to some addresses with a function."""

    fn: Function
    paths: tuple[str, ...]
    """Templates such as `/api/tenant/{tenant:str}/job/{rest:path}`: `str` matches one segment, `path` all that
    follow."""
    methods: frozenset[str]
    """HTTP methods; empty: the handler answers websockets."""
    status_code: int = 200
    media_type: str = ""
    """Media type of what the handler returns; empty: JSON."""
    opt: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the handler for the description, the guards and the reference page."""
    include_in_schema: bool = True
    body_max_bytes: int = 0
    """Size limit of a request's body; 0: the limit of the application."""

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def is_socket(self) -> bool:
        return not self.methods


Decorator = Callable[[Function], Handler]


class RouteOptions(TypedDict, total=False):
    """Name the arguments of the decorators; see Handler."""

    status_code: int
    media_type: str
    opt: Mapping[str, Any]
    include_in_schema: bool
    body_max_bytes: int


def route(path: str | Sequence[str], methods: Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    """Make a handler for several methods."""
    paths = (path,) if isinstance(path, str) else tuple(path)
    return lambda fn: Handler(fn=fn, paths=paths, methods=frozenset(methods), **options)


def get(path: str | Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    return route(path, ("GET",), **options)


def post(path: str | Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    options.setdefault("status_code", 201)
    return route(path, ("POST",), **options)


def put(path: str | Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    return route(path, ("PUT",), **options)


def delete(path: str | Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    options.setdefault("status_code", 204)
    return route(path, ("DELETE",), **options)


def websocket(path: str | Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    return route(path, (), **options)
