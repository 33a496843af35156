"""Test the description of the inventory against the real server: no other status or shape is answered, and no fault."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from ..described import Caller
from .test_http import HEADERS, machine, served

LEFT_OUT = ("/watch",)
"""Ends of paths whose answers do not end."""


@pytest.mark.long
async def test_every_request_to_the_inventory_is_answered_as_described() -> None:
    async with served() as web, httpx.AsyncClient(base_url=web.root) as http:
        assert (await web("PUT", "/v1/partitions", {"partition": {"name": "site"}}))[0] == 200
        status, made = await web("POST", "/v1/objects/apply", {"steps": [machine("m1")]})
        assert status == 200
        known = {"uuid": [made["objects"][0]["uuid"], "f" * 32, "x"], "partition": ["site", "x"]}
        description = (await http.get("/openapi.json")).json()
        caller = Caller(http, asyncio.get_running_loop(), root=web.root)
        await caller.ask_all(description, known, (HEADERS, {}), LEFT_OUT)
        await caller.ask_all(description, {}, (HEADERS,), LEFT_OUT)
    assert not caller.wrong, caller.report()
    answered = {name for name, statuses in caller.statuses.items() if 200 in statuses}
    assert len(caller.statuses) > 20 and len(answered) > 8, caller.statuses
