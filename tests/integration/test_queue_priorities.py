"""Test priorities within a queue: posted in every way, processed by every kind of worker, replayed with their
priority."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from headgate.cli.queue.queue import command
from headgate.queue import PostRefused, Queues, SyncQueues, Worker, job
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queue.workers.calls import JobCaller
from headgate.queue.workers.processor import JobPace
from headgate.queue.workers.storeless import LeaseSettings, LeaseWorker
from headgate.queueing import Message
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, harness
from tests.integration.queue_site import Site, site
from tests.waiting import until


class Server(Site):
    """Its clock stands still until it is advanced; it has a queue `q` of three priorities."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(board, http, url)
        self.now_s = 1_900_000_000.0
        board.now_ns = lambda: int(self.now_s * 1e9)

    async def post(self, body: str, status: int = 201, **fields: Any) -> Any:
        answer = await self.ask("POST", "/q", status, json={"messages": [{"body": body, **fields}]})
        return answer["messages"][0]["partition"] if status == 201 else answer["error_msg"]

    async def bodies(self, partition: int) -> list[str]:
        return [one["body"] for one in (await self.ask("GET", f"/q?partitions={partition}"))["messages"]]

    async def work(self, count: int, **options: Any) -> list[str]:
        """Return the messages that one worker over HTTP receives, in order."""
        lease = (await self.ask("POST", "/q/lease", json=options))["lease"]["lease"]
        found = list[str]()
        for _ in range(count):
            (one,) = (await self.ask("GET", f"/q/lease/{lease}"))["messages"]
            found.append(one["body"])
            await self.ask("POST", f"/q/lease/{lease}", json={"done": [one["message_id"]]})
        await self.ask("DELETE", f"/q/lease/{lease}")
        return found


@asynccontextmanager
async def served(database_url: str, partitions: int = 3) -> AsyncIterator[Server]:
    async with site(Server, database_url) as found:
        await found.ask("POST", "", 201, data={"queue_name": "q", "partitions": str(partitions), "priorities": "3"})
        yield found
        for queue in (await found.ask("GET", ""))["queues"]:
            await found.ask("DELETE", f"/{queue['queue_name']}")
        await found.board.change(APP, lambda database, _: database.execute("delete from retired"))


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with served(database_url) as found:
        yield found


async def test_a_priority_decides_on_the_partition_and_the_middle_one_is_usual(server: Server) -> None:
    assert [await server.post("x", priority=priority) for priority in ("high", "normal", "low", 1, 2, 3, "3")] == [
        1, 2, 3, 1, 2, 3, 3,
    ]  # fmt: skip
    assert await server.post("x") == 2
    assert await server.post("x", partition=3) == 3, "as clients do that know nothing of priorities"
    async with server.http.post(f"{server.url}/q", data="x", headers={"X-Priority": "HIGH"}) as answer:
        assert (await answer.json())["messages"][0]["partition"] == 1
    listed = (await server.ask("GET", "?details=true"))["queues"][0]
    assert (listed["partitions"], listed["priorities"]) == (3, 3)
    partition_status = (await server.ask("GET", "/q/status"))["partitions"]
    assert [(one["priority"], one["messages"]) for one in partition_status] == [(1, 3), (2, 3), (3, 4)]
    assert (await server.ask("GET", "/q/standing"))["partitions"] == partition_status, "its former name"
    sizes = await server.ask("GET", "?include_size=true")
    assert sizes["queues"][0]["messages"] == 10 and sizes == await server.ask("GET", "?kept=true")


async def test_invalid_priorities_are_refused_and_valid_ones_are_named(server: Server) -> None:
    assert "1 (high) to 3 (low)" in (await server.post("x", 400, priority=4))["0.priority"]
    for wrong in ("urgent", 0, -1, 1.5, True, "1 ", [], "9" * 50):
        assert "0.priority" in await server.post("x", 400, priority=wrong), wrong
    assert "not both" in (await server.post("x", 400, priority="high", partition=1))["0.priority"]
    assert await server.bodies(1) == []
    form = {"queue_name": "p", "priorities": "3", "partitions": "4"}
    refused = await server.ask("POST", "", 400, data=form)
    assert "a multiple of 3" in refused["error_msg"]["partitions"]
    for count in ("0", "11", "x"):
        assert "priorities" in (await server.ask("POST", "", 400, data={**form, "priorities": count}))["error_msg"]
    await server.ask("POST", "", 400, data={"queue_name": DEAD_LETTERS, "priorities": "2"})
    assert (
        "cannot change its priorities"
        in (await server.ask("PUT", "/q", 400, data={"priorities": "1"}))["error_msg"]["priorities"]
    )
    await server.ask("PUT", "/q", 400, data={"partitions": "5"})
    assert (await server.ask("PUT", "/q", data={"partitions": "6"}))["priorities"] == 3
    made = await server.ask("POST", "", 201, data={"queue_name": "p", "priorities": "2"})
    assert (made["partitions"], made["priorities"]) == (2, 2)


