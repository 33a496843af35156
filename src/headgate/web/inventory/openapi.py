"""OpenAPI of a service, from its declaration."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor

from headgate import __version__

Json = dict[str, Any]

_PLAIN: dict[int, Json] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "pattern": "^[0-9]+$"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]+$"},
}
"""Type of a Protobuf field -> its schema; Protobuf's JSON writes 64-bit numbers as text."""
REFUSALS = {
    400: "INVALID_ARGUMENT: a field is wrong, or the body is not a JSON object.",
    401: "UNAUTHENTICATED: no credentials, or wrong ones.",
    403: "PERMISSION_DENIED: this caller may not.",
    404: "NOT_FOUND: there is no such thing.",
    409: "ALREADY_EXISTS, or ABORTED: somebody else changed it meanwhile.",
    410: "OUT_OF_RANGE: the journal no longer reaches back that far.",
    412: "FAILED_PRECONDITION: something has to be done first.",
    413: "INVALID_ARGUMENT: the body is too large.",
    422: "RESOURCE_EXHAUSTED: a quota or a limit is reached.",
    503: "UNAVAILABLE: the store is away; try again.",
    504: "DEADLINE_EXCEEDED: it takes too long.",
}
"""HTTP status -> its meaning, with the name of the gRPC status."""


class RouteLike(Protocol):
    @property
    def verb(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def has_body(self) -> bool: ...


def document(routes: Iterable[RouteLike], service: ServiceDescriptor) -> Json:
    schemas: dict[str, Json] = {
        "Refusal": {
            "type": "object",
            "properties": {"status": {"type": "string"}, "detail": {"type": "string"}},
            "required": ["status", "detail"],
        },
        "Malformed": {
            "type": "object",
            "description": "The answer to an address with control characters.",
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
        "security": [{"bearer": []}, {}],
    }


def _operation(route: RouteLike, method: MethodDescriptor, schemas: dict[str, Json]) -> Json:
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
        schemas[message.name] = {}  # before its fields, which may be of it
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
