"""Test how long a watch of etcd tries to continue after its connection breaks, whatever it did before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import pytest
from grpc import aio

from headgate.store.etcd.backend import RESUME_S, Watch
from headgate.store.etcd.keys import EtcdKeys
from headgate.store.etcd.link import EtcdTraffic
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import Entry, Snapshot, Unavailable
from headgate.testing.clock import run_virtual

HOUR_S = 3_600.0
ACCEPTED = pb.WatchResponse(created=True)
CHANGED = pb.WatchResponse(events=[pb.Event(kv=pb.KeyValue(key=b"r/w/a", value=b"1", mod_revision=9))])


class Call:
    """Imitate a watch's stream: responses, then silence, then a break."""

    def __init__(self, silent_s: float, *responses: pb.WatchResponse) -> None:
        self._silent_s, self._responses = silent_s, responses

    async def write(self, request: pb.WatchRequest) -> None:
        pass

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[pb.WatchResponse]:
        for response in self._responses:
            yield response
        await asyncio.sleep(self._silent_s)
        raise aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata())


class Link:
    """Imitate the connection to the servers; `call` decides the fate of the watch at a time."""

    address = "etcd://h"

    def __init__(self, call: Callable[[float], Call]) -> None:
        self._call = call
        self.traffic = EtcdTraffic()

    async def ready(self) -> None:
        pass

    async def stream(self, *of: object) -> Call:
        return self._call(asyncio.get_running_loop().time())

    def unanswered(self, channel: object) -> None:
        pass

    def translated(self, error: aio.AioRpcError) -> Unavailable:
        return Unavailable("away")


def watched(call: Callable[[float], Call]) -> list[float]:
    """Return at what times a watch read everything, and when it reported a change or raised Unavailable."""

    async def listed(prefix: str) -> tuple[Sequence[Entry], int]:
        return (), 8

    async def run() -> list[float]:
        found, loop = list[float](), asyncio.get_running_loop()
        changes = Watch(Link(call), EtcdKeys("r"), "/w", listed).changes()  # type: ignore[arg-type]  # all that it uses of a link
        try:
            async for change in changes:
                found.append(loop.time())
                if not isinstance(change, Snapshot):
                    return found
        except Unavailable:
            found.append(loop.time())
        return found

    return run_virtual(run())


def test_a_watch_that_was_quiet_for_an_hour_continues_without_reading_everything_again() -> None:
    def restarts(now_s: float) -> Call:
        if now_s < HOUR_S:
            return Call(HOUR_S, ACCEPTED)
        return Call(HOUR_S, ACCEPTED, CHANGED) if now_s > HOUR_S + RESUME_S / 2 else Call(0.1)

    read_s, changed_s = watched(restarts)
    assert read_s == 0.0 and changed_s == pytest.approx(HOUR_S + RESUME_S / 2, abs=1.0)


def test_a_watch_that_no_server_accepts_any_more_ends_in_time() -> None:
    read_s, ended_s = watched(lambda now_s: Call(HOUR_S, ACCEPTED) if now_s < HOUR_S else Call(0.1))
    assert read_s == 0.0 and ended_s == pytest.approx(HOUR_S + RESUME_S, abs=1.0)


def test_a_watch_that_is_canceled_each_time_ends_in_time() -> None:
    refused = pb.WatchResponse(created=True, canceled=True, cancel_reason="no")
    read_s, ended_s = watched(lambda now_s: Call(0.1, refused))
    assert read_s == 0.0 and ended_s == pytest.approx(RESUME_S, abs=1.0)


def test_a_watch_that_breaks_after_each_acceptance_ends_in_time() -> None:
    read_s, ended_s = watched(lambda now_s: Call(0.1, ACCEPTED))
    assert read_s == 0.0 and ended_s == pytest.approx(RESUME_S, abs=1.0)