async def test_a_queue_without_priorities_works_as_before_and_refuses_them(server: Server) -> None:
    made = await server.ask("POST", "", 201, data={"queue_name": "plain", "partitions": "2"})
    assert "priorities" not in made
    listed = (await server.ask("GET", "?details=true&offset=plain"))["queues"]
    assert [set(one) for one in listed if one["queue_name"] == "plain"] == [
        {"queue_name", "partitions", "type", "consistency", "principles", "created", "application"}
    ]
    assert "priority" not in (await server.ask("GET", "/plain/status"))["partitions"][0]
    batch = {"messages": [{"body": "x", "priority": "high"}]}
    assert "has no priorities" in (await server.ask("POST", "/plain", 400, json=batch))["error_msg"]["0.priority"]
    await server.ask("POST", "/plain", 201, json={"messages": [{"body": "x", "priority": "normal", "key": "k"}]})
    lease = (await server.ask("POST", "/plain/lease", json={}))["lease"]
    assert set(lease) == {"lease", "partition", "epoch", "expires_in", "processed"}


async def test_a_key_decides_on_the_strand_and_the_priority_on_the_partition_in_it(database_url: str) -> None:
    async with served(database_url, partitions=12) as server:
        for n in range(20):
            key = f"customer {n}"
            strand = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 4
            found = [await server.post("x", key=key, **more) for more in ({}, {"priority": "high"}, {"priority": 3})]
            assert found == [strand * 3 + 2, strand * 3 + 1, strand * 3 + 3]


async def test_workers_over_http_get_the_highest_priority_first_one_at_a_time_or_a_full_page(server: Server) -> None:
    for n in range(2):
        for priority in ("low", "normal", "high"):
            await server.post(f"{priority} {n}", priority=priority)
    lease = (await server.ask("POST", "/q/lease", json={}))["lease"]
    assert (lease["partition"], lease["priorities"]) == (1, 3)
    for partition in (None, 1, 2, 3):
        assert (await server.ask("POST", "/q/lease", json={"partition": partition}))["lease"] is None, (
            "all of it is taken"
        )
    path = f"/q/lease/{lease['lease']}"

    async def fetched() -> Any:
        (one,) = (await server.ask("GET", f"{path}?limit=100"))["messages"]
        return one

    first = await fetched()
    assert first["body"] == "high 0" == (await fetched())["body"], "the same until it has an outcome"
    await server.ask("POST", path, json={"failed": [{"message_id": first["message_id"], "retry_after": 30}]})
    for body in ("high 1", "normal 0", "normal 1"):
        one = await fetched()
        assert one["body"] == body
        await server.ask("POST", path, json={"done": [one["message_id"]]})
    low = await fetched()
    assert low["body"] == "low 0"
    await server.post("in between", priority="high")
    between = await fetched()
    assert between["body"] == "in between"
    await server.ask("POST", path, json={"done": [between["message_id"]]})
    await server.ask("POST", path, json={"done": [low["message_id"]]})
    server.now_s += 29
    await server.ask("POST", path, json={"ttl": 60})
    server.now_s += 2
    again = await fetched()
    assert (again["body"], again["attempt"]) == ("high 0", 2)
    await server.ask("POST", path, 400, json={"done": [low["message_id"]]})
    await server.ask("POST", path, 400, json={"done": ["a" * 12 + "1" + "a" * 19]})
    await server.ask("POST", path, json={"done": [again["message_id"]]})
    await server.ask("DELETE", path)
    assert await server.work(1, partition=3) == ["low 1"]


