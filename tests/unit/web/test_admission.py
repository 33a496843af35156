"""Test the connections of a server: no peer has all of them, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from headgate.web.peers.connections import (
    BODY_MAX_S,
    CLOSE_MAX_S,
    EXPIRED_MAX_S,
    HEAD_MAX_S,
    STALL_MAX_S,
    ConnectionAdmission,
    peer_of,
)
from headgate.web.server import ADMISSION, HttpProtocol, _configured


class Certified:
    """Imitate the TLS of a connection whose client has shown a certificate."""

    def __init__(self, until: str) -> None:
        self.until = until

    def getpeercert(self, binary_form: bool = False) -> dict[str, str]:
        return {"notAfter": self.until}


class Line:
    """Imitate a transport, as far as admission uses it."""

    def __init__(self, tls: Certified | None = None) -> None:
        self.aborted, self.closing, self.tls = False, False, tls

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Certified | None:
        return self.tls

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


def line() -> asyncio.Transport:
    return cast(Any, Line())  # what admission uses of a transport


def gone(transports: list[asyncio.Transport]) -> list[bool]:
    return [cast(Any, one).aborted for one in transports]  # as above


def test_one_peer_has_at_most_half_of_the_places_and_loses_its_own_connections() -> None:
    admission = ConnectionAdmission(lambda: 0.0, connections_max=8)
    mine = [line() for _ in range(6)]
    for one in mine:
        admission.enter(one, "10.0.0.1").works()
    assert gone(mine) == [True, True, False, False, False, False] and len(admission) == 4


def test_an_idle_connection_gives_way_before_one_that_is_being_answered() -> None:
    admission = ConnectionAdmission(lambda: 0.0, connections_max=4)
    busy, idle, more = line(), line(), line()
    admission.enter(busy, "10.0.0.1").works()
    admission.enter(idle, "10.0.0.1")
    admission.enter(more, "10.0.0.1")
    assert gone([busy, idle, more]) == [False, True, False]


def test_when_all_places_are_taken_the_peer_with_most_connections_loses_one() -> None:
    admission = ConnectionAdmission(lambda: 0.0, connections_max=4)
    many, one, last = [line(), line()], line(), [line(), line()]
    for transport in many:
        admission.enter(transport, "10.0.0.1")
    admission.enter(one, "10.0.0.2")
    admission.enter(last[0], "10.0.0.3")
    admission.enter(last[1], "10.0.0.4")
    assert gone(many) == [True, False] and gone([one, *last]) == [False] * 3


def test_connections_without_progress_are_ended() -> None:
    now = [0.0]
    admission = ConnectionAdmission(lambda: now[0])
    waiting, closing = line(), line()
    admission.enter(waiting, "::1")
    admission.enter(closing, "::1").works()
    cast(Any, closing).closing = True  # as above
    admission.sweep()
    assert gone([waiting, closing]) == [False, False]
    now[0] = CLOSE_MAX_S
    admission.sweep()
    assert gone([waiting, closing]) == [False, True]
    now[0] = HEAD_MAX_S
    admission.sweep()
    assert gone([waiting]) == [True]
    admission.leave(waiting)
    admission.leave(waiting)
    assert len(admission) == 1


def test_a_connection_ends_soon_after_the_certificate_of_its_client() -> None:
    wall = [0.0]
    admission = ConnectionAdmission(lambda: 0.0, wall=lambda: wall[0])
    certified, other = cast(Any, Line(Certified("Jan  1 00:01:00 1970 GMT"))), line()
    for one in (certified, other, certified):  # an upgrade to a websocket admits it once more
        admission.enter(one, "10.0.0.1").works()
    wall[0] = 60.0
    admission.sweep()
    assert gone([certified, other]) == [False, False], "a handler may say why"
    wall[0] = 60.0 + EXPIRED_MAX_S
    admission.sweep()
    assert gone([certified, other]) == [True, False]


async def test_a_slow_reader_gets_no_additional_time_to_send_its_request() -> None:
    async def until_gone(scope: object, receive: Callable[[], Awaitable[dict[str, object]]], send: object) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    now, transport = [0.0], line()
    admission = ConnectionAdmission(lambda: now[0])
    config = uvicorn.Config(cast(Any, until_gone), lifespan="off")
    config.load()
    state = ServerState()
    protocol = HttpProtocol(config, state, {ADMISSION: admission})
    protocol.connection_made(transport)
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1")
    for _ in range(3):  # it reads now and then
        protocol.pause_writing()
        now[0] += STALL_MAX_S / 2
        protocol.resume_writing()
        admission.sweep()
    assert gone([transport]) == [False]
    now[0] = BODY_MAX_S
    admission.sweep()
    protocol.connection_lost(ConnectionAbortedError())
    await asyncio.gather(*state.tasks)
    assert gone([transport]) == [True], "only the body was late"


async def test_an_idle_connection_outlives_those_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def empty(scope: object, receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    loop, closed_after_s = asyncio.get_running_loop(), list[float]()
    later = loop.call_later

    def call_later(delay_s: float, *arguments: Any) -> asyncio.TimerHandle:
        closed_after_s.append(delay_s)
        return later(delay_s, *arguments)

    monkeypatch.setattr(loop, "call_later", call_later)
    state, transport = ServerState(), line()
    admission = ConnectionAdmission(loop.time)
    protocol = HttpProtocol(_configured(cast(Any, empty)), state, {ADMISSION: admission})
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.gather(*state.tasks)
    assert [delay_s for delay_s in closed_after_s if delay_s > 60] == closed_after_s != []
    protocol.connection_lost(None)


def test_addresses_that_one_peer_may_choose_among_are_one_peer() -> None:
    assert peer_of("127.0.0.1") == peer_of("127.3.2.1") == peer_of("::1") == peer_of("::ffff:127.0.0.1")
    assert peer_of("2001:db8::1") == peer_of("2001:db8::ffff:1") != peer_of("2001:db8:1::1")
    assert peer_of("10.0.0.1") == peer_of("::ffff:10.0.0.1") != peer_of("10.0.0.2")
