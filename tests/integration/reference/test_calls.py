"""Test that every call of Zuul's API is answered as the page about the API says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.cli.pages.api import CALLS
from headgate.web.app import ROUTES
from headgate.web.description import paths_of
from headgate.web.site import WebSettings
from tests.site import client_of

from .conftest import TENANT, World, token

HELD = {"job": "unit", "count": 1, "reason": "r", "node_hold_expiration": None}


async def known(world: World) -> dict[str, str]:
    """Return the values for the words in braces, once there is an object of each kind."""
    build = await world.landed("one")
    held = await world.client.post(f"{TENANT}/project/code/api/autohold", json=HELD, headers=token())
    assert held.json() is True
    (hold,) = await world.get("T/autohold")
    return {
        "tenant": "example", "project": "code/api", "pipeline": "gate", "branch": "master", "job": "unit",
        "change": "one", "id": hold["id"], "name": "local", "uuid": build["uuid"],
        "buildset": build["buildset"]["uuid"],
    }  # fmt: skip


@pytest.mark.long
async def test_every_readable_address_is_answered(world: World) -> None:
    words = await known(world)
    for call in CALLS:
        if call.method != "GET":
            continue
        path = call.path.replace("buildset/{uuid}", "buildset/{buildset}").format(**words)
        answer = await world.client.get(path, headers=token())
        if "/key/" in path:  # this gate keeps no keys
            assert (answer.status_code, "keeps no keys" in answer.text) == (503, True)
            continue
        there = 404 if call.absent or "SSH" in call.how else 200
        assert answer.status_code == there, f"{path}: {answer.status_code} {answer.text[:200]}"


def test_every_described_call_has_a_route() -> None:
    served = {
        (method, path) for route in ROUTES for method in (route.methods or ["WEBSOCKET"]) for path in paths_of(route)
    }
    served |= {(m, p.replace("{verb}", v)) for m, p in served for v in ("validate", "upload") if "{verb}" in p}
    assert not [call for call in CALLS if not call.absent and (call.method, call.path) not in served]
    assert len({(call.method, call.path) for call in CALLS}) == len(CALLS)


ROUNDS = 20


@pytest.mark.long
async def test_a_tenant_at_the_root_is_all_that_there_is(world: World) -> None:
    await known(world)
    async with client_of(replace(world.site, settings=WebSettings(at_root="example"))) as client:

        async def get(path: str, status: int = 200) -> Any:  # JSON
            answer = await client.get(path, headers=token())
            assert answer.status_code == status, f"{path}: {answer.text[:200]}"
            return answer.json()

        assert (await get("/api/info"))["info"]["tenant"] == "example"
        for path in ("status", "builds?change=one", "jobs", "project/code/api", "authorizations", "tenant-status"):
            own, named = await get(f"/api/{path}"), await get(f"{TENANT}/{path}")
            for _ in range(ROUNDS):  # events may arrive between two reads
                if own == named:
                    break
                own, named = await get(f"/api/{path}"), await get(f"{TENANT}/{path}")
            assert own == named, path
        assert (await client.get("/api/key/code/api.pub")).text == (await client.get(f"{TENANT}/key/code/api.pub")).text
        assert (await get("/api//status"))["pipelines"], "slashes that repeat count as one"
        assert await get("/api/tenants") == [{"name": "example", "projects": 3, "queue": 0}]
        await get("/api/nothing", 404)
        body = {"pipeline": "check", "change": "none"}
        missing = await client.post("/api/project/code/api/dequeue", json=body, headers=token())
        assert missing.status_code in (404, 409) and "none" in missing.json()["description"]
        assert (await client.post("/api/project/code/api/dequeue", json=body)).status_code == 401
        page = await client.get("/builds?change=one")
        assert (page.status_code, page.headers["location"]) == (307, "/t/example/builds?change=one")
        assert (await client.get("/t/example/builds")).status_code == 200
        again = await client.get("http://headgate.example//builds")
        assert again.headers["location"] == "/t/example/builds", "nobody is sent elsewhere"
        assert (await client.get("http://headgate.example//evil.example/builds")).status_code == 404


async def test_where_no_tenant_is_at_the_root_nothing_is(world: World) -> None:
    assert (await world.client.get("/api/status")).status_code == 404
    assert "tenant" not in (await world.get("/api/info"))["info"]
