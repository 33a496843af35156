"""Build the gRPC handlers of a service from its declaration, and convert errors to statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headgate.inventory.names import Invalid
from headgate.map.tree import Undecodable
from headgate.services.inventory import errors
from headgate.store.types import Conflict, Corrupt, StoreError, TooLarge, Unavailable
from headgate.web.inventory.identity import InventoryCall

log = logging.getLogger("headgate.inventory")

DETAIL_SIZE_MAX_CHARS = 1_000
"""Limit on the length of a status message: gRPC sends it in a header, and headers are limited."""

CALL_MAX_S = 60.0
"""Time limit of a call that is not a stream, unless its client sets an earlier deadline."""

Context = Any  # grpc.aio.ServicerContext: its stubs leave the messages open


class RpcStatus(NamedTuple):
    code: grpc.StatusCode
    detail: str


# The first class that fits decides, so StoreError comes after the errors derived from it.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (Invalid, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Stale, grpc.StatusCode.ABORTED),
    (errors.Unmet, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Broad, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.MomentExpired, grpc.StatusCode.OUT_OF_RANGE),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (TooLarge, grpc.StatusCode.INVALID_ARGUMENT),
    (Conflict, grpc.StatusCode.ABORTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Corrupt, grpc.StatusCode.DATA_LOSS),
    (Undecodable, grpc.StatusCode.DATA_LOSS),
    (StoreError, grpc.StatusCode.UNAVAILABLE),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
)


def status(error: Exception) -> RpcStatus:
    """Return the status of an error. An unexpected error is INTERNAL, and is logged."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return RpcStatus(code, _short(str(error) or code.value[1]))
    log.error("a request failed with an unexpected error", exc_info=error)
    text = f"unexpected error: {type(error).__name__}; the server's log has the details"
    return RpcStatus(grpc.StatusCode.INTERNAL, _short(text))


def _short(text: str) -> str:
    text = text.replace("\x00", "\\0")
    return text if len(text) <= DETAIL_SIZE_MAX_CHARS else f"{text[: DETAIL_SIZE_MAX_CHARS - 1]}…"


def methods(
    service: ServiceDescriptor, parts: Sequence[object]
) -> dict[str, tuple[MethodDescriptor, Callable[..., Any]]]:  # of any message
    """Map the name of each method to its declaration and to the function of the part that implements it."""
    found = {}
    for method in service.methods:
        answer = next((getattr(part, method.name) for part in parts if hasattr(part, method.name)), None)
        assert answer is not None, f"no part implements {method.full_name}"
        found[method.name] = (method, answer)
    return found


def calls(service: ServiceDescriptor, parts: Sequence[object]) -> grpc.GenericRpcHandler:
    """Build the gRPC handler: a part implements a method if it has one of the same name, `answer(call, request)`."""
    made = {name: _made(method, answer) for name, (method, answer) in methods(service, parts).items()}
    return grpc.method_handlers_generic_handler(service.full_name, made)


def _made(method: MethodDescriptor, answer: Callable[..., Any]) -> grpc.RpcMethodHandler[bytes, Message]:  # any message
    read = GetMessageClass(method.input_type).FromString

    async def one(request: bytes, context: Context) -> Message | None:
        try:
            async with asyncio.timeout(CALL_MAX_S):
                # Decode here: gRPC itself would report a malformed request as an internal error.
                found: Message = await answer(call(context), read(request))
                return found
        except Exception as error:
            await _abort(context, error)
            return None

    async def several(request: bytes, context: Context) -> AsyncIterator[Message]:
        try:
            # Without a time limit, because a stream may last for days.
            async for found in answer(call(context), read(request)):
                yield found
        except Exception as error:
            await _abort(context, error)

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(several, response_serializer=_bytes)
    return grpc.unary_unary_rpc_method_handler(one, response_serializer=_bytes)


def _bytes(found: Message) -> bytes:
    return found.SerializeToString()


def call(context: Context) -> InventoryCall:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    certificates = (context.auth_context() or {}).get("x509_pem_cert", ())
    return InventoryCall(metadata, next(iter(certificates), b""))


async def _abort(context: Context, error: Exception) -> None:
    found = status(error)
    await context.abort(found.code, found.detail)
