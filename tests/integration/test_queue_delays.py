"""Test delayed messages: posted now, delivered when due, in order; over HTTP, from Python, and by command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from headgate.cli.queue.queue import command
from headgate.queue import Queues, SyncQueues
from headgate.queue.messages.board import MessageBoard
from headgate.queueing.ids import START
from headgate.queueing.partitions import TTL_MAX_S
from headgate.testing.queues.harness import APP, KEY
from tests.integration.queue_site import Site, site


class Server(Site):
    """Provide a message server whose clock can be advanced."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(board, http, url)
        self.ahead_s = 0.0
        real = board.now_ns
        board.now_ns = lambda: real() + int(self.ahead_s * 1e9)

    async def post(self, body: str, **fields: Any) -> Any:
        batch = {"messages": [{"body": body, "partition": 1, **fields}]}
        return (await self.ask("POST", "/later", 201, json=batch))["messages"][0]

    async def later(self, seconds: float) -> None:
        """Pretend that this time has passed."""
        self.ahead_s += seconds
        await self.board.deliver()

    async def bodies(self, query: str = "") -> list[str]:
        return [one["body"] for one in (await self.ask("GET", f"/later{query}"))["messages"]]

    async def delayed(self) -> list[tuple[str, bool]]:
        found = await self.ask("GET", "/later/delayed")
        return [(one["body"], one["hold"]) for one in found["messages"]]


def served(database_url: str, *, upkeep: bool = False) -> AbstractAsyncContextManager[Server]:
    return site(Server, database_url, upkeep=upkeep)


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with served(database_url) as found:
        await found.ask("POST", "", 201, data={"queue_name": "later", "partitions": "2"})
        yield found
        await found.ask("DELETE", "/later")


async def test_delayed_messages_are_overtaken_and_arrive_in_the_order_of_their_times(server: Server) -> None:
    await server.post("third", delay=90)
    await server.post("second", delay=60)
    await server.post("second too", delay=60.0)
    await server.post("first")
    assert await server.bodies() == ["first"]
    assert [body for body, _ in await server.delayed()] == ["second", "second too", "third"]
    await server.later(59)
    assert await server.bodies() == ["first"]
    await server.later(2)
    assert await server.bodies() == ["first", "second", "second too"]
    await server.post("meanwhile")
    await server.later(30)
    assert await server.bodies() == ["first", "second", "second too", "meanwhile", "third"]
    assert await server.delayed() == []


async def test_a_reader_that_continues_from_the_last_message_misses_no_delayed_one(server: Server) -> None:
    posted = await server.post("late", delay=5)
    (now,) = (await server.ask("POST", "/later", 201, json={"messages": [{"body": "now", "partition": 1}]}))["messages"]
    await server.later(6)
    (late,) = (await server.ask("GET", f"/later?after={now['key']}"))["messages"]
    assert late["body"] == "late" and late["message_id"] != posted["key"] and late["timestamp"] > now["timestamp"]


async def test_a_message_to_wait_for_delays_only_its_partition(server: Server) -> None:
    await server.post("before")
    await server.post("held", delay=60, hold=True)
    behind = await server.post("behind")
    await server.post("much later", delay=600)
    await server.post("elsewhere", partition=2)
    assert await server.bodies() == ["before"] and await server.bodies("?partitions=2") == ["elsewhere"]
    assert "deliver_at" in behind, "its producer is told that it waits"
    await server.later(61)
    assert await server.bodies() == ["before", "held", "behind"]
    await server.post("after")
    assert (await server.bodies())[-1] == "after"
    assert await server.delayed() == [("much later", False)]


async def test_a_message_is_withdrawn_until_it_is_delivered(server: Server) -> None:
    answer, held = await server.post("kept", delay=60), await server.post("not wanted", delay=30, hold=True)
    gone = await server.ask("DELETE", f"/later/delayed/1:{held['key']},1:{'a' * 12}1{'a' * 19}")
    assert gone["withdrawn"] == 1
    await server.post("free")
    assert await server.bodies() == ["free"], "what is no more holds up nothing"
    await server.later(61)
    assert await server.bodies() == ["free", "kept"]
    assert (await server.ask("DELETE", f"/later/delayed/1:{answer['key']}"))["withdrawn"] == 0


async def test_a_server_delivers_messages_that_became_due_while_it_was_down(database_url: str, server: Server) -> None:
    await server.post("in an hour", delay=3600)
    await server.post("in a minute", deliver_at=(datetime.now(UTC) + timedelta(minutes=1)).isoformat())
    async with served(database_url) as other:
        await other.later(7200)
        assert await other.bodies() == ["in a minute", "in an hour"]


@pytest.mark.long
async def test_two_servers_deliver_each_message_once(database_url: str, server: Server) -> None:
    for n in range(120):
        await server.post(f"{n:03d}", delay=1)
    async with served(database_url) as other:
        server.ahead_s = other.ahead_s = 2
        await asyncio.gather(*(one.board.deliver() for one in (server, other, server, other)))
        assert await other.bodies("?limit=1000") == [f"{n:03d}" for n in range(120)]


