"""Test schedules: one message for each of their times, however many servers there are, and whichever times they
miss."""

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

from headgate.base.tasks import end
from headgate.cli.queue.queue import command
from headgate.queue import Queues
from headgate.queue.messages.board import MessageBoard
from headgate.testing.queues.harness import KEY, OTHER_KEY
from tests.integration.queue_site import Site, site

START = datetime(2027, 3, 1, 9, 30, 20, tzinfo=UTC)
"""A Monday."""
EACH_MINUTE = {"cron": "* * * * *", "body": "{time}"}


class Server(Site):
    """Control the clock."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(board, http, url)
        self.now = START
        board.now_ns = lambda: int(self.now.timestamp()) * 10**9

    async def at(self, **later: float) -> None:
        """So much after the start."""
        self.now = START + timedelta(**later)
        await self.board.deliver()

    async def bodies(self) -> list[str]:
        found = [m for n in (1, 2) for m in (await self.ask("GET", f"/q?limit=1000&partitions={n}"))["messages"]]
        return sorted(one["body"] for one in found)


def served(database_url: str) -> AbstractAsyncContextManager[Server]:
    return site(Server, database_url)


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with served(database_url) as found:
        await found.ask("POST", "", 201, data={"queue_name": "q", "partitions": "2"})
        yield found
        await found.ask("DELETE", "/q")


def minutes(*numbers: int) -> list[str]:
    return [f"2027-03-01T09:{number:02d}:00Z" for number in numbers]


async def test_a_message_is_posted_at_each_time(server: Server) -> None:
    made = await server.ask("PUT", "/q/schedules/tick", json={**EACH_MINUTE, "partition": 2})
    assert float(made["next_at"]) == datetime(2027, 3, 1, 9, 31, tzinfo=UTC).timestamp()
    await server.at(seconds=39)
    assert await server.bodies() == []
    for seconds in (40, 41, 100, 130, 160):
        await server.at(seconds=seconds)
    assert await server.bodies() == minutes(31, 32, 33)
    assert (await server.ask("DELETE", "/q/schedules/tick"))["removed"] == 1
    await server.at(minutes=9)
    assert await server.bodies() == minutes(31, 32, 33)


MISSED = [("once", minutes(31)), ("skip", []), ("all", minutes(*range(31, 56)))]


@pytest.mark.parametrize(("missed", "posted"), MISSED)
async def test_times_that_passed_without_a_server(
    database_url: str, server: Server, missed: str, posted: list[str]
) -> None:
    await server.ask("PUT", "/q/schedules/tick", json={**EACH_MINUTE, "cron": "*/1 9 * * *", "missed": missed})
    async with served(database_url) as other:
        await other.at(minutes=25, seconds=30)  # 9:55:50; the last minute does not count as missed
        assert await other.bodies() == (minutes(55) if missed == "skip" else posted)
        await other.at(minutes=26)
        assert len(await other.bodies()) == len(posted) + (2 if missed == "skip" else 1)


async def test_times_of_a_schedule_missed_long_ago_are_skipped(server: Server) -> None:
    await server.ask("PUT", "/q/schedules/daily", json={"cron": "0 6 * * *", "body": "{time}", "missed": "all"})
    await server.at(days=400)
    assert len(await server.bodies()) == 7


@pytest.mark.long
async def test_two_servers_post_each_message_once(database_url: str, server: Server) -> None:
    for n in range(30):
        await server.ask("PUT", f"/q/schedules/s{n}", json={**EACH_MINUTE, "body": f"{n} {{time}}", "missed": "all"})
    async with served(database_url) as other:
        for minute in range(1, 6):
            await asyncio.gather(*(one.at(minutes=minute) for one in (server, other, server, other)))
        found = await other.bodies()
    assert found == sorted(f"{n} {at}" for n in range(30) for at in minutes(*range(31, 36)))


async def test_a_repeated_schedule_keeps_its_next_time_and_a_changed_one_gets_another(server: Server) -> None:
    wanted = {"cron": "0 12 * * mon-fri", "body": "x", "zone": "Europe/Berlin"}
    first = await server.ask("PUT", "/q/schedules/noon", json=wanted)
    assert float(first["next_at"]) == datetime(2027, 3, 1, 11, tzinfo=UTC).timestamp()
    server.now += timedelta(hours=3)  # past it, before anybody posted: a deployment must not lose it
    assert (await server.ask("PUT", "/q/schedules/noon", json={**wanted, "body": "y"}))["next_at"] == first["next_at"]
    await server.at(hours=3)
    assert await server.bodies() == ["y"]
    other = await server.ask("PUT", "/q/schedules/noon", json={**wanted, "zone": "UTC"})
    assert float(other["next_at"]) == datetime(2027, 3, 2, 12, tzinfo=UTC).timestamp()


WRONG = [
    ({"cron": "* * * *"}, "cron"),
    ({"cron": "* * * * * *"}, "cron"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"cron": "0 0 * * 1"}, "cron"),
    ({"cron": "*/0 * * * *"}, "cron"),
    ({"cron": ",".join(["1"] * 500) + " * * * *"}, "cron"),
    ({"zone": "Europe/Atlantis"}, "zone"),
    ({"zone": "../../etc/passwd"}, "zone"),
    ({"zone": "/etc/passwd"}, "zone"),
    ({"zone": ""}, "zone"),
    ({"missed": "perhaps"}, "missed"),
    ({"body": ""}, "body"),
    ({"body": "x" * 70_000}, "body"),
    ({"partition": 3}, "partition"),
    ({"partition": 0}, "partition"),
    ({"partition": 1, "key": "k"}, "key"),
    ({"ttl": 0}, "ttl"),
    ({"unknown": 1}, "body"),
]


@pytest.mark.parametrize(("fields", "named"), WRONG)
async def test_invalid_schedules_are_refused_with_the_name_of_the_field(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as server:
        await server.ask("POST", "", 201, data={"queue_name": "q", "partitions": "2"})
        answer = await server.ask("PUT", "/q/schedules/s", 400, json={**EACH_MINUTE, **fields})
        assert list(answer["error_msg"]) == [named]
        assert (await server.ask("GET", "/q/schedules"))["schedules"] == []
        foreign = {"Authorization": f"Application {OTHER_KEY}"}
        await server.ask("PUT", "/q/schedules/s", 403, json=EACH_MINUTE, headers=foreign)


async def test_the_server_posts_by_itself_and_people_and_programs_say_what(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as server:
        async with Queues(server.url, KEY) as queues:
            await queues.schedule("q", "python", "0 6 * * *", {"v": 1}, missed="skip")
        config = tmp_path / "worker.conf"
        config.write_text(f"[queuey]\nconnection = {server.url}/\napp_key = {KEY}\n")

        async def run(name: str, *words: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, command, [name, "-c", str(config), *words])

        made = await run("schedule", "fresh", "noon", "0 12 * * mon", '{"v": 1}', "--zone", "Europe/Berlin")
        assert made.output == "noon: next message at 2027-03-01T11:00:00+00:00\n"
        listed = json.loads((await run("schedules", "q", "--json")).output)
        assert [(one["name"], one["body"], one["missed"]) for one in listed] == [("python", '{"v":1}', "skip")]
        assert (await run("schedule", "q", "bad", "soon", "x")).exit_code != 0
        assert (await run("unschedule", "q", "python")).output == "removed the schedule python\n"
        assert (await run("unschedule", "q", "python")).exit_code != 0
        server.now = START + timedelta(hours=2)
        upkeep = asyncio.ensure_future(server.board.upkeep())
        found = await server.ask("GET", "/fresh?wait=20")
        assert [one["body"] for one in found["messages"]] == ['{"v": 1}']
        await end(upkeep)
