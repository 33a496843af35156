"""Test users of a revoked key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from headgate.base.tasks import end
from headgate.cli.queue.serve import KeyFile
from headgate.cli.settings import read
from headgate.queue.messages.board import MessageBoard
from headgate.queue.server.app import create_app
from headgate.testing.clock import DEADLINE_S
from headgate.web.server import serve
from tests.waiting import until


async def test_a_stream_ends_when_its_key_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "headgate.conf"
    path.write_text("[application_keys]\nsync = old\n")
    file = KeyFile(read(path, {}))
    watching = asyncio.ensure_future(file.watch(0.02))
    board, stop, bound = await MessageBoard.open(f"sqlite:///{tmp_path / 'm.sqlite'}"), asyncio.Event(), asyncio.Event()
    ports = list[int]()
    server = serve(create_app(board, file.keys, stop), "127.0.0.1", 0, stop, lambda p: (ports.append(p), bound.set()))
    task = asyncio.ensure_future(server)
    await bound.wait()
    url, old, new = f"http://127.0.0.1:{ports[0]}/v1/sync", "Application old", "Application new"
    async with aiohttp.ClientSession() as http:
        await http.post(url, data={"queue_name": "q"}, headers={"Authorization": old})
        async with http.get(f"{url}/q/stream", headers={"Authorization": old}) as stream:
            await http.post(f"{url}/q", data="first", headers={"Authorization": old})
            seen = b""
            while b"first" not in seen:
                seen += await stream.content.readany()
            path.write_text("[application_keys]\nsync = new\n")

            async def refused() -> bool:
                return (await http.post(f"{url}/q", data="no", headers={"Authorization": old})).status == 401

            await until("the old key is refused", refused, every_s=0.01)
            posted = await http.post(f"{url}/q", data="secret", headers={"Authorization": new})
            assert posted.status == 201
            async with asyncio.timeout(DEADLINE_S):
                assert b"secret" not in await stream.content.read(), "it ends, and says nothing more"
    stop.set()
    await task
    await end(watching)
    await board.close()
