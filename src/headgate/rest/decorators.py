"""Handlers: functions with the addresses and methods that they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from starlette.requests import HTTPConnection

Function = Callable[..., Awaitable[Any]]
Guard = Callable[[HTTPConnection, "Handler"], Awaitable[None]]
"""Raises HTTPException for who may not call the handler."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Handler:
    """Answer requests to some addresses with a function."""

    fn: Function
    paths: tuple[str, ...]
    """`/api/tenant/{tenant:str}/job/{rest:path}`: `str` is one segment, `path` is all that follow."""
    methods: frozenset[str]
    """Empty: it answers websockets."""
    status_code: int = 200
    media_type: str = ""
    """Of what it returns. Empty: JSON."""
    opt: Mapping[str, Any] = field(default_factory=dict)
    """What the description, the guards and the reference page know of it."""
    include_in_schema: bool = True
    body_max_bytes: int = 0
    """0: as the application says."""

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def is_socket(self) -> bool:
        return not self.methods


Decorator = Callable[[Function], Handler]


class RouteOptions(TypedDict, total=False):
    """Name what decorators take; see Handler."""

    status_code: int
    media_type: str
    opt: Mapping[str, Any]
    include_in_schema: bool
    body_max_bytes: int


def route(path: str | Sequence[str], methods: Sequence[str], **options: Unpack[RouteOptions]) -> Decorator:
    """Make a handler of several methods."""
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
