"""Test logs while they are written: the first message of clients, the data, and the reason of the close."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.web.app import create_app

from .conftest import World, token
from .test_history import ran

CONTROL_FRAME_MAX_BYTES = 125
LINES = "one\nzwei: \u00e4\u20ac\U0001f4a9\n"


class Followed(NamedTuple):
    """Record what a socket received, and how it was closed."""

    text: str
    code: int
    reason: str


async def follow(world: World, message: str | bytes, tenant: str = "example") -> Followed:
    """Send one message to the console stream of a tenant, and read until it closes."""
    sent: list[dict[str, Any]] = []
    first = {"text": message} if isinstance(message, str) else {"bytes": message}
    received: Iterator[dict[str, Any]] = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", **first}])

    async def receive() -> dict[str, Any]:
        return next(received, {"type": "websocket.disconnect", "code": 1000})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path = f"/api/tenant/{tenant}/console-stream"
    scope = {
        "type": "websocket", "path": path, "raw_path": quote(path).encode(), "query_string": b"", "scheme": "ws",
        "state": {}, "headers": [(b"host", b"headgate.example")], "subprotocols": [], "client": ("10.0.0.1", 1),
        "server": ("headgate.example", 80), "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    await create_app(world.site)(scope, receive, send)
    (closed,) = (one for one in sent if one["type"] == "websocket.close")
    reason = closed.get("reason", "")
    assert len(reason.encode()) + 2 <= CONTROL_FRAME_MAX_BYTES, "it would be no frame"
    return Followed("".join(one["text"] for one in sent if one["type"] == "websocket.send"), closed["code"], reason)


async def built(world: World) -> str:
    """Return a build that ended and left a log."""

    def leaves(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        (world.logs / spec.build).mkdir(parents=True)
        (world.logs / spec.build / "job-output.txt").write_text(LINES)
        return ran(spec, state)

    world.running.runner.jobs = {"unit": leaves}
    return str((await world.landed("done"))["uuid"])


@pytest.mark.long
async def test_a_log_is_sent_unchanged_and_its_end_is_marked(world: World) -> None:
    build = await built(world)
    for more in ({"logfile": "console.log"}, {}, {"token": None, "other": [1]}):
        assert await follow(world, json.dumps({"uuid": build, **more})) == (LINES, 1000, "No more data"), more


@pytest.mark.long
async def test_a_token_that_is_not_good_counts_only_where_one_is_needed(world: World) -> None:
    build = await built(world)
    bad = {"uuid": build, "logfile": "console.log", "token": token(exp=1)["Authorization"].partition(" ")[2]}
    assert await follow(world, json.dumps(bad)) == (LINES, 1000, "No more data")
    found = world.running.scheduler.tenants["example"]
    found.tenant = replace(found.tenant, access_rules=("nobody",))
    for given, error in ((bad["token"], "TokenExpiredError"), ("x", "AuthTokenUndecodedException")):
        refused = await follow(world, json.dumps({**bad, "token": given}))
        assert (refused.text, refused.code) == ("", 4000) and refused.reason.startswith(f"{error}: ")
    refused = await follow(world, json.dumps({"uuid": build, "logfile": "console.log"}))
    assert (refused.text, refused.code) == ("", 4000) and refused.reason.startswith("MissingAuthError: ")
    good = {**bad, "token": token()["Authorization"].partition(" ")[2]}
    assert await follow(world, json.dumps(good)) == (LINES, 1000, "No more data")


@pytest.mark.long
async def test_a_request_without_a_build_gets_a_usage_hint_and_a_missing_build_is_named(world: World) -> None:
    for message in (
        "",
        "[]",
        "{",
        '{"logfile": "console.log"}',
        '{"uuid": null}',
        b"\xff\xfe",
        "1",
        '{"x":' + "[" * 5_000,
    ):
        close = await follow(world, message)
        assert close.code == 4000 and "uuid" in close.reason, message
    for name in ("x", "../../etc/passwd", "\u00e4" * 200, "\u20ac" * 100, "\U0001f4a9" * 60, "\x00"):
        close = await follow(world, json.dumps({"uuid": name}))
        assert close.code == 4011 and close.reason.startswith("Build not found"), name
        close = await follow(world, json.dumps({"uuid": "x"}), tenant=name.replace("/", "").replace("\x00", "y"))
        assert close.code == 4011 and close.reason.startswith("there is no tenant"), name
