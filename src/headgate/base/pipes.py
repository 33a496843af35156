"""Read the output of processes within size limits and without deadlocks."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headgate.base.errors import HeadgateError
from headgate.base.tasks import run_until

CHUNK_BYTES = 65_536
LEFT_OPEN_S = 5.0
"""Time for which the output of a killed process is still read."""
ERR_MAX_BYTES = 65_536
"""Size limit of a command's error output: this much from its beginning, and as much from its end."""


class OutputTooLarge(HeadgateError):
    """Report that a process printed more than its limit."""


class _Output:
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
                # The beginning and the end explain an error best, so the middle of a flood is dropped.
                self.err[1] = (self.err[1] + chunk)[-ERR_MAX_BYTES:]


async def communicate(process: asyncio.subprocess.Process, stdin: bytes, out_max_bytes: int) -> tuple[bytes, bytes]:
    """Send `stdin` to the process; return its output and its error output once it has ended. Raise OutputTooLarge."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    output = _Output()
    works = output.all(process.stdout, out_max_bytes), output.ends(process.stderr), _feed(process.stdin, stdin)
    # All three pipes are served at the same time: a process that blocks on one full pipe would otherwise hang forever.
    await run_until(asyncio.Event(), *works)
    await process.wait()
    return b"".join(output.out), b"".join(output.err)


async def _feed(stream: asyncio.StreamWriter, stdin: bytes) -> None:
    try:
        stream.write(stdin)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the process reads no more input; its exit status shows whether that is an error


async def ends(process: asyncio.subprocess.Process, most_s: float) -> bool:
    """Return whether the process ends within `most_s` seconds, and discard its output. For asyncio, a process has ended
    only once its output is closed, and a process that writes to a full pipe never closes it."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    try:
        async with asyncio.timeout(most_s):
            await asyncio.gather(process.wait(), *map(_discard, streams))
    except TimeoutError:
        return False
    return True


async def put_down(process: asyncio.subprocess.Process) -> None:
    """Kill the process, if it runs, and return once it has ended and its output is closed."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            # The process may have ended since the check.
            process.kill()
    if not await ends(process, LEFT_OPEN_S):
        # Another process holds its output open. The transport's own `close` might collect the exit status before the
        # event loop, which would then not know it.
        pipes = map(process._transport.get_pipe_transport, range(3))  # type: ignore[attr-defined]
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        await process.wait()


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(CHUNK_BYTES):
        pass
