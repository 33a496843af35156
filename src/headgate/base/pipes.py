"""Hearing a process out, however much it says."""

from __future__ import annotations

import asyncio

from headgate.base.tasks import run_until

CHUNK_BYTES = 65_536
ERR_MAX_BYTES = 65_536
"""Of what it complains, kept from the beginning, and as much from the end."""


class TooMuch(Exception):
    """It prints more than it may."""


class _Heard:
    def __init__(self) -> None:
        self.out = list[bytes]()
        self.err = [b"", b""]

    async def all(self, stream: asyncio.StreamReader, max_bytes: int) -> None:
        size = 0
        while chunk := await stream.read(CHUNK_BYTES):
            self.out.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise TooMuch

    async def ends(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(CHUNK_BYTES):
            if len(self.err[0]) < ERR_MAX_BYTES:
                self.err[0] += chunk
            else:
                self.err[1] = (self.err[1] + chunk)[-ERR_MAX_BYTES:]


async def spoken(process: asyncio.subprocess.Process, told: bytes, out_max_bytes: int) -> tuple[bytes, bytes]:
    """Return what it prints and what it complains, once it has ended.  Raises TooMuch."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    heard = _Heard()
    works = heard.all(process.stdout, out_max_bytes), heard.ends(process.stderr), _feed(process.stdin, told)
    await run_until(asyncio.Event(), *works)
    await process.wait()
    return b"".join(heard.out), b"".join(heard.err)


async def _feed(stream: asyncio.StreamWriter, told: bytes) -> None:
    try:
        stream.write(told)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has heard enough; its status tells


async def drained(process: asyncio.subprocess.Process, most_s: float) -> None:
    """Reads what is left of one that has ended, so that nothing of it stays open."""
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(most_s):
            for stream in (process.stdout, process.stderr):
                while await stream.read(CHUNK_BYTES):
                    pass
    except TimeoutError:
        return  # somebody else has its output, too
