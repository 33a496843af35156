"""Make handlers, which are functions with the addresses and methods that they answer, and find them by address."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from starlette.requests import HTTPConnection

from headgate.base.errors import HeadgateError

H = TypeVar("H")

Function = Callable[..., Awaitable[Any]]
Guard = Callable[[HTTPConnection, "Handler"], Awaitable[None]]
"""Raises HTTPException for a caller that may not use the handler."""

_KEY = re.compile(r"\{(\w+):(str|path)\}")
"""Key in a template, with its form."""
SOCKET = "WEBSOCKET"
"""Name that handlers of websockets have instead of an HTTP method."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Handler:
    """Answer requests to some addresses with a function."""

    fn: Function
    paths: tuple[str, ...]
    """Templates such as `/api/tenant/{tenant:str}/job/{rest:path}`: `str` matches one segment, `path` all remaining
    ones."""
    methods: frozenset[str]
    """HTTP methods; empty: the handler answers websockets."""
    status_code: int = 200
    media_type: str = ""
    """Media type of what the handler returns; empty: JSON."""
    opt: Mapping[str, Any] = field(default_factory=dict)
    """Metadata about the handler for the API description, the guards and the reference page."""
    include_in_schema: bool = True
    body_max_bytes: int = 0
    """Size limit of a request's body; 0: the limit of the application."""

    @property
    def name(self) -> str:
        return self.fn.__name__


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


class BadTemplate(HeadgateError, ValueError):
    """Report a template that cannot be served, or that two handlers would answer."""


@dataclass(slots=True)
class RouteTarget(Generic[H]):
    """Hold the handler for one method of an address, and the template and keys by which it is found."""

    handler: H
    template: str
    keys: tuple[str, ...]


@dataclass(slots=True)
class RouteNode(Generic[H]):
    """Represent a common prefix of templates."""

    words: dict[str, RouteNode[H]] = field(default_factory=dict)
    one: RouteNode[H] | None = None
    """Node for any other single segment."""
    rest: RouteNode[H] | None = None
    """Node for all remaining segments."""
    found: dict[str, RouteTarget[H]] = field(default_factory=dict)
    """Method -> target."""


def segments(path: str) -> list[str]:
    """Return the segments of a path, without the empty ones that double slashes create."""
    return [word for word in path.split("/") if word]


def keys_of(template: str) -> tuple[str, ...]:
    """Return the keys in a template."""
    return tuple(name for name, _ in _KEY.findall(template))


class RouteTrie(Generic[H]):
    """Find handlers by template. A word takes precedence over a key in the same position, whatever follows."""

    def __init__(self) -> None:
        self._root = RouteNode[H]()

    def add(self, template: str, method: str, handler: H) -> None:
        """Add a handler for one method. Raise BadTemplate."""
        node = self._root
        words = segments(template)
        for place, word in enumerate(words, 1):
            key = _KEY.fullmatch(word)
            if key is None:
                if "{" in word:
                    raise BadTemplate(f"{template}: a key is {{name:str}} or {{name:path}}, not {word}")
                node = node.words.setdefault(word, RouteNode())
            elif key[2] == "str":
                node.one = node.one or RouteNode()
                node = node.one
            else:
                if place < len(words):
                    raise BadTemplate(f"{template}: nothing can follow {word}")
                node.rest = node.rest or RouteNode()
                node = node.rest
        keys = keys_of(template)
        # Detected when the program starts: otherwise one of the two handlers would silently never be called.
        if method in node.found or len(set(keys)) < len(keys):
            raise BadTemplate(f"{method} {template} has two handlers, or the same key twice")
        node.found[method] = RouteTarget(handler, template, keys)

    def find(self, words: list[str]) -> tuple[dict[str, RouteTarget[H]], list[str]]:
        """Return the targets of an address by method, and the values of its keys; both are empty for an unknown
        address."""
        node, values = self._root, list[str]()
        for place, word in enumerate(words):
            # A search never goes back from a word to a key, so it takes one step per segment.
            below = node.words.get(word)
            if below is None:
                if node.one is None:
                    if node.rest is None:
                        return {}, []
                    values.append("/" + "/".join(words[place:]))
                    return node.rest.found, values
                values.append(word)
                below = node.one
            node = below
        return node.found, values
