"""Commands in containers over a websocket, as kubectl speaks of them (`v5.channel.k8s.io`)."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, RESULT, CLOSE = 0, 1, 2, 3, 255
"""First bytes of messages, which name the channel; CLOSE is followed by the channel that ends."""
PIECE_SIZE_BYTES = 32_768


async def serve(request: web.Request, command: Sequence[str]) -> web.StreamResponse:
    """Run a command; return once it has ended and its exit status is sent."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout and process.stderr
    fed = asyncio.ensure_future(_feed(socket, process))
    try:
        await asyncio.gather(_send_output(socket, STDOUT, process.stdout), _send_output(socket, STDERR, process.stderr))
        # After both outputs: kubectl takes the result for the end.
        code = await process.wait()
        with suppress(ConnectionError):
            await socket.send_bytes(bytes([RESULT]) + json.dumps(_result(code)).encode())
    finally:
        fed.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    await socket.close()
    return socket


def _result(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }  # fmt: skip


async def _send_output(socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader) -> None:
    while piece := await stream.read(PIECE_SIZE_BYTES):
        with suppress(ConnectionError):
            await socket.send_bytes(bytes([channel]) + piece)


async def _feed(socket: web.WebSocketResponse, process: Process) -> None:
    """Wait until whoever asks goes away: then the command ends, too."""
    assert process.stdin
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, piece = message.data[0], message.data[1:]
        if channel == STDIN:
            process.stdin.write(piece)
            with suppress(ConnectionError):
                await process.stdin.drain()
        # Only version 5 of the protocol can end one direction; before it, a command that reads to the end never ended.
        elif channel == CLOSE and piece == bytes([STDIN]):
            process.stdin.close()
    if process.returncode is None:
        process.kill()