async def test_the_retention_of_a_message_begins_with_its_delivery(server: Server) -> None:
    await server.post("short", delay=60, ttl=10)
    await server.later(65)
    assert await server.bodies() == ["short"]
    await server.later(11)
    assert await server.bodies() == []


async def test_a_post_that_is_repeated_is_one_message(server: Server) -> None:
    named = {"Idempotency-Key": "once", "X-Partition": "1"}
    one = await server.ask("POST", "/later", 201, data="x", headers={**named, "X-Delay": "2.5"})
    assert one == await server.ask("POST", "/later", 201, data="x", headers={**named, "X-Delay": "2.5"})
    await server.ask("POST", "/later", 422, data="x", headers={**named, "X-Delay": "3"})
    assert await server.delayed() == [("x", False)]


async def test_a_worker_over_http_waits_for_delayed_messages(database_url: str) -> None:
    async with served(database_url, upkeep=True) as server:
        await server.ask("POST", "", 201, data={"queue_name": "later"})
        await server.post("soon", delay=0.3)
        lag = await server.ask("GET", "/later/lag")
        assert (lag["waiting"], lag["delayed"]) == (0, 1)
        lease = (await server.ask("POST", "/later/lease?wait=20", json={}))["lease"]
        (fetched,) = (await server.ask("GET", f"/later/lease/{lease['lease']}"))["messages"]
        assert (fetched["body"], fetched["attempt"]) == ("soon", 1)
        await server.ask("DELETE", "/later")


async def test_delayed_messages_of_a_deleted_queue_do_not_reach_a_new_one_of_that_name(server: Server) -> None:
    await server.post("old", delay=60, hold=True)
    await server.ask("DELETE", "/later")
    await server.ask("POST", "", 201, data={"queue_name": "later", "partitions": "2"})
    await server.later(100)
    assert await server.bodies() == []
    await server.post("new")
    assert await server.bodies() == ["new"]


WRONG = [
    ({"delay": -1}, "delay"),
    ({"delay": "soon"}, "delay"),
    ({"delay": True}, "delay"),
    ({"delay": TTL_MAX_S + 1}, "delay"),
    ({"delay": 1e300}, "delay"),
    ({"delay": 1, "deliver_at": 2}, "delay"),
    ({"deliver_at": "tomorrow"}, "deliver_at"),
    ({"deliver_at": "2026-01-31T12:00:00"}, "deliver_at"),
    ({"deliver_at": "9999-12-31T00:00:00Z"}, "deliver_at"),
    ({"deliver_at": [1]}, "deliver_at"),
    ({"deliver_at": 1e18}, "deliver_at"),
    ({"hold": True}, "hold"),
    ({"delay": 1, "hold": "perhaps"}, "hold"),
]


@pytest.mark.parametrize(("fields", "named"), WRONG)
async def test_invalid_times_are_refused_with_the_name_of_the_field(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as server:
        await server.ask("POST", "", 201, data={"queue_name": "later"})
        answer = await server.ask("POST", "/later", 400, json={"messages": [{"body": "x"}, {"body": "x", **fields}]})
        assert list(answer["error_msg"]) == [f"1.{named}"]
        assert await server.bodies() == [] and await server.delayed() == [], "of a batch nothing is kept"


async def test_a_time_that_is_over_is_now(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as server:
        await server.ask("POST", "", 201, data={"queue_name": "later"})
        assert "deliver_at" not in await server.post("a", deliver_at=0.5)
        assert "deliver_at" not in await server.post("b", deliver_at="1999-01-01T00:00:00+02:00")
        assert await server.bodies() == ["a", "b"]


async def test_from_python_and_from_the_command_line(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as server:
        async with Queues(server.url, KEY) as queues:
            await queues.post("later", "library", deliver_at=datetime.now(UTC) + timedelta(minutes=5), hold=True)

        def plain() -> None:
            with SyncQueues(server.url, KEY) as queues:
                queues.post("later", {"v": 1}, delay_s=600)

        await asyncio.to_thread(plain)
        config = tmp_path / "worker.conf"
        config.write_text(f"[queuey]\nconnection = {server.url}/\napp_key = {KEY}\n")

        async def run(name: str, *words: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, command, [name, "-c", str(config), *words])

        assert (await run("post", "later", "command", "--delay", "900")).output == "posted to later\n"
        listed = json.loads((await run("delayed", "later", "--json")).output)
        assert [one["body"] for one in listed] == ["library", '{"v":1}', "command"]
        assert [one["hold"] for one in listed] == ["yes", "", ""]
        assert (await run("withdraw", "later", listed[2]["id"])).output == "1 withdrawn\n"
        again = await run("withdraw", "later", listed[2]["id"])
        assert again.exit_code != 0 and "no longer" in str(again.exception)
        assert (await run("post", "later", "x", "--at", "tomorrow")).exit_code != 0
        await server.later(601)
        of = await server.board.queue(APP, "later")
        assert [one.body for one in await server.board.read("any", of, 1, START, limit=9)] == ["library", '{"v":1}']
