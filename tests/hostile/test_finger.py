"""Test that requests for logs over finger block nobody and fill no memory, whatever is sent, or left unread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headgate.base.tasks import end
from headgate.testing.clock import DEADLINE_S
from headgate.web import finger
from headgate.web.peers import connections
from tests.waiting import until

PIECE = b"x" * 1_000_000
UNREAD_MAX_BYTES = 30_000_000
"""Buffers of the kernel on both ends of a connection, and a piece."""


class Log:
    """A log that is written faster than anybody reads."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.honest, self.followed, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        self.followed.set()
        self.left.clear()
        try:
            if line == b"honest\n":
                yield b"begun "
                await self.honest.wait()
                yield b"ended"
            while line == b"endless\n":
                self.taken_bytes += len(PIECE)
                yield PIECE
        finally:
            self.followed.clear()
            self.left.set()


@asynccontextmanager
async def served(log: Log) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(finger.serve(log.answer, "127.0.0.1", 0, asyncio.Event(), port.set_result))
    try:
        yield await port
    finally:
        await end(task)


@pytest.mark.long
async def test_silent_and_greedy_clients_keep_no_follower_out() -> None:
    log = Log()
    async with served(log) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"honest\n")
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readexactly(6) == b"begun "
        silent = []
        for number in range(3 * finger.CONNECTIONS_MAX):
            one = socket.create_connection(("127.0.0.1", port))
            one.setblocking(False)
            with suppress(OSError):
                one.send((b"", b"a", b"a" * 100_000, b"\x00\xff\r")[number % 4])
            silent.append(one)
            await asyncio.sleep(0)
        late_reader, late = await asyncio.open_connection("127.0.0.1", port)
        late.write(b"other\n")
        async with asyncio.timeout(DEADLINE_S):
            assert await late_reader.read() == b"", "there is a place for it, and it is answered"
            log.honest.set()
            assert await reader.read() == b"ended", "who follows a log is not sent away for who says nothing"
        for one in silent:
            one.close()
        writer.close()
        late.close()


async def test_half_a_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_MAX_S", 0.5)
    log = Log()
    async with served(log) as port:
        for request in (b"", b"0123456789abcdef"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            async with asyncio.timeout(DEADLINE_S):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.transport.abort()
    assert not log.left.is_set(), "nothing was asked"


async def test_a_client_that_does_not_read_is_disconnected_and_takes_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    async with served(log) as port:
        lazy = socket.create_connection(("127.0.0.1", port))
        lazy.sendall(b"endless\n")
        taken_bytes = [0]

        def still() -> bool:
            taken_bytes.append(log.taken_bytes)
            return taken_bytes[-1] == taken_bytes[-2] > 0

        await until("no more is taken", still, every_s=0.2)
        assert 0 < log.taken_bytes <= UNREAD_MAX_BYTES and log.followed.is_set()
        lazy.close()
        async with asyncio.timeout(DEADLINE_S):
            await log.left.wait()
        monkeypatch.setattr(connections, "STALL_MAX_S", 0.5)
        lazy = socket.create_connection(("127.0.0.1", port))
        lazy.sendall(b"endless\n")
        async with asyncio.timeout(DEADLINE_S):
            await log.followed.wait()
            await log.left.wait()
        lazy.close()
