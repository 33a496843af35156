"""Test limits on the storage and posts of queues and applications, and replaced keys."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.queue import QueueFull, Queues
from headgate.queue.messages import bounds
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.bounds import UNLIMITED, ApplicationLimits
from headgate.queue.messages.database import SqliteDatabase
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.testing.queues.harness import APP, KEY, OTHER_APP, OTHER_KEY
from tests.integration.queue_site import Site, site

OTHERS = {"Authorization": f"Application {OTHER_KEY}"}


class Server(Site):
    """Its clock stands still until it is advanced."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(board, http, url)
        self.now_s = 1_800_000_000.0
        board.now_ns = lambda: int(self.now_s * 1e9)

    async def queue(self, **form: str) -> None:
        await self.ask("POST", "", 201, data={"queue_name": "q", **form})

    async def post(self, *bodies: str, status: int = 201, **fields: Any) -> Any:
        batch = {"messages": [{"body": body, "partition": 1, **fields} for body in bodies]}
        return await self.ask("POST", "/q", status, json=batch)

    async def bodies(self, partition: int = 1) -> list[str]:
        found = await self.ask("GET", f"/q?limit=1000&partitions={partition}")
        return [one["body"] for one in found["messages"]]

    async def fail(self, chance: random.Random) -> None:
        """Lease a partition and report that the first messages failed, some of them for good."""
        taken = (await self.ask("POST", "/q/lease", json={"group": chance.choice("ab"), "ttl": 3}))["lease"]
        if taken is not None:
            path = f"/q/lease/{taken['lease']}"
            found = (await self.ask("GET", f"{path}?limit=2"))["messages"]
            failed = [{"message_id": one["message_id"], "error": "ü" * chance.randrange(9)} for one in found]
            if chance.random() < 0.8:
                await self.ask("POST", path, json={"failed": failed, "attempts": chance.randrange(1, 3)})

    async def counted(self) -> None:
        """The counts equal the stored messages."""

        def look(database: Any, now_ms: int) -> tuple[Any, Any]:
            every = "select queue, partition, body from {} where queue in (select id from queue)"
            there: dict[tuple[int, int], tuple[int, int]] = {}
            for table in ("message", "later"):
                for queue, partition, body in database.execute(every.format(table)):
                    count, size = there.get((queue, partition), (0, 0))
                    there[queue, partition] = count + 1, size + len(body.encode())
            rows = database.execute("select queue, partition, messages, bytes from kept where messages <> 0")
            return there, {(queue, partition): (count, size) for queue, partition, count, size in rows}

        there, answer = await self.board.look("any", look)
        assert answer == there
        there, answer = await self.board.look("any", lambda database, _: _extra(database))
        assert answer == there


