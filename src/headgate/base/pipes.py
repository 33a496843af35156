"""Hearing a process out, however much it says."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headgate.base.tasks import run_until

CHUNK_BYTES = 65_536
LEFT_OPEN_S = 5.0
"""Time for which the output of a killed process is still read."""
ERR_MAX_BYTES = 65_536
"""Size limit of a command's error output: this much from its beginning, and as much from its end."""


class OutputTooLarge(Exception):
    """Report that a process prints more than it may."""


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
                raise OutputTooLarge

    async def ends(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(CHUNK_BYTES):
            if len(self.err[0]) < ERR_MAX_BYTES:
                self.err[0] += chunk
            else:
                self.err[1] = (self.err[1] + chunk)[-ERR_MAX_BYTES:]


async def spoken(process: asyncio.subprocess.Process, told: bytes, out_max_bytes: int) -> tuple[bytes, bytes]:
    """Return what it prints and what it complains, once it has ended.  Raises OutputTooLarge."""
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


async def ends(process: asyncio.subprocess.Process, most_s: float) -> bool:
    """Return whether it ends within so many seconds.  What it says meanwhile is thrown away: for asyncio a process has
    not ended before its output has, and output that nobody takes and that fills the buffers never does."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    try:
        async with asyncio.timeout(most_s):
            await asyncio.gather(process.wait(), *map(_thrown_away, streams))
    except TimeoutError:
        return False
    return True


async def put_down(process: asyncio.subprocess.Process) -> None:
    """Kill it, if it runs, and return once it has ended and nothing of it stays open."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    if not await ends(process, LEFT_OPEN_S):
        process._transport.close()  # type: ignore[attr-defined]  # somebody else has its output, too, and says no end
        await process.wait()


async def _thrown_away(stream: asyncio.StreamReader) -> None:
    while await stream.read(CHUNK_BYTES):
        pass
