"""Serve headgate.inventory.v1 as JSON over HTTP, with an OpenAPI description and the page of the inventory."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from headgate import __version__, rest
from headgate.inventory.names import Invalid
from headgate.web.answers import document, static_file
from headgate.web.inventory.identity import CallerSessions, InventoryCall
from headgate.web.inventory.rpc import CALL_MAX_S, RpcStatus, methods, status
from headgate.web.inventory.server import REQUEST_SIZE_MAX_BYTES, V1
from headgate.web.server import CLIENT_CERTIFICATE

Json = dict[str, Any]

_PLAIN: dict[int, Json] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "pattern": "^[0-9]+$"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]+$"},
}
"""Type of a Protobuf field -> its schema; Protobuf's JSON encodes 64-bit numbers as strings."""
REFUSALS = {
    400: "INVALID_ARGUMENT: a field is wrong, or the body is not a JSON object.",
    401: "UNAUTHENTICATED: no credentials, or wrong ones.",
    403: "PERMISSION_DENIED: the caller lacks the permission.",
    404: "NOT_FOUND: no such object, or the caller may not see it.",
    409: "ALREADY_EXISTS, or ABORTED: another request changed it in the meantime.",
    410: "OUT_OF_RANGE: the journal no longer reaches back that far.",
    412: "FAILED_PRECONDITION: something else must exist or change first.",
    413: "INVALID_ARGUMENT: the body is too large.",
    422: "RESOURCE_EXHAUSTED: a quota or a limit is reached.",
    503: "UNAVAILABLE: the store is unreachable; try again.",
    504: "DEADLINE_EXCEEDED: the request took too long.",
}
"""HTTP status -> its meaning, with the name of the gRPC status."""

FILES = ("inventory.js", "live.js", "page.js", "style.css", "icon.svg")
"""Static files that the page needs; the inventory serves them itself, as it may run without a gate."""
VALUES_MAX = 100_000
"""Limit on the values of a body."""
SMALL_BYTES = 10_000
"""Size of a body above which it is parsed in a thread, so that the loop serves others meanwhile."""
SESSION = ("user", "project", "partition")
"""Fields of a session: sent as headers such as `headgate-user`, or as `session` in the body."""

_HTTP = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.ABORTED: 409,
    StatusCode.OUT_OF_RANGE: 410,
    StatusCode.FAILED_PRECONDITION: 412,
    StatusCode.RESOURCE_EXHAUSTED: 422,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}


class HttpRoute(NamedTuple):
    """Declare a route. `{name}` in the path is a field of the request; without a body, query parameters are fields
    too (`place.type=…`)."""

    verb: str
    path: str
    method: str

    @property
    def has_body(self) -> bool:
        return self.verb in ("POST", "PUT")


ROUTES = (
    HttpRoute("GET", "/v1/objects/{uuid}", "GetObject"),
    HttpRoute("GET", "/v1/objects/{uuid}/history", "History"),
    HttpRoute("POST", "/v1/objects/search", "Search"),
    HttpRoute("POST", "/v1/objects/apply", "Apply"),
    HttpRoute("POST", "/v1/objects/watch", "Watch"),
    HttpRoute("GET", "/v1/partitions", "ListPartitions"),
    HttpRoute("PUT", "/v1/partitions", "SetPartition"),
    HttpRoute("DELETE", "/v1/partitions/{partition}", "DeletePartition"),
    HttpRoute("GET", "/v1/types", "ListTypes"),
    HttpRoute("PUT", "/v1/types", "SetType"),
    HttpRoute("DELETE", "/v1/types/{code}", "DeleteType"),
    HttpRoute("GET", "/v1/definitions", "GetDefinition"),
    HttpRoute("PUT", "/v1/definitions", "SetDefinition"),
    HttpRoute("DELETE", "/v1/definitions", "DeleteDefinition"),
    HttpRoute("POST", "/v1/leases", "AskLease"),
    HttpRoute("GET", "/v1/leases", "ListLeases"),
    HttpRoute("GET", "/v1/leases/{id}", "GetLease"),
    HttpRoute("PUT", "/v1/leases/{id}", "ExtendLease"),
    HttpRoute("DELETE", "/v1/leases/{id}", "EndLease"),
    HttpRoute("PUT", "/v1/quotas", "SetQuota"),
    HttpRoute("GET", "/v1/quotas", "ListQuotas"),
    HttpRoute("DELETE", "/v1/quotas/{name}", "DeleteQuota"),
    HttpRoute("PUT", "/v1/health/{uuid}", "ReportHealth"),
    HttpRoute("GET", "/v1/health/{uuid}", "GetHealth"),
    HttpRoute("GET", "/v1/health", "ListHealth"),
)


