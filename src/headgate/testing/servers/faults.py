"""Break connections to a server: cut, stall and slow the network; refuse, lose and change HTTP answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import ClientSession, ClientTimeout, web

from headgate.testing.clock import DEADLINE_S

PIECE_BYTES = 65536
LOOK_S = 0.01
_HOPS = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "host",
    "accept-encoding",
}
"""Headers of one connection, and those that no longer hold once the client has unpacked the body."""


class Proxy:
    """Forward connections to `port`. `cut` breaks current connections; `refuse` also breaks new ones; `stall` keeps
    them open but forwards nothing; `deaf` forwards requests but no answers, and `mute` the other way round; `restore`
    ends all of that."""

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port
        self.port = 0
        self.latency_s = 0.0
        self._open = asyncio.Event()
        """While it is set, data of clients reach the server."""
        self._heard = asyncio.Event()
        """While it is set, data of the server reach clients."""
        self._refusing = False
        self._waiting: dict[asyncio.StreamReader, bytes] = {}
        """Stream whose data are held back -> the piece that waits."""
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self.restore()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None, "it was started"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()

    @property
    def withheld(self) -> bytes:
        """Return the data that were sent but have not arrived."""
        return b"".join(self._waiting.values())

    @property
    def connected(self) -> bool:
        return bool(self._pairs)

    async def drained(self) -> None:
        """Wait until the clients have gone and everything that they sent has arrived."""
        while self._pairs:  # noqa: ASYNC110 - it is looked at after each pause anyhow
            await asyncio.sleep(LOOK_S)

    def cut(self) -> None:
        """Break the current connections, and accept new ones."""
        for pair in list(self._pairs):
            for writer in pair:
                writer.transport.abort()

    def refuse(self) -> None:
        self._refusing = True
        self.cut()

    def stall(self) -> None:
        self._open.clear()
        self._heard.clear()

    def deaf(self) -> None:
        self._heard.clear()

    def mute(self) -> None:
        self._open.clear()

    def restore(self) -> None:
        self._refusing = False
        self._open.set()
        self._heard.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._join(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Accepted and broken, since a closed port could be taken by another program.
        if self._refusing:
            writer.transport.abort()
            return
        try:
            upstream, back = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, back)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, back, self._open, pair))
                group.create_task(self._pass(upstream, writer, self._heard, pair))
        finally:
            self._pairs.discard(pair)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: asyncio.Event,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                # Visible as `withheld` while the gate is shut, so a test can tell what has been sent and has not
                # arrived.
                self._waiting[reader] = piece
                await gate.wait()
                del self._waiting[reader]
                if self.latency_s:
                    await asyncio.sleep(self.latency_s)
                writer.write(piece)
                await writer.drain()
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        for one in pair:
            # One direction that ends ends both: half-closed connections are not modelled.
            one.transport.abort()


@asynccontextmanager
async def proxy(port: int, host: str = "127.0.0.1") -> AsyncIterator[Proxy]:
    """Provide a proxy to the server at `port`."""
    found = Proxy(host, port)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


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
"""Forwards the request to the server behind the proxy."""
Fault = Callable[[ReceivedRequest, Pass], Awaitable[FaultAnswer | None]]
"""Answers instead of the server; None: break the connection."""
Which = Callable[[ReceivedRequest], bool]


def anything(request: ReceivedRequest) -> bool:
    """Match every request."""
    return True


def answers(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Fault:
    """Return a fault that gives this answer without forwarding the request."""

    async def fault(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        return FaultAnswer(status, body, headers or {})

    return fault


async def lost(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Forward the request, and lose its answer."""
    await go_on()
    return None


async def unheard(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Lose the request."""
    return None


async def cut(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
    """Forward the request, and return the first half of the answer as if it were complete."""
    answer = await go_on()
    # The length in the header is computed again, so HTTP hides the cut: the driver has to see it in the content.
    return answer._replace(body=answer.body[: len(answer.body) // 2])


def changed(by: Callable[[bytes], bytes]) -> Fault:
    """Return a fault that replaces the answer."""

    async def fault(request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        answer = await go_on()
        return answer._replace(body=by(answer.body))

    return fault


@dataclass
class HeldAnswer:
    """Forward the request, and hold its answer until it is released."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Forward the answer late."""
        answer = await go_on()
        self.done.set()
        await self.go.wait()
        return answer


class Faults:
    """Forward requests to the server at `behind`, except where a fault is planned."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.url = ""
        self.requests: list[ReceivedRequest] = []
        """Every request, in order."""
        self._plan: list[tuple[Which, Fault, bool]] = []
        self._before: Fault | None = None
        self._session: ClientSession | None = None

    def once(self, fault: Fault, which: Which = anything) -> None:
        """Plan a fault for the next matching request; faults that were planned earlier come first."""
        self._plan.append((which, fault, False))

    def always(self, fault: Fault, which: Which = anything) -> None:
        """Plan a fault for every matching request."""
        self._plan.append((which, fault, True))

    def mend(self) -> None:
        """Cancel all planned faults."""
        self._plan.clear()

    def behave(self, fault: Fault) -> None:
        """Answer matching requests here instead of behind the proxy; faults apply first."""
        self._before = fault

    def count(self, which: Which) -> int:
        """Return the number of matching requests so far."""
        return sum(1 for one in self.requests if which(one))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Apply the planned fault, or forward the request."""
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
        """Serve while the context is active."""
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
