"""Run the gRPC server: both services, health and reflection, with TLS and a limit on streams."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headgate.base.errors import UserError
from headgate.base.files import bytes_of
from headgate.inventory.wire import inventory_pb2, runm_pb2
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions
from headgate.web.inventory.rpc import calls
from headgate.web.inventory.runm import RunmDefinitions, RunmObjects, RunmPartitions, RunmTypes
from headgate.web.inventory.v1 import Additions, Administration
from headgate.web.inventory.v1leases import LeaseRoutes
from headgate.web.peers.connections import Tls, peer_of, server_context

log = logging.getLogger("headgate.inventory")

STREAMS_MAX = 500
"""Limit on the streams of all connections: half of the calls that may run concurrently."""
CONCURRENT_CALLS_MAX = 1_000
REQUEST_SIZE_MAX_BYTES = 4_000_000
GRACE_S = 2.0
CALLS_OF_CONNECTION_MAX = 200
"""Limit on the simultaneous calls of one connection."""
METADATA_MAX_BYTES = 32_768
PING_INTERVAL_MIN_MS = 10_000
PING_STRIKES_MAX = 3
"""Number of pings above the permitted rate after which a connection is closed."""
KEEPALIVE_MS = 60_000
KEEPALIVE_TIMEOUT_MS = 20_000
"""Time after which a peer that does not answer keepalive pings counts as gone."""
HANDSHAKE_MAX_MS = 10_000
IDLE_MAX_MS = 600_000
"""Time without calls after which a connection is closed; the client opens another when it needs one."""
RUNM = runm_pb2.DESCRIPTOR.services_by_name["RunmMetadata"]
V1 = inventory_pb2.DESCRIPTOR.services_by_name["Inventory"]

GIVES_WAY = f"the limit of {STREAMS_MAX} streams is exceeded; your address has the most, so its oldest was ended"

Handler = Any  # grpc.RpcMethodHandler: its stubs leave the messages open
Context = Any  # grpc.aio.ServicerContext, likewise


@dataclass(slots=True, eq=False)
class _Stream:
    host: str
    task: asyncio.Task[Any]
    ended: bool = False
    """Whether the stream was ended to make room for another."""


class Streams(grpc.aio.ServerInterceptor):
    """Limit the streams of all services. Beyond the limit, end the oldest stream of the host with the most streams."""

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
                    # This cancellation is our own and ends here; if it stayed
                    # pending, it would interrupt the next await as well.
                    stream.task.uncancel()
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, GIVES_WAY)

        return counted

    @contextmanager
    def _place(self, peer: str) -> Iterator[_Stream]:
        task = asyncio.current_task()
        assert task is not None, "gRPC has a task for each call"
        stream = _Stream(host_of(peer), task)
        self._running.append(stream)
        # Streams that were cancelled may take a while to end; if they counted, others would be ended needlessly.
        living = [other for other in self._running if not other.ended]
        if len(living) > STREAMS_MAX:
            most = Counter(other.host for other in living).most_common(1)[0][0]
            oldest = next(other for other in living if other.host == most)
            oldest.ended = True
            oldest.task.cancel()
        try:
            yield stream
        finally:
            self._running.remove(stream)


def host_of(peer: str) -> str:
    """Return the host of a gRPC peer, by which its streams are counted."""
    # The peer is `ipv4:ADDRESS:PORT` or, with a percent sign for each bracket, `ipv6:[ADDRESS]:PORT`.
    # Without the port, all connections of one host count together.
    family, _, address = unquote(peer).rpartition(":")[0].partition(":")
    return peer_of(address.strip("[]")) if family in ("ipv4", "ipv6") else family


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return TLS credentials; changed files apply from the next connection on. Raise UserError."""

    def read() -> grpc.ServerCertificateConfiguration:
        # gRPC would only report that it cannot listen, without a reason.
        server_context(tls)
        pair = (bytes_of(tls.key), bytes_of(tls.certificate))
        roots = bytes_of(tls.client_ca) if tls.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    try:
        good = [read()]
    except OSError as error:  # also the SSLError of a malformed file
        raise UserError(f"certificate, key or client authority cannot be used: {error}") from error

    def again() -> grpc.ServerCertificateConfiguration:
        try:
            good[0] = read()
        except OSError as error:
            log.error("the certificate cannot be used, so the previous one stays in use: %s", error)
        return good[0]

    return grpc.dynamic_ssl_server_credentials(good[0], again, require_client_authentication=tls.client_ca is not None)


def runm_parts(sessions: CallerSessions, inventory: Inventory) -> Sequence[object]:
    """Return the parts that implement runm.RunmMetadata."""
    kinds = (RunmPartitions, RunmTypes, RunmObjects, RunmDefinitions)
    return [kind(sessions, inventory) for kind in kinds]


def v1_parts(sessions: CallerSessions, inventory: Inventory) -> Sequence[object]:
    """Return the parts that implement headgate.inventory.v1.Inventory."""
    return [Additions(sessions, inventory), Administration(sessions, inventory), LeaseRoutes(sessions, inventory)]


async def serve(
    inventory: Inventory,
    sessions: CallerSessions,
    address: str,
    tls: Tls | None,
    stop: asyncio.Event,
    bound: Callable[[int], None],
) -> None:
    """Serve until `stop` or cancelled. `address` is host:port; `bound` receives the port. Raise UserError.

    `inventory.journal.run()` must be running alongside.
    """
    options = [
        ("grpc.max_receive_message_length", REQUEST_SIZE_MAX_BYTES),
        # Otherwise gRPC would share a port that another process uses, and calls would reach either at random.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", CALLS_OF_CONNECTION_MAX),
        ("grpc.max_metadata_size", METADATA_MAX_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_ping_strikes", PING_STRIKES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MAX_MS),
        ("grpc.max_connection_idle_ms", IDLE_MAX_MS),
    ]
    server = grpc.aio.server(interceptors=[Streams()], options=options, maximum_concurrent_rpcs=CONCURRENT_CALLS_MAX)
    server.add_generic_rpc_handlers(
        (calls(RUNM, runm_parts(sessions, inventory)), calls(V1, v1_parts(sessions, inventory)))
    )
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = [RUNM.full_name, V1.full_name]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        port = server.add_secure_port(address, credentials(tls)) if tls else server.add_insecure_port(address)
    except RuntimeError as error:
        # gRPC does not say why, only with which variable a developer would see it.
        why = "another program uses it, or this machine does not have it"
        raise UserError(f"cannot listen on {address}: {why}; choose another address or port") from error
    await server.start()
    try:
        for name in ("", *names):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        bound(port)
        await stop.wait()
        # First report NOT_SERVING, so that load balancers send no more calls before calls are refused.
        await servicer.enter_graceful_shutdown()
    finally:
        await server.stop(GRACE_S)
