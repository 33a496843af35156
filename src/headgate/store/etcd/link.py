"""Calls to etcd: what it refuses, and what it does not answer, in the words of stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import StatusCode

from headgate.store.etcd.address import Address
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import StoreError, TooLarge, Unavailable

ANSWER_S = 8.0
READ_ATTEMPTS_MAX = 3
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)
Stream = Any  # grpc.aio.StreamStreamCall: its stubs leave the messages open


_UNANSWERED = (
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.CANCELLED,
    StatusCode.UNKNOWN,
    StatusCode.INTERNAL,
)
"""As gRPC tells of a connection that broke, and of a server that has no leader."""


class LeaseUnknown(Exception):
    """There is no lease of that id any more."""


class Link:
    def __init__(self, address: Address) -> None:
        """Raises StoreError."""
        self.address = address
        credentials, target = address.credentials(), address.target()
        self._channel: Any = (  # grpc.aio.Channel: its stubs know no calls of bytes
            grpc.aio.secure_channel(target, credentials, OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(target, OPTIONS)
        )
        self._token = ""

    async def close(self) -> None:
        await self._channel.close()

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Asked again when the connection breaks."""
        found: pb.RangeResponse = await self._again("KV/Range", request, pb.RangeResponse)
        return found

    async def txn(self, request: pb.TxnRequest, *, harmless: bool = False) -> pb.TxnResponse:
        """Raises LeaseUnknown; Unavailable: whether it took effect is unknown.  `harmless`: done twice is done once."""
        ask = self._again if harmless else self._call
        found: pb.TxnResponse = await ask("KV/Txn", request, pb.TxnResponse)
        return found

    async def grant(self, ttl_s: int) -> int:
        found: pb.LeaseGrantResponse = await self._call(
            "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=ttl_s), pb.LeaseGrantResponse
        )
        return found.ID

    async def revoke(self, id: int) -> None:
        """Raises LeaseUnknown."""
        await self._call("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=id), pb.LeaseRevokeResponse)

    async def keep_alive(self, id: int) -> None:
        """Raises LeaseUnknown."""
        call = await self._open("Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse, timeout_s=ANSWER_S)
        try:
            await call.write(pb.LeaseKeepAliveRequest(ID=id))
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            raise self._told(error) from error
        except asyncio.InvalidStateError as error:  # it broke before we wrote
            raise Unavailable(f"{self.address}: {error}") from error
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise Unavailable(f"{self.address}: no answer")
        if answer.TTL <= 0:
            raise LeaseUnknown(str(id))

    async def watch(self, key: bytes, end: bytes, revision: int) -> AsyncIterator[pb.WatchResponse]:
        """What is answered, the first that it was begun, until something breaks: then Unavailable."""
        call = await self._open("Watch/Watch", pb.WatchResponse)
        try:
            create = pb.WatchCreateRequest(key=key, range_end=end, start_revision=revision, fragment=True)
            await call.write(pb.WatchRequest(create_request=create))
            while (answer := await call.read()) is not grpc.aio.EOF:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._told(error) from error
        except asyncio.InvalidStateError as error:  # it broke before we wrote
            raise Unavailable(f"{self.address}: {error}") from error
        finally:
            call.cancel()
        raise Unavailable(f"{self.address}: the watch ended")

    async def _again(self, name: str, request: Message, answer: type[Message]) -> Any:  # an answer of that type
        for attempt in range(READ_ATTEMPTS_MAX):
            try:
                return await self._call(name, request, answer)
            except Unavailable:
                if attempt == READ_ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _call(self, name: str, request: Message, answer: type[Message]) -> Any:  # an answer of that type
        for again in (True, False):
            call = self._channel.unary_unary(
                f"/etcdserverpb.{name}", lambda one: one.SerializeToString(), answer.FromString
            )
            try:
                return await call(request, timeout=ANSWER_S, wait_for_ready=True, metadata=await self._metadata(name))
            except grpc.aio.AioRpcError as error:
                if not (again and self.address.user and error.code() == StatusCode.UNAUTHENTICATED):
                    raise self._told(error) from error
                self._token = ""
        raise AssertionError("the loop returns or raises")

    async def _open(self, name: str, answer: type[Message], *, timeout_s: float | None = None) -> Stream:
        call = self._channel.stream_stream(
            f"/etcdserverpb.{name}", lambda one: one.SerializeToString(), answer.FromString
        )
        return call(timeout=timeout_s, wait_for_ready=True, metadata=await self._metadata(name))

    async def _metadata(self, name: str) -> tuple[tuple[str, str], ...]:
        if not self.address.user or name.startswith("Auth/"):
            return ()
        if not self._token:
            login = pb.AuthenticateRequest(name=self.address.user, password=self.address.password)
            self._token = (await self._call("Auth/Authenticate", login, pb.AuthenticateResponse)).token
        return (("token", self._token),)

    def _told(self, error: grpc.aio.AioRpcError) -> Exception:
        code, detail = error.code(), error.details() or ""
        if "requested lease not found" in detail:
            return LeaseUnknown(detail)
        if "too large" in detail or "larger than max" in detail:
            return TooLarge(f"{self.address}: {detail}")
        if code in _UNANSWERED:
            return Unavailable(f"{self.address}: {detail or code.name}")
        if "space exceeded" in detail:
            why = "its disk quota is used up: compact and defragment it, then `etcdctl alarm disarm`"
            return StoreError(f"{self.address}: {why} ({detail})")
        return StoreError(f"{self.address}: {code.name}: {detail}")