def openapi_document(routes: Iterable[HttpRoute], service: ServiceDescriptor) -> Json:
    """Return the OpenAPI description of the routes."""
    schemas: dict[str, Json] = {
        "Refusal": {
            "type": "object",
            "properties": {"status": {"type": "string"}, "detail": {"type": "string"}},
            "required": ["status", "detail"],
        },
        "Malformed": {
            "type": "object",
            "description": "The response to an address that contains control characters.",
            "properties": {"error": {"type": "string"}, "description": {"type": "string"}},
            "required": ["error", "description"],
        },
    }
    paths: dict[str, Json] = {}
    for route in routes:
        method = service.methods_by_name[route.method]
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate's inventory", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        # Client certificates, and trusted callers on loopback, need no token.
        "security": [{"bearer": []}, {}],
    }


def _operation(route: HttpRoute, method: MethodDescriptor, schemas: dict[str, Json]) -> Json:
    inside = re.findall(r"{(\w+)}", route.path)
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in inside
    ]
    parameters += [
        {"name": f"headgate-{name}", "in": "header", "schema": {"type": "string"}}
        for name in ("user", "project", "partition")
    ]
    if not route.has_body:
        parameters += [
            {"name": name, "in": "query", "schema": schema}
            for name, schema in _query(method.input_type)
            if name not in inside
        ]
    kind = "application/x-ndjson" if method.server_streaming else "application/json"
    answer = {"description": "Done", "content": {kind: {"schema": _ref(method.output_type, schemas)}}}
    bad = {"anyOf": [_named("Refusal"), _named("Malformed")]}
    refusals = {
        str(code): {
            "description": text,
            "content": {"application/json": {"schema": bad if code == 400 else _named("Refusal")}},
        }
        for code, text in REFUSALS.items()
    }
    body: Json = {}
    if route.has_body:
        body = {"requestBody": {"content": {"application/json": {"schema": _ref(method.input_type, schemas)}}}}
    return {
        "operationId": route.method,
        "parameters": parameters,
        **body,
        "responses": {"200": answer, **refusals},
    }


def _query(message: Descriptor, prefix: str = "") -> Iterable[tuple[str, Json]]:
    for field in message.fields:
        # The session is sent in headers.
        if field.name == "session":
            continue
        if field.message_type is None:
            yield prefix + field.name, _PLAIN[field.type]
        else:
            yield from _query(field.message_type, f"{prefix}{field.name}.")


def _named(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _ref(message: Descriptor, schemas: dict[str, Json]) -> Json:
    if message.name not in schemas:
        schemas[message.name] = {}  # registered before its fields are visited: a message may contain itself
        properties = {field.name: _field(field, schemas) for field in message.fields}
        schemas[message.name] = {"type": "object", "properties": properties, "additionalProperties": False}
    return _named(message.name)


def _field(field: FieldDescriptor, schemas: dict[str, Json]) -> Json:
    message = field.message_type
    # Protobuf declares a map as a repeated message of key and value; its JSON form is an object.
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _field(message.fields_by_name["value"], schemas)}
    one = _value(field, schemas)
    return {"type": "array", "items": one} if field.is_repeated else one


def _value(field: FieldDescriptor, schemas: dict[str, Json]) -> Json:
    if field.message_type is not None:
        return _ref(field.message_type, schemas)
    if field.enum_type is not None:
        return {"type": "string", "enum": [one.name for one in field.enum_type.values]}
    return _PLAIN[field.type]


@rest.get("/", include_in_schema=False)
async def inventory_page() -> rest.Response[str]:
    """Return the page of the inventory. Its links are relative, so it works under any prefix."""
    text = document("inventory", "Inventory").replace('"/static/', '"static/').replace('href="/"', 'href="?"')
    return rest.Response(text, media_type="text/html", headers={"Cache-Control": "no-cache"})


@rest.get(["/static/{name:str}", "/static/{edition:str}/{name:str}"], include_in_schema=False)
async def inventory_file(request: rest.HttpRequest, name: str, edition: str = "") -> rest.Response[bytes | None]:
    """Serve one of the static files of the page."""
    headers = request.headers
    if name not in FILES:
        raise rest.NotFoundException(f"there is no {name}")
    return static_file(name, edition, headers.get("accept-encoding", ""), headers.get("if-none-match", ""))


PAGES = (inventory_page, inventory_file)


def create_app(parts: Sequence[object], sessions: CallerSessions) -> rest.WebApplication:
    """Create the application. The `parts` implement the methods, as for gRPC; `sessions` admit callers."""
    answers = methods(V1, parts)
    handlers = [_handler(route, *answers[route.method], sessions) for route in ROUTES]
    return rest.WebApplication([*handlers, _openapi(), *PAGES], body_max_bytes=REQUEST_SIZE_MAX_BYTES)


def _openapi() -> rest.Handler:
    text = json.dumps(openapi_document(ROUTES, V1), indent=1)

    async def openapi() -> rest.Response[bytes]:
        return rest.Response(text.encode(), media_type="application/json")

    return rest.get("/openapi.json", include_in_schema=False)(openapi)


