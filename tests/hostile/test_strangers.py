"""Test strangers on every served path: nothing of a protected tenant is shown, also on paths that are added later."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from headgate.web.app import ROUTES
from headgate.web.site import OPEN
from tests.e2e.crowd import crowded
from tests.integration.conftest import TENANTS

PRIVATE = (
    "- authorization-rule: {name: members, conditions: [{groups: members}]}\n"
    f"{TENANTS}    access-rules: [members]\n"
)
THERE = {
    "tenant": "example", "uuid": "past1b1", "build": "past1b1", "change": "topic-1,00000001", "project": "code/api",
    "pipeline": "gate", "name": "status", "branch": "master", "job": "unit", "job_name": "unit",
}  # fmt: skip
"""Objects that exist for authorised people."""
NAMED = ("topic-", "code/api", "code/lib", "integrated", "Retry uploads", "unit-tests", "Ada", "past1")
QUERY = "?project=code/api&change=topic-1&patchset=00000001&pipeline=gate&build=past1b1&branch=master"
"""Filters that some of them use; the others answer that there is no such filter, if they answer anything."""


@pytest.fixture
async def protected(tmp_path: Path) -> AsyncIterator[str]:
    """Serve a tenant with full queues and history that nobody may read without a token."""
    async with crowded(tmp_path, tenants=PRIVATE) as (_, url):
        yield url


def paths(*, sockets: bool) -> Iterator[tuple[str, bool, bool]]:
    """Return every path with existing names, whether it belongs to a tenant, and whether that is open."""
    for handler in ROUTES:
        if not handler.methods if sockets else "GET" in handler.methods:
            for path in handler.paths:
                filled = re.sub(r"\{(\w+):\w+\}", lambda found: THERE.get(found[1], "x"), path)
                yield filled, "{tenant:" in path, bool(handler.opt.get(OPEN))


@pytest.mark.long
async def test_no_path_names_anything_of_a_protected_tenant(protected: str) -> None:
    count, wrong = 0, []
    async with httpx.AsyncClient(base_url=protected, follow_redirects=False, timeout=60) as client:
        for path, of_tenant, is_open in paths(sockets=False):
            for query in ("", QUERY):
                async with client.stream("GET", path + query) as answer:
                    text = (await answer.aread()).decode(errors="replace")
                    text += " ".join(f"{name}: {value}" for name, value in answer.headers.items())
                count += 1
                text = text.replace(path, "").replace("past1b1", "")  # which they send themselves
                if of_tenant and not is_open and answer.status_code != 401:
                    wrong.append((path + query, answer.status_code, text[:200]))
                if found := [name for name in NAMED if name in text]:
                    wrong.append((path + query, answer.status_code, found))
                if not of_tenant and re.search(r"""["'/]example["'/?]""", text):
                    wrong.append((path + query, answer.status_code, "it names the tenant"))
    assert count > 150 and not wrong, wrong


@pytest.mark.long
async def test_no_websocket_names_anything_of_a_protected_tenant(protected: str) -> None:
    sockets = [path for path, _, _ in paths(sockets=True)]
    assert sockets, "there are some"
    for path in sockets:
        async with connect(protected.replace("http", "ws") + path) as socket:
            await socket.send('{"uuid": "past1b1", "logfile": "console.log"}')
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            close = closed.value.rcvd
            assert close is not None and close.code in (1008, 4000, 4011), path
            assert not [name for name in NAMED if name in close.reason.replace("past1b1", "")], close.reason
