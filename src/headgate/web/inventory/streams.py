"""Places for calls that last: nobody's streams keep others from being answered."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc

from headgate.web.peers.admission import peer_of

STREAMS_IN_ALL_MAX = 500
"""Limit on the streams of all connections: half of the calls that may run at a time."""
GIVES_WAY = f"there are {STREAMS_IN_ALL_MAX} streams, and your address has most of them: the oldest gives way"

Handler = Any  # grpc.RpcMethodHandler: its stubs leave the messages open
Context = Any  # grpc.aio.ServicerContext, likewise


@dataclass(slots=True, eq=False)
class _Stream:
    host: str
    task: asyncio.Task[Any]
    ended: bool = False
    """Whether the stream was ended to make room for another."""


class Streams(grpc.aio.ServerInterceptor):
    """Count the streams of every service. Beyond the limit, the oldest stream of the caller with most streams ends."""

    def __init__(self) -> None:
        self._running = list[_Stream]()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        found = await continuation(handler_call_details)
        if found is None or not found.response_streaming:
            return found
        made, answer = (
            (grpc.stream_stream_rpc_method_handler, found.stream_stream)
            if found.request_streaming
            else (grpc.unary_stream_rpc_method_handler, found.unary_stream)
        )
        return made(self._counted(answer), found.request_deserializer, found.response_serializer)

    def _counted(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(request: Any, context: Context) -> AsyncIterator[Any]:
            with self._place(context.peer()) as stream:
                try:
                    if inspect.isasyncgenfunction(answer):
                        async for found in answer(request, context):
                            yield found
                    else:
                        await answer(request, context)
                except asyncio.CancelledError:
                    if not stream.ended:
                        raise
                    # This cancellation is ours and is answered here; left
                    # pending, it would interrupt the next wait as well.
                    stream.task.uncancel()
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, GIVES_WAY)

        return counted

    @contextmanager
    def _place(self, peer: str) -> Iterator[_Stream]:
        task = asyncio.current_task()
        assert task is not None, "gRPC has a task for each call"
        stream = _Stream(host_of(peer), task)
        self._running.append(stream)
        # Streams that have been told to end may take a while; counted, they would end others needlessly.
        living = [other for other in self._running if not other.ended]
        if len(living) > STREAMS_IN_ALL_MAX:
            most = Counter(other.host for other in living).most_common(1)[0][0]
            oldest = next(other for other in living if other.host == most)
            oldest.ended = True
            oldest.task.cancel()
        try:
            yield stream
        finally:
            self._running.remove(stream)


def host_of(peer: str) -> str:
    """Return the host that the streams of a peer of gRPC count for."""
    # The peer is `ipv4:ADDRESS:PORT` or, with a percent sign for each bracket, `ipv6:[ADDRESS]:PORT`.
    # Without the port, all connections of one host count together.
    family, _, address = unquote(peer).rpartition(":")[0].partition(":")
    return peer_of(address.strip("[]")) if family in ("ipv4", "ipv6") else family
