"""Test the description of queues against the real server: no other status, type or shape is answered, and no fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from headgate.queue.messages.board import MessageBoard
from headgate.testing.queues.harness import APP, KEY, OTHER_KEY, serving

from .described import Caller

LEFT_OUT = ("/stream",)
"""Ends of paths whose answers do not end."""
MADE_UP = {"put /v1/{app}/{queue}/schedules/{name}", "post /v1/{app}/{queue}/lease/{lease}"}
"""Operations whose bodies no generator can produce: a cron line, and messages of the lease."""
STRANGERS = ({}, {"Authorization": f"Application {OTHER_KEY}"})


@pytest.mark.long
async def test_every_request_to_queues_is_answered_as_described(tmp_path: Path) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    key = {"Authorization": f"Application {KEY}"}
    async with serving(board) as url, httpx.AsyncClient(base_url=url) as http:
        made = await http.post(f"/v1/{APP}", data={"queue_name": "mail", "partitions": "2"}, headers=key)
        assert made.status_code == 201
        posted = await http.post(f"/v1/{APP}/mail", json={"messages": [{"body": "a"}, {"body": "b"}]}, headers=key)
        lease = (await http.post(f"/v1/{APP}/mail/lease", json={"ttl": 3600}, headers=key)).json()["lease"]["lease"]
        known = {
            "app": [APP],
            "queue": ["mail"],
            "ids": [posted.json()["messages"][0]["key"]],
            "lease": [lease],
            "wait": ["0", "0.01", "x"],
        }
        description = (await http.get("/openapi.json")).json()
        caller = Caller(http, asyncio.get_running_loop(), root=url)
        await caller.ask_all(description, known, (key,), LEFT_OUT)
        await caller.ask_all(description, {"wait": ["0"]}, (*STRANGERS, key), LEFT_OUT)
    await board.close()
    assert not caller.wrong, caller.report()
    seen = caller.statuses
    refused = {name for name, statuses in seen.items() if not statuses & {200, 201}}
    assert len(seen) > 20 and refused <= MADE_UP, seen