def _extra(database: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Return what is stored besides messages, and what is counted of it: queue -> bytes."""
    there: dict[int, int] = {}
    texts = {"posted": "key || answer", "tried": "error", "schedule": "body", "lease": "''"}
    for table, text in texts.items():
        sql = f"select queue, {text} from {table} where queue in (select id from queue)"
        for queue, found in database.execute(sql):
            there[queue] = there.get(queue, 0) + 200 + len(found.encode())
    return there, dict(database.execute("select queue, bytes from extra where bytes <> 0"))


def served(database_url: str, limits: ApplicationLimits = UNLIMITED) -> AbstractAsyncContextManager[Server]:
    return site(Server, database_url, limits)


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with served(database_url) as found:
        yield found
        for queue in (await found.ask("GET", ""))["queues"]:
            await found.ask("DELETE", f"/{queue['queue_name']}")
        await found.board._purge()
        forget = (
            "delete from retired"  # otherwise ids continue after those of this queue, whose clock may have been ahead
        )
        await found.board.change(APP, lambda database, _: database.execute(forget))


async def test_a_full_queue_refuses_more_of_that_partition_until_there_is_room(server: Server) -> None:
    await server.queue(partitions="2", messages_max="3")
    await server.post("1", "2")
    refused = await server.post("3", "4", status=429)
    assert "3 messages" in refused["error_msg"]["queue_name"] and int(refused["again"]) > 0
    assert await server.bodies() == ["1", "2"], "all of a batch or none"
    await server.post("elsewhere", partition=2)
    await server.post("3", delay=60)
    await server.post("4", status=429)
    (id, *_) = [one["message_id"] for one in (await server.ask("GET", "/q"))["messages"]]
    await server.ask("DELETE", f"/q/1:{id}")
    await server.post("4")
    await server.counted()


async def test_a_queue_that_drops_keeps_the_newest(server: Server) -> None:
    await server.queue(messages_max="4", bytes_max="30", full="drop")
    await server.post(*(f"{n}" for n in range(9)))
    assert await server.bodies() == ["5", "6", "7", "8"]
    await server.post("ß" * 13)
    assert await server.bodies() == ["5", "6", "7", "8", "ß" * 13][1:]
    await server.post("x" * 20)
    assert await server.bodies() == ["x" * 20]
    await server.counted()


async def test_a_queue_with_far_too_many_messages_drops_so_many_at_a_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "DROP_MAX", 3)
    async with site(Site, database_url) as found:
        await found.ask("POST", "", 201, data={"queue_name": "many"})
        await found.ask("POST", "/many", 201, json={"messages": [{"body": str(n)} for n in range(8)]})
        await found.ask("PUT", "/many", data={"messages_max": "2", "full": "drop"})
        for bodies in (["3", "4", "5", "6", "7", "x"], ["6", "7", "x", "x"], ["x", "x"]):
            await found.ask("POST", "/many", 201, data="x")
            assert [one["body"] for one in (await found.ask("GET", "/many"))["messages"]] == bodies
        await found.ask("DELETE", "/many")


async def test_bounds_are_changed_shown_and_removed(server: Server) -> None:
    await server.queue(messages_max="1")
    await server.post("1")
    await server.post("2", status=429)
    changed = await server.ask("PUT", "/q", data={"full": "drop"})
    assert (changed["messages_max"], changed["bytes_max"], changed["full"]) == (1, 0, "drop")
    await server.post("2")
    assert await server.bodies() == ["2"]
    await server.ask("PUT", "/q", data={"messages_max": "0"})
    await server.post("3", "4")
    assert await server.bodies() == ["2", "3", "4"]
    await server.ask("PUT", "/q", 400, data={"full": "perhaps"})
    await server.ask("PUT", "/q", 400, data={"bytes_max": "-1"})
    await server.ask("POST", "", 400, data={"queue_name": DEAD_LETTERS, "messages_max": "1"})


async def test_a_queue_keeps_no_message_beyond_its_age_however_long_that_one_would_stay(server: Server) -> None:
    await server.queue(partitions="2", age_max="60")
    await server.post("short", ttl=20)
    await server.post("long", ttl=86_400)
    await server.post("later", ttl=86_400, delay=40)
    server.now_s += 30
    assert await server.bodies() == ["long"], "its own time counts where it is shorter"
    server.now_s += 31
    await server.board.deliver()
    assert await server.bodies() == ["later"]
    server.now_s += 59
    assert await server.bodies() == ["later"], "what is posted for later is as old as it was delivered"
    server.now_s += 2
    assert await server.bodies() == []
    await server.board._purge()
    await server.counted()


@pytest.mark.long
async def test_a_lowered_age_limit_also_applies_to_existing_messages(server: Server) -> None:
    await server.queue(partitions="2")
    old = (await server.post(*(f"{n}" for n in range(2_500)), ttl=86_400))["messages"][0]["key"]
    await server.post("2", partition=2, ttl=86_400)
    server.now_s += 100
    await server.post("new", ttl=86_400)
    answer = await server.ask("PUT", "/q", data={"age_max": "50"})
    assert answer["age_max"] == 50
    listed = await server.ask("GET", "?details=true")
    assert [one.get("age_max") for one in listed["queues"] if one["queue_name"] == "q"] == [50]
    await server.board._purge()
    assert (await server.bodies(), await server.bodies(2)) == (["new"], [])
    await server.counted()
    refused = await server.ask("PUT", f"/q/1:{old}", 400, data="again")
    assert "50 s" in refused["error_msg"]["message_id"]
    await server.ask("PUT", "/q", data={"messages_max": "9"})
    assert (await server.ask("PUT", "/q", data={}))["age_max"] == 50, "what is not said stays"
    assert "age_max" not in await server.ask("PUT", "/q", data={"age_max": "0"})
    await server.ask("PUT", "/q", 400, data={"age_max": "-1"})
    await server.ask("PUT", "/q", 400, data={"age_max": "99999999999"})
    await server.post("kept", ttl=86_400)
    server.now_s += 3_600
    await server.board._purge()
    assert await server.bodies() == ["new", "kept"]


@pytest.mark.long
async def test_the_counters_agree_with_the_messages_after_any_operations(server: Server) -> None:
    await server.queue(partitions="2")
    chance, ids = random.Random(5), list[str]()
    for _ in range(60):
        partition = chance.randrange(1, 3)
        match chance.randrange(9):
            case 0 | 1:
                more = {"delay": 30} if chance.random() < 0.5 else {}
                posted = await server.post("ä" * chance.randrange(1, 9), ttl=chance.choice((5, 90)), **more)
                ids += [one["key"] for one in posted["messages"]]
            case 2 if ids:
                await server.ask("DELETE", f"/q/{partition}:{chance.choice(ids)}")
            case 3 if ids:
                await server.ask("PUT", f"/q/{partition}:{chance.choice(ids)}", data="put" * chance.randrange(1, 5))
            case 4:
                server.now_s += chance.choice((1, 10))
                await server.board.deliver()
            case 5:
                await server.board._purge()
            case 6:
                once = {"Idempotency-Key": chance.choice("abc")}
                await server.ask("POST", "/q", 201, data="once", headers=once)
                server.now_s += chance.choice((1, 100_000))
            case 7:
                path, when = f"/q/schedules/{chance.choice('ab')}", {"cron": "0 0 1 1 *"}
                await server.ask("PUT", path, json={**when, "body": "ä" * chance.randrange(1, 9)})
                await server.ask("DELETE", f"/q/schedules/{chance.choice('ab')}")
            case 8:
                await server.fail(chance)
        await server.counted()


async def test_the_limit_of_one_application_does_not_affect_others(database_url: str) -> None:
    async with served(database_url, ApplicationLimits(messages_max=50, bytes_max=1_000)) as server:
        await server.queue()
        await server.ask("POST", "", 201, data={"queue_name": "q"}, app=OTHER_APP, headers=OTHERS)
        await server.post("x" * 600)
        refused = await server.post("x" * 600, status=429)
        assert "1000 bytes" in refused["error_msg"]["queue_name"] and refused["again"]
        await server.post("x" * 500, status=429, delay=60)
        await server.post(*["y"] * 50, status=429)
        await server.ask("POST", "/q", 201, data="x" * 800, app=OTHER_APP, headers=OTHERS)
        async with served(database_url, ApplicationLimits(bytes_max=1_000)) as again:
            await again.post("x" * 600, status=429)
        await server.ask("DELETE", "/q")
        await server.queue()
        server.now_s += 1
        await server.post("x" * 600)
        await server.ask("DELETE", "/q")
        await server.ask("DELETE", "/q", app=OTHER_APP, headers=OTHERS)


async def test_an_application_posts_so_fast(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}", ApplicationLimits(rate_max=10)) as server:
        await server.queue()
        await server.post(*"abcdefgh")
        refused = await server.post(*"ijkl", status=429)
        assert refused["again"] == "1"
        server.now_s += 0.2
        await server.post(*"ijkl")
        await server.post("m", status=429)
        server.now_s += 1
        await server.post(*"mnopqrstuvwxyzmnopqrstuvwxyz"), "a batch above the rate is posted, and paid for afterwards"
        server.now_s += 1
        await server.post("m", status=429)
        async with Queues(server.url, KEY) as queues:
            with pytest.raises(QueueFull) as full:
                await queues.post("q", "m")
            assert full.value.again_s >= 1
            server.now_s += 5
            await queues.post("q", "m")


async def test_messages_stored_by_an_older_server_are_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'messages.sqlite'}"
    async with served(url) as server:
        await server.queue()
        await server.post("a", "größe")
        await server.ask("POST", "/q", 201, data="once", headers={"Idempotency-Key": "key"})
        await server.ask("PUT", "/q/schedules/new-year", json={"cron": "0 0 1 1 *", "body": "ü"})
        chance = random.Random(1)
        chance.random = lambda: 0.0
        await server.fail(chance)
        await server.counted()
    database = SqliteDatabase(tmp_path / "messages.sqlite")
    database.execute("drop table kept; drop table extra")
    database.close()
    async with served(url) as server:
        await server.counted()
