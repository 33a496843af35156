"""Describe the API in OpenAPI, from the signatures of handlers and from their `opt`.

Keys of `opt`:
- `rest`: the possible ends of a path whose last key matches the rest of the address.
- `body`: the last word of such a path -> the type of its body, if the types differ.
- `query`: the query parameters.
- `answers`: the content types of responses that are not JSON.
- `alike`: further statuses whose responses have the same type as the successful one.
- `bare`: statuses without a body.
- `refuses`: statuses of refusals that only this handler has.
- `former`: the paths that are deprecated.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from headgate import __version__
from headgate.rest import Handler, Response
from headgate.rest.request import body_of
from headgate.rest.response import BARE, JSON

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "integer", "minimum": 0}
FLAG: Json = {"enum": ["true", "false", "1", "0"]}
_ERROR: Json = {
    "type": "object",
    "properties": {"error": TEXT, "description": TEXT},
    "required": ["error", "description"],
}
_KEYS = re.compile(r"{(\w+)}")
HEADERS = {"Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff"}
"""Headers of every response that is not a refusal."""


class QueryParameter(NamedTuple):
    """Declare a query parameter of a route."""

    name: str
    text: str = ""
    schema: Mapping[str, Any] = TEXT
    several: bool = False
    """Whether the parameter may be repeated; results match any of the values."""

    def described(self) -> Json:
        """Return the OpenAPI parameter."""
        schema = {"type": "array", "items": self.schema} if self.several else self.schema
        parameter = {"name": self.name, "in": "query", "schema": schema, "required": False}
        return {**parameter, "description": self.text} if self.text else parameter


class Operation(NamedTuple):
    """Represent one method of one path."""

    handler: Handler
    method: str
    path: str

    @property
    def body(self) -> Any:
        """Return the type of the request body; None: the request has no body."""
        kinds = self.handler.opt.get("body")
        return kinds[self.path.rpartition("/")[2]] if kinds else body_of(self.handler)

    @property
    def answer(self) -> Any:
        """Return the type of the response body."""
        hint = get_type_hints(self.handler.fn).get("return")
        return get_args(hint)[0] if get_origin(hint) is Response else hint

    @property
    def is_described(self) -> bool:
        """Return whether the response body is JSON of the handler's return type; `opt` describes other bodies."""
        return "answers" not in self.handler.opt and self.handler.status_code not in BARE


def paths_of(handler: Handler) -> list[str]:
    """Return the paths of a route; if its last key matches the rest of the address, one path for each end in `opt`."""
    path = _plain(min(handler.paths))
    head = path.removesuffix("{rest}")
    return [head + tail for tail in handler.opt.get("rest", ())] or [path]


def _plain(template: str) -> str:
    return re.sub(r":\w+}", "}", template)


@cache
def as_json(handlers: tuple[Handler, ...]) -> bytes:
    """Return the description of an application as JSON; it is built once."""
    return msgspec.json.encode(described(handlers))


@cache
def as_yaml(handlers: tuple[Handler, ...]) -> bytes:
    """Return the description as YAML; it is built once, as that takes long."""
    # Decoded from JSON first, as YAML would mark tuples as different from lists.
    return msgspec.yaml.encode(msgspec.json.decode(as_json(handlers)))


def described(handlers: tuple[Handler, ...]) -> Json:
    """Return the description of every path, query, body, response and refusal of the handlers."""
    operations = sorted(_operations(handlers), key=lambda one: (one.path, one.method))
    kinds = [kind for one in operations for kind in (one.body, one.answer if one.is_described else None)]
    # All types in one call, so that types of the same name are described
    # once and never clash; bodies and responses alternate.
    schemas, shapes = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Json] = {}
    for one, body, answer in zip(operations, schemas[::2], schemas[1::2], strict=True):
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, body, answer)
    return {
        "info": {
            "title": "Headgate",
            "version": __version__,
            "description": "Zuul's REST API, as far as Headgate supports it, and Headgate's own additions.",
        },
        "openapi": "3.1.0",
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": {**shapes, "Error": _ERROR}},
    }


def _operations(handlers: tuple[Handler, ...]) -> Iterator[Operation]:
    for handler in handlers:
        if handler.include_in_schema:
            several = paths_of(handler) if "rest" in handler.opt else [_plain(path) for path in handler.paths]
            yield from (Operation(handler, method, path) for method in handler.methods for path in several)


def _operation(one: Operation, body: Json, answer: Json) -> Json:
    handler, path, method = one.handler, one.path, one.method
    queries: tuple[QueryParameter, ...] = handler.opt.get("query", ())
    keys = [
        {"name": key, "in": "path", "schema": {**TEXT, "minLength": 1}, "required": True} for key in _KEYS.findall(path)
    ]
    found: Json = {
        "summary": handler.name.title().replace("_", ""),
        "description": inspect.getdoc(handler.fn) or "",
        "operationId": _KEYS.sub(r"\1", f"{method.lower()}{path}").replace("/", "-"),
        "parameters": [*keys, *(query.described() for query in queries)],
    }
    if path in handler.opt.get("former", ()):
        found["deprecated"] = True
    if one.body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": body}}, "required": True}
    good = _good(one, answer)
    responses: Json = {str(handler.status_code): good}
    responses |= {str(status): _refusal(status) for status in _refusals(handler, path, method, keys, queries)}
    for status in handler.opt.get("alike", ()):
        responses[str(status)] = {**good, "description": HTTPStatus(status).phrase}
    known_already = (304,) if method == "GET" and path.startswith("/api") else ()
    for status in (*known_already, *handler.opt.get("bare", ())):
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
    return {**found, "responses": responses}


def _good(one: Operation, answer: Json) -> Json:
    """Describe the successful response."""
    handler, headers = one.handler, {name: {"schema": TEXT} for name in HEADERS}
    if "answers" in handler.opt:
        content: Json = {kind: {"schema": {}} for kind in handler.opt["answers"]}
        return {"description": "The requested content.", "content": content}
    response = {"description": HTTPStatus(handler.status_code).description, "headers": headers}
    return {**response, "content": {handler.media_type or JSON: {"schema": answer}}} if one.is_described else response


def _refusals(handler: Handler, path: str, method: str, keys: list[Json], queries: object) -> Iterator[int]:
    """Yield the statuses of possible refusals."""
    writes = method != "GET"
    if keys or queries or writes:
        yield 400
    # Every path can be private: the tenant's rules decide that, not the route.
    yield from (401, 403)
    if keys:
        yield 404
    # A read gets this status only where a graph cannot be frozen because of its errors.
    if writes or "freeze-job" in path:
        yield 409
    if writes:
        yield from (413, 415)
    # This is the answer until the configuration of the tenant has been read.
    if "/tenant/{tenant}/" in path:
        yield 422
    yield from handler.opt.get("refuses", ())
    yield 503


def _refusal(status: int) -> Json:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}, "text/html": {"schema": TEXT}}
    return {"description": HTTPStatus(status).phrase, "content": content}