async def test_a_lease_that_runs_out_is_over_for_all_of_its_partitions(server: Server) -> None:
    for priority in ("high", "low"):
        await server.post(priority, priority=priority)
    stale = (await server.ask("POST", "/q/lease", json={"ttl": 5}))["lease"]["lease"]
    (high,) = (await server.ask("GET", f"/q/lease/{stale}"))["messages"]
    await server.ask("POST", f"/q/lease/{stale}", json={"done": [high["message_id"]], "ttl": 5})
    (low,) = (await server.ask("GET", f"/q/lease/{stale}"))["messages"]
    server.now_s += 6
    fresh = (await server.ask("POST", "/q/lease", json={}))["lease"]
    assert fresh["epoch"] == 2
    await server.ask("POST", f"/q/lease/{stale}", 409, json={"done": [low["message_id"]]})
    (again,) = (await server.ask("GET", f"/q/lease/{fresh['lease']}"))["messages"]
    assert (again["body"], again["attempt"]) == ("low", 2), "it may have been begun"


async def test_messages_with_one_id_are_distinguished_by_their_delivery(server: Server) -> None:
    """A posted message gets an id; a message that is put has the id of its producer, here in two partitions."""
    batch = [{"body": priority, "priority": priority} for priority in ("low", "high", "normal")]
    posted = (await server.ask("POST", "/q", 201, json={"messages": batch}))["messages"]
    low, high, normal = (one["key"] for one in posted)
    assert len({low, high, normal}) == 3 and len({one["timestamp"] for one in posted}) == 1
    await server.ask("PUT", f"/q/1:{low}", data="put")
    assert await server.work(4) == ["high", "put", "normal", "low"]
    assert (await server.ask("POST", "/q/lease", json={}))["lease"] is None


async def test_one_message_in_five_is_an_old_one_of_low_priority(server: Server) -> None:
    for n in range(3):
        await server.post(f"low {n}", priority="low")
    server.now_s += 59
    for n in range(12):
        await server.post(f"high {n}", priority="high")
    assert await server.work(2) == ["high 0", "high 1"]
    server.now_s += 2
    seen = [body.split()[0] for body in await server.work(13)]
    assert seen == ["high", "high", "low", *["high"] * 4, "low", *["high"] * 4, "low"], "also beyond a lease"


async def test_priorities_of_delayed_messages_schedules_and_bounds(server: Server) -> None:
    await server.ask("PUT", "/q", data={"messages_max": "2"})
    await server.post("later", priority="high", delay=60)
    await server.post("now", priority="high")
    await server.post("one too many", 429, priority="high")
    await server.post("there is room", priority="low")
    server.now_s += 61
    await server.board.deliver()
    assert await server.bodies(1) == ["now", "later"]
    wanted = {"cron": "* * * * *", "body": "tick", "priority": "low"}
    assert "priority" in (await server.ask("PUT", "/q/schedules/s", 400, json={**wanted, "priority": 7}))["error_msg"]
    await server.ask("PUT", "/q/schedules/s", json=wanted)
    assert (await server.ask("GET", "/q/schedules"))["schedules"][0]["priority"] == "low"
    server.now_s += 60
    await server.board.deliver()
    assert await server.bodies(3) == ["there is room", "tick"]
    await server.ask("DELETE", "/q/schedules/s")
    assert await server.board.look("any", lambda database, _: database.execute("select * from schedule_priority")) == []


async def test_a_replayed_dead_letter_keeps_its_priority(server: Server, tmp_path: Path) -> None:
    await server.post("bad", priority="low", key="k")
    lease = (await server.ask("POST", "/q/lease", json={}))["lease"]["lease"]
    (one,) = (await server.ask("GET", f"/q/lease/{lease}"))["messages"]
    failed = [{"message_id": one["message_id"], "reject": True, "error": "never"}]
    await server.ask("POST", f"/q/lease/{lease}", json={"failed": failed})
    assert (await commanded(server, tmp_path, "replay", "--all")).output == "1 posted again\n"
    assert await server.bodies(3) == ["bad", "bad"]


async def commanded(server: Server, root: Path, name: str, *arguments: str) -> Result:
    file = root / "worker.conf"
    file.write_text(f"[queuey]\nconnection = {server.url}\napp_key = {KEY}\n[store]\nurl = server:\n")
    return await asyncio.to_thread(CliRunner().invoke, command, [name, "-c", str(file), *arguments])


