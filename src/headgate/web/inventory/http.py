"""headgate.inventory.v1 as JSON over HTTP: the same methods, messages in their JSON form, an OpenAPI of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from headgate.inventory.names import Invalid
from headgate.rest import (
    Handler,
    HTTPException,
    HttpRequest,
    Response,
    StreamResponse,
    WebApplication,
    get,
)
from headgate.rest import route as serve
from headgate.web.inventory.identity import InventoryCall
from headgate.web.inventory.openapi import document
from headgate.web.inventory.pages import PAGES
from headgate.web.inventory.rpc import CALL_MAX_S, methods
from headgate.web.inventory.server import REQUEST_SIZE_MAX_BYTES, V1
from headgate.web.inventory.status import RpcStatus, status
from headgate.web.serve import CLIENT_CERTIFICATE


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
SESSION = ("user", "project", "partition")
"""Parts of a session: sent as headers such as `headgate-user`, or as a session in the body."""

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


def create_app(parts: Sequence[object]) -> WebApplication:
    """Create the application. `parts` answer the methods, as for gRPC."""
    answers = methods(V1, parts)
    handlers = [_handler(route, *answers[route.method]) for route in ROUTES]
    return WebApplication([*handlers, _openapi(), *PAGES], body_max_bytes=REQUEST_SIZE_MAX_BYTES)


def _openapi() -> Handler:
    text = json.dumps(document(ROUTES, V1), indent=1)

    async def openapi() -> Response[bytes]:
        return Response(text.encode(), media_type="application/json")

    return get("/openapi.json", include_in_schema=False)(openapi)


def _handler(route: HttpRoute, method: MethodDescriptor, answer: Callable[..., Any]) -> Handler:  # of any message
    made = GetMessageClass(method.input_type)

    async def handle(request: HttpRequest) -> Response[Any] | StreamResponse:
        try:
            headers = {key.lower(): value for key, value in request.headers.items()}
            call = InventoryCall(headers, request.scope["state"].get(CLIENT_CERTIFICATE, b""))
            message = await _read(route, request, made())
            if method.server_streaming:
                return await _stream(answer(call, message))
            async with asyncio.timeout(CALL_MAX_S):
                return _json(await answer(call, message), 200)
        except HTTPException as refused:
            body = _status_body(RpcStatus(StatusCode.INVALID_ARGUMENT, refused.detail))
            return Response(body, status_code=refused.status_code)
        except Exception as error:
            return _refusal(status(error))

    handle.__name__ = route.method
    path = route.path.replace("}", ":str}")
    return serve(path, (route.verb,), include_in_schema=False)(handle)


async def _read(route: HttpRoute, request: HttpRequest, message: Message) -> Message:
    """Read the request into the message. Raise Invalid."""
    fields: dict[str, Any] = {}  # JSON
    if route.has_body:
        try:
            fields = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the body is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise Invalid("the body is not a JSON object")
    else:
        for key, value in request.query.pairs:
            _put(fields, key.split("."), value)
    # The path wins: a body cannot name another object than the address, which logs and proxies see.
    fields |= request.path_params
    session = {name: request.headers.get(f"headgate-{name}", "") for name in SESSION}
    given = fields.get("session", {})
    if not isinstance(given, dict):
        raise Invalid("session is not a JSON object")
    fields["session"] = {**session, **given}
    try:
        return ParseDict(_flags(fields, message), message)
    except (ParseError, RecursionError) as error:
        raise Invalid(f"this is not what {route.method} takes: {error}") from error


def _put(fields: dict[str, Any], names: list[str], value: str) -> None:  # JSON
    for name in names[:-1]:
        inner = fields.setdefault(name, {})
        if not isinstance(inner, dict):
            raise Invalid(f"{name} is given twice, and not alike")
        fields = inner
    fields[names[-1]] = value


def _flags(fields: dict[str, Any], message: Message) -> dict[str, Any]:  # JSON
    """Turn the words true and false, as in query parameters, into truth values where the message wants those."""
    words = {"true": True, "false": False}
    flags = {f.name for f in message.DESCRIPTOR.fields if f.type == FieldDescriptor.TYPE_BOOL}
    return {k: words.get(v, v) if k in flags and isinstance(v, str) else v for k, v in fields.items()}


async def _stream(messages: AsyncIterator[Message]) -> StreamResponse:
    """Stream one line of JSON per message. An immediate refusal is answered with its status."""
    # The status line can be chosen only before the first piece; later errors are a line of the stream.
    first = await anext(messages)

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield _line(_dict(first))
            async for one in messages:
                yield _line(_dict(one))
        except Exception as error:
            yield _line(_status_body(status(error)))

    return StreamResponse(lines(), media_type="application/x-ndjson")


def _line(mapping: dict[str, Any]) -> bytes:  # JSON
    return json.dumps(mapping, ensure_ascii=False).encode() + b"\n"


def _dict(message: Message) -> dict[str, Any]:  # JSON
    return dict(MessageToDict(message, preserving_proto_field_name=True))


def _json(message: Message, code: int) -> Response[Any]:  # JSON
    return Response(_dict(message), status_code=code)


def _status_body(found: RpcStatus) -> dict[str, str]:
    return {"status": found.code.name, "detail": found.detail}


def _refusal(found: RpcStatus) -> Response[Any]:  # JSON
    return Response(_status_body(found), status_code=_HTTP.get(found.code, 500))
