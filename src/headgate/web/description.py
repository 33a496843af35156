"""The description of the API in OpenAPI: what Litestar knows of the routes, completed by what they say in `opt`.

`opt["rest"]` has the ends of a path that takes the rest of an address, `opt["body"]` the type of the body by the last
word of the path where it depends on that, `opt["query"]` what may be asked, `opt["answers"]` the content types of what
is not JSON, `opt["alike"]` further statuses whose answers look as the one that succeeds, `opt["bare"]` those without a
body, and `opt["refuses"]` refusals that others do not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from litestar import Litestar, Request
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.routes import HTTPRoute

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


class QueryParameter(NamedTuple):
    """Declare a query parameter of a route."""

    name: str
    text: str = ""
    schema: Mapping[str, Any] = TEXT
    several: bool = False
    """It may be given several times: any of the values will do."""

    def described(self) -> Json:
        """Return the OpenAPI parameter."""
        schema = {"type": "array", "items": self.schema} if self.several else self.schema
        told = {"name": self.name, "in": "query", "schema": schema, "required": False}
        return {**told, "description": self.text} if self.text else told


def paths_of(handler: HTTPRouteHandler | WebsocketRouteHandler) -> list[str]:
    """Return the paths of a route: of one that takes the rest of an address, those that `opt` names in its place."""
    path = re.sub(r":\w+}", "}", min(handler.paths))
    head = path.removesuffix("{rest}")
    return [head + tail for tail in handler.opt.get("rest", ())] or [path]


class CompleteJson(JsonRenderPlugin):
    """Serve the completed description of an application as JSON."""

    _made: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: Json) -> bytes:
        if self._made is None:
            self._made = super().render(request, completed(openapi_schema, request.app))
        return self._made


class CompleteYaml(YamlRenderPlugin):
    """Serve the completed description of an application as YAML, which takes long to make."""

    _made: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: Json) -> bytes:
        if self._made is None:
            self._made = super().render(request, completed(openapi_schema, request.app))
        return self._made


def completed(schema: Json, app: Litestar) -> Json:
    """Return the description with every path, query, body and refusal of the routes; `schema` is Litestar's."""
    shapes: Json = {**schema.get("components", {}).get("schemas", {}), "Error": _ERROR}
    paths: dict[str, Json] = {}
    for route in app.routes:
        if not isinstance(route, HTTPRoute) or route.path_format not in schema["paths"]:
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods - {"OPTIONS", "HEAD"}):
                known = schema["paths"][route.path_format].get(method.lower())
                several = paths_of(handler) if "rest" in handler.opt else [route.path_format]
                for path in several if known is not None else ():
                    paths.setdefault(path, {})[method.lower()] = _operation(known, handler, path, method, shapes)
    found = {**schema, "paths": dict(sorted(paths.items())), "components": {"schemas": shapes}}
    return dict(msgspec.json.decode(msgspec.json.encode(found)))  # in YAML, a tuple is not a list


def _operation(known: Json, handler: HTTPRouteHandler, path: str, method: str, shapes: Json) -> Json:
    queries: tuple[QueryParameter, ...] = handler.opt.get("query", ())
    keys = [
        {"name": key, "in": "path", "schema": {**TEXT, "minLength": 1}, "required": True} for key in _KEYS.findall(path)
    ]
    found = {**known, "operationId": _KEYS.sub(r"\1", f"{method.lower()}{path}").replace("/", "-")}
    found["parameters"] = [*keys, *(one.described() for one in queries)]
    if "body" in handler.opt:
        kind = handler.opt["body"][path.rpartition("/")[2]]
        (schema,), more = msgspec.json.schema_components((kind,), ref_template="#/components/schemas/{name}")
        shapes.update(more)
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}, "required": True}
    if "answers" in handler.opt:
        body: Json = {kind: {"schema": {}} for kind in handler.opt["answers"]}
        found["responses"] = {"200": {"description": "As asked.", "content": body}}
    answers = {status: one for status, one in found["responses"].items() if status < "300"}
    refused = {str(status): _refusal(status) for status in _refusals(handler, path, method, keys, queries)}
    found["responses"] = {**answers, **refused}
    for status in handler.opt.get("alike", ()):
        found["responses"][str(status)] = {**answers["200"], "description": HTTPStatus(status).phrase}
    known_already = (304,) if method == "GET" and path.startswith("/api") else ()
    for status in (*known_already, *handler.opt.get("bare", ())):
        found["responses"][str(status)] = {"description": HTTPStatus(status).phrase}
    return found


def _refusals(handler: HTTPRouteHandler, path: str, method: str, keys: list[Json], queries: object) -> Iterator[int]:
    """Yield the statuses of what may be in the way."""
    writes = method != "GET"
    if keys or queries or writes:
        yield 400
    yield from (401, 403)
    if keys:
        yield 404
    if writes or "freeze-job" in path:
        yield 409
    if writes:
        yield from (413, 415)
    if "/tenant/{tenant}/" in path:
        yield 422
    yield from handler.opt.get("refuses", ())
    yield 503


def _refusal(status: int) -> Json:
    told = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}, "text/html": {"schema": TEXT}}
    return {"description": HTTPStatus(status).phrase, "content": told}
