"""Read a request with a limited body, and bind the parameters of handlers to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import HTTPConnection, Request, empty_receive
from starlette.types import Receive, Scope

from headgate.rest.response import HTTPException
from headgate.rest.routes import Handler, keys_of, segments

T = TypeVar("T")

BODY_MAX_BYTES = 10_000_000
"""Default size limit of a request's body; handlers and applications may set others."""

Source = Callable[[Any], Any]
"""Returns the value of a parameter from a request or a websocket."""
Binding = Callable[[Any], Awaitable[dict[str, Any]]]
"""Returns the values of all parameters of a handler, by name."""
_BODY, _QUERY = "body", "query"
JSONBody = Annotated[T, _BODY]
"""Marks the parameter that takes the body."""
FromQuery = Annotated[T, _QUERY]
"""Marks a parameter that is taken from the query."""
_WHERE = re.compile(r"`\$\.(.+)`$")
"""Matches the end of msgspec's message, which names the invalid part."""


class QueryValues(Mapping[str, str]):
    """Hold the query of an address; a name that occurs several times has its first value."""

    def __init__(self, raw: bytes) -> None:
        self.pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True)
        # Reversed, because the last pair of a name wins in a dict, but the first one must.
        self._first = dict(reversed(self.pairs))

    def __getitem__(self, name: str) -> str:
        return self._first[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self.pairs))

    def __len__(self) -> int:
        return len(self._first)

    def all(self, name: str) -> list[str]:
        """Return every value of the name, in the order of the address."""
        return [value for known, value in self.pairs if known == name]


class HttpRequest(Request[Any]):
    """Represent one request. Its body has at most `body_max_bytes`."""

    def __init__(self, scope: Scope, receive: Receive = empty_receive, body_max_bytes: int = BODY_MAX_BYTES) -> None:
        super().__init__(scope, receive)
        self._body_max_bytes = body_max_bytes

    @cached_property
    def query(self) -> QueryValues:
        return QueryValues(self.scope.get("query_string", b""))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raise 413 as soon as it is too large, and 400 for an invalid length."""
        length = self.headers.get("content-length", "0")
        # `int` accepts digits of other scripts, blanks and signs.
        if not (length.isdecimal() and length.isascii()):
            raise HTTPException(f"Invalid content-length: {length[:40]!r}", status_code=400)
        # Python raises ValueError for a number of thousands of digits; twenty are already too large.
        size = int(length[:20])
        if size <= self._body_max_bytes:
            size = 0
            async for piece in super().stream():
                size += len(piece)
                if size > self._body_max_bytes:
                    break
                yield piece
        if size > self._body_max_bytes:
            raise HTTPException(status_code=413)


def bound(handler: Handler, shared: Mapping[type, object]) -> Binding:
    """Return a function that binds the parameters of a handler to a request, and to objects in `shared` by their
    class. The signature is inspected once. Raise TypeError for a parameter that neither can supply."""
    hints = get_type_hints(handler.fn, include_extras=True)
    sources, bodies = dict[str, Source](), list[tuple[str, Any]]()
    for name, parameter in inspect.signature(handler.fn).parameters.items():
        kind, hint = _kind(hints.get(name))
        if kind == _BODY:
            bodies.append((name, hint))
        else:
            sources[name] = _source(handler, name, kind, hint, parameter.default, shared)

    async def values(connection: Any) -> dict[str, Any]:  # a request or a websocket
        # Cheap values come first, so that a request with a bad query is refused before its body is read.
        found = {name: source(connection) for name, source in sources.items()}
        for name, hint in bodies:
            found[name] = _decoded(connection, name, await connection.body(), hint)
        return found

    return values


def body_of(handler: Handler) -> Any:
    """Return the type of the body that a handler takes, or None if it takes none."""
    hints = get_type_hints(handler.fn, include_extras=True)
    return next((hint for kind, hint in map(_kind, hints.values()) if kind == _BODY), None)


def _kind(hint: Any) -> tuple[str, Any]:
    if get_origin(hint) is Annotated:
        inner, kind = get_args(hint)
        return str(kind), inner
    return "", hint


def _source(handler: Handler, name: str, kind: str, hint: Any, default: Any, shared: Mapping[type, object]) -> Source:
    if kind == _QUERY:
        return lambda request: _from_query(request, name, hint, default)
    if hint in shared:
        return lambda _: shared[hint]
    if isinstance(hint, type) and issubclass(hint, HTTPConnection):
        return lambda connection: connection
    having = [name in keys_of(path) for path in handler.paths]
    if hint is str and all(having):
        return lambda connection: connection.path_params[name]
    if hint is str and any(having) and default is not inspect.Parameter.empty:
        return lambda connection: connection.path_params.get(name, default)
    raise TypeError(f"{handler.name}: neither a request nor the shared objects supply the parameter {name}")


def _from_query(request: Any, name: str, hint: Any, default: Any) -> Any:
    text = request.query.get(name)
    if text is None and default is not inspect.Parameter.empty:
        return default
    return _converted(request, name, text, hint)


def _decoded(request: Any, name: str, body: bytes, hint: Any) -> Any:
    """Decode a body. Raise 400, RecursionError, UnicodeError."""
    if not body:
        raise _refused(request, name, "a JSON body is required")
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise HTTPException(str(error), status_code=400) from error
    return _converted(request, name, document, hint)


def _converted(request: Any, name: str, value: Any, hint: Any) -> Any:
    try:
        # Not strict, because the values of a query are always strings.
        return msgspec.convert(value, hint, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        where = _WHERE.search(str(error))
        raise _refused(request, where[1] if where else name, str(error).split(" - ", 1)[0]) from error


def _refused(request: Any, key: str, message: str) -> HTTPException:
    """Return a 400 that names the invalid part."""
    query = request.scope.get("query_string", b"").decode("latin-1")
    place = "/" + "/".join(segments(request.scope["path"])) + (f"?{query}" if query else "")
    text = f"Validation failed for {request.scope['method']} {place}"
    return HTTPException(text, status_code=400, extra=[{"key": key, "message": message}])
