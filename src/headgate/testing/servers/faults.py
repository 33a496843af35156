"""A cloud that fails: a server in front of another one that throttles, refuses, loses answers and cuts them off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import ClientSession, ClientTimeout, web

from headgate.testing.deadline import DEADLINE_S

_HOPS = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "host",
    "accept-encoding",
}


class ReceivedRequest(NamedTuple):
    """Record a request."""

    method: str
    path: str
    """Path with its query."""
    headers: Mapping[str, str]
    body: bytes


class FaultAnswer(NamedTuple):
    """Answer a request."""

    status: int
    body: bytes
    headers: Mapping[str, str]


Pass = Callable[[], Awaitable[FaultAnswer]]
"""Passes the request on to the server behind."""
Fault = Callable[[ReceivedRequest, Pass], Awaitable[FaultAnswer | None]]
"""Answers instead of the server; None: the connection breaks."""
Which = Callable[[ReceivedRequest], bool]


def anything(asked: ReceivedRequest) -> bool:
    """Say that any request is meant."""
    return True


def answers(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Fault:
    """Return the fault that answers this without passing the request on."""

    async def fault(asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        return FaultAnswer(status, body, headers or {})

    return fault


async def lost(asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Do the request, and lose its answer."""
    await go_on()
    return None


async def unheard(asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Lose the request."""
    return None


async def cut(asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Do the request; of its answer hand on the first half, as if it were all."""
    told = await go_on()
    return told._replace(body=told.body[: len(told.body) // 2])


def changed(by: Callable[[bytes], bytes]) -> Fault:
    """Return the fault that the answer is another one."""

    async def fault(asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        told = await go_on()
        return told._replace(body=by(told.body))

    return fault


@dataclass
class HeldAnswer:
    """Perform the request, and hold its answer until it is released."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, asked: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Answer what there is, late."""
        told = await go_on()
        self.done.set()
        await self.go.wait()
        return told


class Faults:
    """Pass requests on to `url`, except for the faults."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.url = ""
        self.asked: list[ReceivedRequest] = []
        """Every request, in order."""
        self._plan: list[tuple[Which, Fault, bool]] = []
        self._before: Fault | None = None
        self._session: ClientSession | None = None

    def once(self, fault: Fault, which: Which = anything) -> None:
        """Let the next such request fail; faults that were planned before come first."""
        self._plan.append((which, fault, False))

    def always(self, fault: Fault, which: Which = anything) -> None:
        """Let every such request go wrong."""
        self._plan.append((which, fault, True))

    def mend(self) -> None:
        """Let nothing go wrong any more."""
        self._plan.clear()

    def behave(self, fault: Fault) -> None:
        """Make the server itself do something that the one behind does not, whatever goes wrong before it."""
        self._before = fault

    def count(self, which: Which) -> int:
        """Return how many such requests came."""
        return sum(1 for one in self.asked if which(one))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Do as planned."""
        asked = ReceivedRequest(request.method, request.path_qs, dict(request.headers), await request.read())
        self.asked.append(asked)
        planned = next((one for one in self._plan if one[0](asked)), None)
        if planned is not None and not planned[2]:
            self._plan.remove(planned)

        async def go_on() -> FaultAnswer:
            async def passed() -> FaultAnswer:
                return await self._passed(asked)

            told = await self._before(asked, passed) if self._before is not None else None
            return told if told is not None else await passed()

        told = await (planned[1](asked, go_on) if planned is not None else go_on())
        if told is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # nobody gets it
        headers = {name: value for name, value in told.headers.items() if name.lower() not in _HOPS}
        return web.Response(status=told.status, body=told.body, headers=headers)

    async def _passed(self, asked: ReceivedRequest) -> FaultAnswer:
        assert self._session is not None, "it was started"
        headers = {name: value for name, value in asked.headers.items() if name.lower() not in _HOPS}
        async with self._session.request(
            asked.method,
            self._behind + asked.path,
            data=asked.body or None,
            headers=headers,
            skip_auto_headers={"Content-Type"},
            allow_redirects=False,
        ) as told:
            return FaultAnswer(told.status, await told.read(), dict(told.headers))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Faults]:
        """Serve for as long as the context lasts."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=False)
        async with ClientSession(timeout=ClientTimeout(DEADLINE_S)) as self._session:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield self
            finally:
                await runner.cleanup()