async def test_posted_from_python_and_by_command_to_queues_that_are_made_for_it(server: Server, tmp_path: Path) -> None:
    async with Queues(server.url, KEY) as queues:
        await queues.post("fresh", "a", priority="high", key="k")
        await queues.post("finer", "a", priority=5)
        await queues.create("q5", 10, priorities=5)
        await queues.create("q2", priorities=2)
        with pytest.raises(PostRefused, match="high, normal, low"):
            await queues.post("nothing", "a", priority="urgent")
        await queues.schedule("often", "s", "* * * * *", "tick", priority="low")

    def plain() -> None:
        with SyncQueues(server.url, KEY) as queues:
            queues.post("fresh", "b", priority=3)

    await asyncio.to_thread(plain)
    assert (await commanded(server, tmp_path, "post", "fresh", "c", "--priority", "low")).exit_code == 0
    assert (
        await commanded(server, tmp_path, "post", "by-hand", "c", "--create", "4", "--priorities", "2")
    ).exit_code == 0
    wrong = await commanded(server, tmp_path, "post", "fresh", "c", "--priority", "up")
    assert wrong.exit_code != 0 and "high, normal, low" in str(wrong.exception)
    command = ("schedule", "fresh", "s", "* * * * *", "tick", "--priority", "high")
    assert (await commanded(server, tmp_path, *command)).exit_code == 0
    listed = (await commanded(server, tmp_path, "schedules", "fresh", "--json")).output
    assert json.loads(listed)[0]["priority"] == "high"
    every = (await server.ask("GET", "?details=true"))["queues"]
    shapes = {one["queue_name"]: (one["partitions"], one.get("priorities", 1)) for one in every}
    assert shapes == {
        "q": (3, 3), "fresh": (3, 3), "finer": (5, 5), "q5": (10, 5), "q2": (2, 2), "often": (3, 3), "by-hand": (4, 2),
    }  # fmt: skip
    found = await server.ask("GET", "/fresh?partitions=1,2,3")
    assert [(one["partition"], one["body"]) for one in found["messages"]] == [(1, "a"), (3, "b"), (3, "c")]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Server]:
    """Provide a server whose clock runs."""
    async with served(f"sqlite:///{tmp_path / 'messages.sqlite'}") as found:
        found.board.now_ns = __import__("time").time_ns
        yield found


class Line:
    """Run a job that waits for permission to continue after its first message."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.free = asyncio.Event()

    async def __call__(self, message: Message, context: Any) -> None:
        self.seen.append(message.body)
        await self.free.wait()


WANTED = ["low 0", "high 0", "high 1", "normal 0", "normal 1", "low 1"]
"""Return the order of processing if the first message comes alone, and the others while its job runs."""


async def posted_meanwhile(server: Server, line: Line) -> None:
    """Messages arrive while a job runs; the highest is posted last."""
    await server.post("low 0", priority="low")
    await until("the first is under way", lambda: line.seen == ["low 0"])
    await server.post("low 1", priority="low")
    for priority in ("normal", "high"):
        for n in range(2):
            await server.post(f"{priority} {n}", priority=priority)


async def test_workers_with_a_store_take_the_highest_first(running: Server) -> None:
    async with harness(running.url.partition("/v1/")[0], MemoryBackend()) as hands:
        line = Line()
        worker = hands.start(line)
        await posted_meanwhile(running, line)
        await hands.until("each partition of the queue is one worker's", lambda: len(owned(worker)) == 3)
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(50)))
        line.free.set()
        await hands.until("everything is processed", lambda: len(line.seen) == 6)
        assert line.seen == WANTED
        other = hands.start(line)
        await hands.until("the other is there", lambda: other.sharing is not None and other.sharing.name != "")
        assert not owned(other), "a strand is one worker's"


def owned(worker: Any) -> list[Any]:
    return worker.sharing.owned() if worker.sharing is not None else []


async def test_workers_that_lease_and_those_of_the_library_take_the_highest_first(running: Server) -> None:
    for kind in ("headgate worker", "library"):
        line, stop = Line(), asyncio.Event()
        async with MessageClient.open([running.url], KEY) as source:
            if kind == "library":
                work = Worker(running.url, KEY, [job("q", concurrency=3)(line)]).run(stop)
            else:
                routes, caller = Routing((RoutingRule("*", line, Policy()),)), JobCaller(5, 1)
                leasing = LeaseSettings(pace=JobPace(poll_s=0.2, discover_s=0.5))
                work = LeaseWorker(source, routes, caller, None, "here", leasing).run(stop)
            working = asyncio.ensure_future(work)
            await posted_meanwhile(running, line)
            line.free.set()
            await until("all are processed", lambda seen=line.seen: len(seen) == 6)  # type: ignore[misc]  # of this round
            assert line.seen == WANTED, kind
            stop.set()
            await asyncio.wait_for(working, DEADLINE_S)
