"""A cloud that fails: a server in front of another one that throttles, refuses, loses answers and cuts them off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import ClientSession, ClientTimeout, web

from headgate.testing.deadline import DEADLINE_S

# Headers of one connection, and those that no longer hold once the client has unpacked the body.
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


def anything(request: ReceivedRequest) -> bool:
    """Say that any request is meant."""
    return True


def answers(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Fault:
    """Return the fault that answers this without passing the request on."""

    async def fault(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        return FaultAnswer(status, body, headers or {})

    return fault


async def lost(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Do the request, and lose its answer."""
    await go_on()
    return None


async def unheard(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Lose the request."""
    return None


async def cut(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Do the request; of its answer hand on the first half, as if it were all."""
    answer = await go_on()
    # The length in the header is made anew, so HTTP does not reveal the cut: the driver has to see it in the content.
    return answer._replace(body=answer.body[: len(answer.body) // 2])


def changed(by: Callable[[bytes], bytes]) -> Fault:
    """Return the fault that the answer is another one."""

    async def fault(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        answer = await go_on()
        return answer._replace(body=by(answer.body))

    return fault


@dataclass
class HeldAnswer:
    """Perform the request, and hold its answer until it is released."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Answer what there is, late."""
        answer = await go_on()
        self.done.set()
        await self.go.wait()
        return answer


class Faults:
    """Pass requests on to `url`, except for the faults."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.url = ""
        self.requests: list[ReceivedRequest] = []
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
        return sum(1 for one in self.requests if which(one))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Do as planned."""
        received = ReceivedRequest(request.method, request.path_qs, dict(request.headers), await request.read())
        self.requests.append(received)
        planned = next((one for one in self._plan if one[0](received)), None)
        # Removed before it is performed, so that a concurrent request does not meet it too.
        if planned is not None and not planned[2]:
            self._plan.remove(planned)

        async def go_on() -> FaultAnswer:
            async def passed() -> FaultAnswer:
                return await self._passed(received)

            answer = await self._before(received, passed) if self._before is not None else None
            return answer if answer is not None else await passed()

        response = await (planned[1](received, go_on) if planned is not None else go_on())
        if response is None:
            # Abort, not close: the client sees a broken connection, as with a server that dies.
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # nobody gets it
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _HOPS}
        return web.Response(status=response.status, body=response.body, headers=headers)

    async def _passed(self, request: ReceivedRequest) -> FaultAnswer:
        assert self._session is not None, "it was started"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOPS}
        async with self._session.request(
            request.method,
            self._behind + request.path,
            data=request.body or None,
            headers=headers,
            # Otherwise aiohttp adds one to requests that have none.
            skip_auto_headers={"Content-Type"},
            allow_redirects=False,
        ) as response:
            return FaultAnswer(response.status, await response.read(), dict(response.headers))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Faults]:
        """Serve for as long as the context lasts."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self.answer)
        # A client that gives up must not cancel the request behind: clouds finish what they have begun.
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
