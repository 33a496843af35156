"""Turn the declaration of a service into what gRPC calls; read messages here, so that bad ones are told well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.web.inventory.identity import InventoryCall
from headgate.web.inventory.status import status

CALL_MAX_S = 60.0
"""Time limit of a call that is not a stream, unless its client sets an earlier deadline."""

Context = Any  # grpc.aio.ServicerContext: its stubs leave the messages open


def methods(
    service: ServiceDescriptor, parts: Sequence[object]
) -> dict[str, tuple[MethodDescriptor, Callable[..., Any]]]:  # of any message
    """Name -> its declaration and what answers it, from whichever part has it."""
    found = {}
    for method in service.methods:
        answer = next((getattr(part, method.name) for part in parts if hasattr(part, method.name)), None)
        assert answer is not None, f"{method.full_name} is answered by nobody"
        found[method.name] = (method, answer)
    return found


def calls(service: ServiceDescriptor, parts: Sequence[object]) -> grpc.GenericRpcHandler:
    """Build the handler: each method is answered by the part that has a method of its name, `answer(call, request)`."""
    made = {name: _made(method, answer) for name, (method, answer) in methods(service, parts).items()}
    return grpc.method_handlers_generic_handler(service.full_name, made)


def _made(method: MethodDescriptor, answer: Callable[..., Any]) -> grpc.RpcMethodHandler[bytes, Message]:  # any message
    read = GetMessageClass(method.input_type).FromString

    async def one(request: bytes, context: Context) -> Message | None:
        try:
            async with asyncio.timeout(CALL_MAX_S):
                found: Message = await answer(call(context), read(request))
                return found
        except Exception as error:
            await _abort(context, error)
            return None

    async def several(request: bytes, context: Context) -> AsyncIterator[Message]:
        try:
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
