"""Test that every server answers HEAD like GET, without a body, and completes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headgate.base.tasks import run_until
from headgate.queue.messages.board import MessageBoard
from headgate.queue.server.app import MESSAGE_ROUTES, QUEUE_ROUTES, SCHEDULE_ROUTES
from headgate.queue.server.leases import LEASE_ROUTES
from headgate.rest import StreamResponse, WebApplication, get, post
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving
from headgate.web.server import serve

ROUTES = (*QUEUE_ROUTES, *MESSAGE_ROUTES, *LEASE_ROUTES, *SCHEDULE_ROUTES)


@pytest.mark.long
async def test_every_address_of_the_message_server_answers_head_as_it_answers_get(tmp_path: Path) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    key = {"Authorization": f"Application {KEY}"}
    async with serving(board) as url, httpx.AsyncClient(base_url=url, headers=key, timeout=DEADLINE_S) as http:
        await http.post(f"/v1/{APP}", data={"queue_name": "mail", "partitions": "2"})
        posted = await http.post(f"/v1/{APP}/mail", json={"messages": [{"body": "a"}]})
        lease = (await http.post(f"/v1/{APP}/mail/lease", json={"ttl": 3600})).json()["lease"]["lease"]
        known = {"app": APP, "queue": "mail", "ids": posted.json()["messages"][0]["key"], "lease": lease}
        paths = {path for route in ROUTES for path in route.paths if "GET" in route.methods}
        seen = dict[str, int]()
        for template in sorted(paths):
            path = template.replace(":str", "").format(**known)
            head = await http.head(path)
            assert head.content == b"", path
            seen[path] = head.status_code
            if not path.endswith("/stream"):
                full = await http.get(path)
                assert (full.status_code, full.headers["content-type"]) == (
                    head.status_code,
                    head.headers["content-type"],
                ), path
        assert len(seen) > 10 and set(seen.values()) == {200}, seen
        assert (await http.head(f"/v1/{APP}/none")).status_code == 404
    await board.close()


async def test_a_stream_ends_after_its_head_and_writing_routes_have_none() -> None:
    ended, written = asyncio.Event(), list[str]()

    async def lines() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0)
        finally:
            ended.set()

    @get("/stream")
    async def stream() -> StreamResponse:
        return StreamResponse(lines())

    @post("/write")
    async def write() -> None:
        written.append("x")

    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = WebApplication([stream, write])
    running = asyncio.ensure_future(run_until(stop, serve(app, "127.0.0.1", 0, stop, bound.set_result)))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await bound}", timeout=DEADLINE_S) as http:
        assert (await http.head("/stream")).status_code == 200
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
        assert ((await http.head("/write")).status_code, written) == (405, [])
    stop.set()
    await running