def _handler(
    route: HttpRoute,
    method: MethodDescriptor,
    answer: Callable[..., Any],  # of any message
    sessions: CallerSessions,
) -> rest.Handler:
    made = GetMessageClass(method.input_type)

    async def handle(request: rest.HttpRequest) -> rest.Response[Any] | rest.StreamResponse:
        try:
            headers = {key.lower(): value for key, value in request.headers.items()}
            call = InventoryCall(headers, request.scope["state"].get(CLIENT_CERTIFICATE, b""))
            # Before the body is read: only callers with credentials may make the server parse megabytes.
            sessions.admit(call)
            message = await _read(route, request, made())
            if method.server_streaming:
                return await _stream(answer(call, message))
            # Only single responses have a time limit; a stream may last for days.
            async with asyncio.timeout(CALL_MAX_S):
                return _json(await answer(call, message), 200)
        except rest.HTTPException as refused:
            body = _status_body(RpcStatus(StatusCode.INVALID_ARGUMENT, refused.detail))
            return rest.Response(body, status_code=refused.status_code)
        except Exception as error:
            return _refusal(status(error))

    handle.__name__ = route.method
    path = route.path.replace("}", ":str}")
    return rest.route(path, (route.verb,), include_in_schema=False)(handle)


async def _read(route: HttpRoute, request: rest.HttpRequest, message: Message) -> Message:
    """Read the request into the message. Raise Invalid."""
    fields: dict[str, Any] = {}  # JSON
    body = await request.body() if route.has_body else b""
    # Each value takes Protobuf's parser many microseconds, and four megabytes have room for a million.
    if (count := body.count(b",")) > VALUES_MAX:
        raise Invalid(f"the body has about {count} values; at most {VALUES_MAX} are allowed")
    if route.has_body:
        try:
            fields = json.loads(body or b"{}")
        # A body of thousands of brackets exceeds the decoder's recursion limit.
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the body is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise Invalid("the body is not a JSON object")
    else:
        for key, value in request.query.pairs:
            _put(fields, key.split("."), value)
    # The path wins: logs and proxies see only the address, so the body must not name another object.
    fields |= request.path_params
    session = {name: request.headers.get(f"headgate-{name}", "") for name in SESSION}
    given = fields.get("session", {})
    if not isinstance(given, dict):
        raise Invalid("session is not a JSON object")
    fields["session"] = {**session, **given}
    try:
        parse = partial(ParseDict, _flags(fields, message), message)
        return await asyncio.to_thread(parse) if len(body) > SMALL_BYTES else parse()
    except (ParseError, RecursionError) as error:
        raise Invalid(f"invalid request for {route.method}: {error}") from error


def _put(fields: dict[str, Any], names: list[str], value: str) -> None:  # JSON
    for name in names[:-1]:
        inner = fields.setdefault(name, {})
        if not isinstance(inner, dict):
            raise Invalid(f"{name} is given both as a value and as an object with fields")
        fields = inner
    fields[names[-1]] = value


def _flags(fields: dict[str, Any], message: Message) -> dict[str, Any]:  # JSON
    """Convert the strings `true` and `false` of query parameters to booleans where the message has a boolean field."""
    words = {"true": True, "false": False}
    flags = {f.name for f in message.DESCRIPTOR.fields if f.type == FieldDescriptor.TYPE_BOOL}
    return {k: words.get(v, v) if k in flags and isinstance(v, str) else v for k, v in fields.items()}


async def _stream(messages: AsyncIterator[Message]) -> rest.StreamResponse:
    """Return a stream with one line of JSON per message. If the call fails before the first one, raise its error."""
    # The HTTP status can be chosen only before the first piece; a later error becomes a line of the stream.
    first = await anext(messages)

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield _line(_dict(first))
            async for one in messages:
                yield _line(_dict(one))
        except Exception as error:
            yield _line(_status_body(status(error)))

    return rest.StreamResponse(lines(), media_type="application/x-ndjson")


def _line(mapping: dict[str, Any]) -> bytes:  # JSON
    return json.dumps(mapping, ensure_ascii=False).encode() + b"\n"


def _dict(message: Message) -> dict[str, Any]:  # JSON
    # By default, Protobuf's JSON has names in camel case, but the API uses the declared names.
    return dict(MessageToDict(message, preserving_proto_field_name=True))


def _json(message: Message, code: int) -> rest.Response[Any]:  # JSON
    return rest.Response(_dict(message), status_code=code)


def _status_body(found: RpcStatus) -> dict[str, str]:
    return {"status": found.code.name, "detail": found.detail}


def _refusal(found: RpcStatus) -> rest.Response[Any]:  # JSON
    return rest.Response(_status_body(found), status_code=_HTTP.get(found.code, 500))
