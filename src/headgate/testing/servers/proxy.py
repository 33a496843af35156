"""A network between a client and a server that can be cut, stalled or slowed down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PIECE_BYTES = 65536
LOOK_S = 0.01


class Proxy:
    """Pass on what comes to `port`.

    `cut` breaks what is connected; `refuse` breaks new connections, too; `stall` keeps them, and nothing arrives;
    `deaf` lets requests through and no answer back, `mute` the other way round; `restore` ends all of that.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port
        self.port = 0
        self.latency_s = 0.0
        self._open = asyncio.Event()
        """While set, data of clients reach the server."""
        self._heard = asyncio.Event()
        """While set, data of the server reach clients."""
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
        """Return what was sent and has not arrived."""
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
