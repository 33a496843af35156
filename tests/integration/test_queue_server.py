"""Test the message API over real HTTP: what foreign clients rely on, their mistakes, and our extensions."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headgate.queue.messages import client
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.records import BATCH_MAX, BODY_MAX_BYTES
from headgate.queueing.partitions import TTL_MAX_S
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import KEY, OTHER_KEY, serving
from headgate.web.server import _configured
from tests.waiting import until

AUTH = {"Authorization": f"Application {KEY}"}


class Api:
    def __init__(self, http: aiohttp.ClientSession, board: MessageBoard) -> None:
        self.http, self.board = http, board

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
        more.setdefault("headers", {})
        more["headers"] = {**AUTH, **more["headers"]}
        async with self.http.request(method, path, **more) as answer:
            return answer.status, await answer.json()

    async def queue(self, name: str = "q", partitions: int = 1) -> None:
        status, _ = await self.ask("POST", "/v1/sync", data={"queue_name": name, "partitions": str(partitions)})
        assert status == 201

    async def post(self, *bodies: str, queue: str = "q", **fields: Any) -> list[dict[str, Any]]:
        batch = {"messages": [{"body": body, **fields} for body in bodies]}
        status, answer = await self.ask("POST", f"/v1/sync/{queue}", json=batch)
        assert status == 201, answer
        return answer["messages"]

    async def bodies(self, query: str = "", queue: str = "q") -> list[str]:
        status, answer = await self.ask("GET", f"/v1/sync/{queue}{query}")
        assert status == 200, answer
        return [one["body"] for one in answer["messages"]]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with serving(board) as url, aiohttp.ClientSession(url) as http:
        yield Api(http, board)
    await board.close()


# --- queues


async def test_a_queue_is_made_listed_changed_and_removed(api: Api) -> None:
    status, made = await api.ask("POST", "/v1/sync", data={"queue_name": "mail", "partitions": "3", "type": "public"})
    assert status == 201
    assert {k: made[k] for k in ("status", "queue_name", "partitions", "type", "consistency", "principles")} == {
        "status": "ok", "queue_name": "mail", "partitions": 3, "type": "public", "consistency": "strong",
        "principles": None,
    }  # fmt: skip
    status, random = await api.ask("POST", "/v1/sync")
    assert re.fullmatch(r"[0-9a-f]{32}", random["queue_name"])
    status, listed = await api.ask("GET", "/v1/sync?details=true&include_count=true&offset=m")
    (one,) = listed["queues"]
    assert (one["queue_name"], one["application"], one["count"], one["partitions"]) == ("mail", "sync", 0, 3)
    status, _ = await api.ask("PUT", "/v1/sync/mail", data={"consistency": "weak"})
    status, changed = await api.ask("PUT", "/v1/sync/mail", data={"partitions": "5"})
    assert (status, changed["partitions"], changed["type"]) == (200, 5, "public"), "what is not said stays"
    assert (await api.ask("DELETE", "/v1/sync/mail")) == (200, {"status": "ok"})
    assert (await api.ask("GET", "/v1/sync/mail"))[0] == 404


async def test_a_list_of_queues_comes_in_pages(api: Api) -> None:
    for n in range(5):
        await api.queue(f"q{n}")
    _, page = await api.ask("GET", "/v1/sync?limit=2&offset=q1")
    assert [q["queue_name"] for q in page["queues"]] == ["q1", "q2"]


# --- messages


async def test_one_message_is_returned_unchanged(api: Api) -> None:
    await api.queue(partitions=2)
    headers = {"X-TTL": "60", "X-Partition": "2", "Content-Type": "text/plain"}
    status, answer = await api.ask("POST", "/v1/sync/q", data="größe".encode(), headers=headers)
    (posted,) = answer["messages"]
    assert (status, posted["partition"]) == (201, 2)
    assert re.fullmatch(r"[0-9a-f]{32}", posted["key"])
    assert re.fullmatch(r"[0-9]+\.[0-9]{7}", posted["timestamp"])
    _, found = await api.ask("GET", "/v1/sync/q?partitions=2")
    assert found["messages"] == [
        {"message_id": posted["key"], "timestamp": posted["timestamp"], "body": "größe", "partition": 2}
    ]


async def test_since_is_inclusive_as_id_and_as_time_and_after_is_not(api: Api) -> None:
    await api.queue()
    posted = await api.post("a", "b", "c")
    at = posted[1]
    assert await api.bodies(f"?since={at['key']}") == ["b", "c"]
    assert await api.bodies(f"?since={at['timestamp']}") == ["b", "c"]
    assert await api.bodies(f"?after={at['key']}") == ["c"]
    assert await api.bodies(f"?since={at['key']}&order=descending") == ["b", "a"]
    assert await api.bodies(f"?since={posted[2]['key']}") == ["c"], "the last one, again"
    assert await api.bodies("?limit=1") == ["a"]


async def test_partitions_come_one_after_another_and_the_limit_is_of_each(api: Api) -> None:
    await api.queue(partitions=12)
    await api.post("a1", "a2", partition=2)
    await api.post("b1", "b2", partition=12)
    assert await api.bodies("?partitions=12,2&limit=1") == ["b1", "a1"]


async def test_messages_by_id_in_any_partition(api: Api) -> None:
    await api.queue(partitions=12)
    (one,) = await api.post("x", partition=12)
    id = f"12%3A{one['key']}"
    assert await api.bodies(queue=f"q/{id}") == ["x"]
    assert await api.bodies(queue=f"q/{one['key']}") == [], "without a partition it is the first"
    status, answer = await api.ask("PUT", f"/v1/sync/q/{id}", data="y", headers={"X-TTL": "60"})
    assert (status, answer) == (200, {"status": "ok"})
    assert await api.bodies("?partitions=12") == ["y"]
    for _ in range(2):
        assert await api.ask("DELETE", f"/v1/sync/q/{id}") == (200, {"status": "ok"}), "unknown ones are no error"
    assert await api.bodies("?partitions=12") == []


async def test_the_same_key_posts_once_and_says_so(api: Api) -> None:
    await api.queue()
    headers = {**AUTH, "Idempotency-Key": "k"}
    answers = []
    for _ in range(2):
        async with api.http.post("/v1/sync/q", data=b"x", headers=headers) as answer:
            answers.append(((await answer.json())["messages"], answer.headers.get("Idempotent-Replayed")))
    assert answers[0][0] == answers[1][0]
    assert [replayed for _, replayed in answers] == [None, "true"]
    assert (await api.ask("POST", "/v1/sync/q", data=b"other", headers=headers))[0] == 422
    assert await api.bodies() == ["x"]


async def test_a_long_poll_ends_with_the_message(api: Api) -> None:
    await api.queue()
    waiting = asyncio.ensure_future(api.bodies("?wait=20"))
    metric = "headgate_queue_requests_waiting 1.0"
    async with asyncio.timeout(DEADLINE_S):
        while metric not in await (await api.http.get("/metrics", headers=AUTH)).text():
            pass
        await api.post("now")
        assert await waiting == ["now"]


async def test_a_long_poll_without_a_new_message_returns_no_messages(api: Api) -> None:
    await api.queue()
    (one,) = await api.post("x")
    assert await api.bodies(f"?after={one['key']}&wait=0.05") == []


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, str]]:
    kind = id = data = ""
    async for raw in answer.content:
        line = raw.decode().rstrip("\r\n")
        name, _, value = line.partition(": ")
        if not line:
            yield kind, id, data
            kind = id = data = ""
        elif name == "event":
            kind = value
        elif name == "id":
            id = value
        elif name == "data":
            data = value


async def test_a_stream_delivers_past_and_new_messages_and_resumes_where_it_broke(api: Api) -> None:
    await api.queue()
    await api.post("a")
    async with asyncio.timeout(DEADLINE_S):
        async with api.http.get("/v1/sync/q/stream", headers=AUTH) as answer:
            assert answer.content_type == "text/event-stream"
            reader = events(answer)
            kind, _, data = await anext(reader)
            assert (kind, json.loads(data)["body"]) == ("message", "a")
            await api.post("b")
            _, last, data = await anext(reader)
            assert json.loads(data)["body"] == "b"
        await api.post("c")
        async with api.http.get("/v1/sync/q/stream", headers={**AUTH, "Last-Event-ID": last}) as answer:
            reader = events(answer)
            assert json.loads((await anext(reader))[2])["body"] == "c"
            await api.ask("DELETE", "/v1/sync/q")
            assert (await anext(reader))[0] == "gone"


async def test_one_stream_delivers_messages_of_all_queues(api: Api) -> None:
    await api.queue("old", partitions=2)
    async with asyncio.timeout(DEADLINE_S):
        async with api.http.get("/v1/sync", headers={**AUTH, "Accept": "text/event-stream"}) as answer:
            reader = events(answer)
            assert (await anext(reader))[0] == "ready"
            await api.post("x", queue="old", partition=2)
            assert await anext(reader) == ("posted", "", "old:2")
            await api.queue("new")
            assert (await anext(reader))[0] == "queues"


async def test_the_lag_of_a_partition(api: Api) -> None:
    await api.queue()
    posted = await api.post("a", "b", "c")
    status, lag = await api.ask("GET", f"/v1/sync/q/lag?after={posted[0]['key']}")
    assert (status, lag["waiting"], lag["newest"], lag["oldest_waiting"]) == (
        200, 2, posted[2]["key"], posted[1]["timestamp"],
    )  # fmt: skip


async def test_a_public_queue_is_read_by_everybody_and_a_private_one_by_its_principles(api: Api) -> None:
    await api.ask("POST", "/v1/sync", data={"queue_name": "open", "type": "public"})
    await api.ask("POST", "/v1/sync", data={"queue_name": "lent", "principles": "app:mail"})
    other = {"Authorization": f"Application {OTHER_KEY}"}
    async with api.http.get("/v1/sync/open") as answer:
        assert answer.status == 200
    assert (await api.ask("GET", "/v1/sync/lent", headers=other))[0] == 200
    assert (await api.ask("GET", "/v1/sync/lent"))[0] == 403
    both = {"Authorization": f"Application {KEY}; Application {OTHER_KEY}"}
    assert (await api.ask("GET", "/v1/sync/lent", headers=both))[0] == 200


# --- what may be wrong with a request

LONG = "x" * 51
BAD_REQUESTS = [
    ("POST", "/v1/sync", {"data": {"partitions": "0"}}, "partitions"),
    ("POST", "/v1/sync", {"data": {"partitions": "201"}}, "partitions"),
    ("POST", "/v1/sync", {"data": {"partitions": "two"}}, "partitions"),
    ("POST", "/v1/sync", {"data": {"type": "secret"}}, "type"),
    ("POST", "/v1/sync", {"data": {"consistency": "eventually"}}, "consistency"),
    ("POST", "/v1/sync", {"data": {"principles": "app:mail,root"}}, "principles"),
    ("POST", "/v1/sync", {"data": {"principles": "bid:me@localhost"}}, "principles"),
    ("POST", "/v1/sync", {"data": {"queue_name": "a/b"}}, "queue_name"),
    ("POST", "/v1/sync", {"data": {"queue_name": LONG}}, "queue_name"),
    ("POST", "/v1/sync", {"data": b"\xff=\xfe"}, "body"),
    ("PUT", "/v1/sync/q", {"data": {"partitions": "1"}}, "partitions"),
    ("GET", "/v1/sync?limit=0", {}, "limit"),
    ("POST", "/v1/sync/q", {"data": b""}, "body"),
    ("POST", "/v1/sync/q", {"data": b"\xff\xfe"}, "body"),
    ("POST", "/v1/sync/q", {"data": b"a\x00b"}, "body"),
    ("POST", "/v1/sync/q", {"data": b"x" * (BODY_MAX_BYTES + 1)}, "body"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"X-TTL": "0"}}, "ttl"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"X-TTL": str(TTL_MAX_S + 1)}}, "ttl"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"X-TTL": "soon"}}, "ttl"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"X-Partition": "0"}}, "partition"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"X-Partition": "3"}}, "partition"),
    ("POST", "/v1/sync/q", {"data": b"x", "headers": {"Idempotency-Key": "k" * 201}}, "Idempotency-Key"),
    ("POST", "/v1/sync/q", {"data": b"{", "headers": {"Content-Type": "application/json"}}, "body"),
    ("POST", "/v1/sync/q", {"data": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}, "body"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "\ud800"}]}}, "body"),
    ("POST", "/v1/sync/q", {"json": []}, "messages"),
    ("POST", "/v1/sync/q", {"json": {"messages": []}}, "messages"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "x"}] * (BATCH_MAX + 1)}}, "messages"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "x"}] * 100_000}}, "messages"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "x"}, {"body": ""}]}}, "1.body"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": 7}]}}, "0.body"),
    ("POST", "/v1/sync/q", {"json": {"messages": ["x", None]}}, "1.body"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "x", "ttl": -1}]}}, "0.ttl"),
    ("POST", "/v1/sync/q", {"json": {"messages": [{"body": "x"}, {"body": "y", "partition": 4}]}}, "1.partition"),
    ("GET", "/v1/sync/q?limit=1001", {}, "limit"),
    ("GET", "/v1/sync/q?limit=-1", {}, "limit"),
    ("GET", "/v1/sync/q?order=up", {}, "order"),
    ("GET", "/v1/sync/q?since=yesterday", {}, "since"),
    ("GET", "/v1/sync/q?after=1e9", {}, "after"),
    ("GET", "/v1/sync/q?partitions=3", {}, "partitions"),
    ("GET", "/v1/sync/q?partitions=1,x", {}, "partitions"),
    ("GET", "/v1/sync/q?wait=61", {}, "wait"),
    ("GET", "/v1/sync/q/lag?partition=3", {}, "partition"),
    ("GET", "/v1/sync/q/nothex", {}, "message_ids"),
    ("GET", f"/v1/sync/q/{'a' * 33}", {}, "message_ids"),
    ("GET", f"/v1/sync/q/0:{'a' * 32}", {}, "message_ids"),
    ("DELETE", f"/v1/sync/q/201:{'a' * 32}", {}, "message_ids"),
    ("PUT", f"/v1/sync/q/3:{'0' * 12}1{'0' * 19}", {"data": b"x"}, "partition"),
    ("PUT", f"/v1/sync/q/{'0' * 12}1{'0' * 19}", {"data": b""}, "body"),
    ("PUT", f"/v1/sync/q/{'f' * 32}", {"data": b"x"}, "message_id"),
]


async def test_an_error_names_the_invalid_field_and_nothing_is_stored(api: Api) -> None:
    await api.queue(partitions=2)
    for method, path, more, field in BAD_REQUESTS:
        status, answer = await api.ask(method, path, **more)
        assert (status, answer["status"], list(answer["error_msg"])) == (400, "error", [field]), (method, path, answer)
    assert await api.bodies("?partitions=1,2") == []


async def test_missing_applications_queues_and_messages_return_404(api: Api) -> None:
    for method, path in (
        ("GET", "/v1/nobody"),
        ("POST", "/v1/nobody"),
        ("GET", "/v1/sync/unknown"),
        ("GET", f"/v1/sync/{LONG}"),
        ("POST", "/v1/sync/unknown"),
        ("PUT", "/v1/sync/unknown"),
        ("DELETE", "/v1/sync/unknown"),
        ("GET", "/v1/sync/unknown/stream"),
        ("GET", "/v1/sync/unknown/lag"),
        ("GET", f"/v1/sync/unknown/{'a' * 32}"),
        ("PUT", f"/v1/sync/unknown/{'a' * 12}1{'a' * 19}"),
        ("DELETE", f"/v1/sync/unknown/{'a' * 32}"),
        ("GET", "/v2/sync"),
        ("GET", "/nothing/here/at/all"),
    ):
        status, answer = await api.ask(method, path, data=b"x" if method in ("POST", "PUT") else None)
        assert (status, answer["status"]) == (404, "error"), (method, path, answer)


async def test_an_unknown_key_is_401(api: Api) -> None:
    await api.queue()
    headers = ("Application wrong", "Basic abc", f"Application {KEY}; Application wrong", KEY)
    paths = (("GET", "/v1/sync"), ("GET", "/v1/sync/q"), ("POST", "/v1/sync/q"))
    for header, (method, path) in itertools.product(headers, paths):
        status, answer = await api.ask(method, path, headers={"Authorization": header})
        assert (status, list(answer["error_msg"])) == (401, ["authorization"])


@pytest.mark.parametrize("authorization", [None, f"Application {OTHER_KEY}"])
async def test_without_the_applications_own_key_nothing_is_done(api: Api, authorization: str | None) -> None:
    await api.queue()
    await api.post("kept")
    headers = {"Authorization": authorization} if authorization else {}
    for method, path in (
        ("GET", "/v1/sync"), ("POST", "/v1/sync"), ("GET", "/v1/sync/q"), ("POST", "/v1/sync/q"),
        ("PUT", "/v1/sync/q"), ("DELETE", "/v1/sync/q"), ("GET", "/v1/sync/q/stream"),
        ("DELETE", f"/v1/sync/q/{'a' * 32}"), ("PUT", f"/v1/sync/q/{'a' * 12}1{'a' * 19}"),
    ):  # fmt: skip
        async with api.http.request(method, path, headers=headers) as answer:
            assert answer.status == 403, (method, path)
    assert await api.bodies() == ["kept"]


async def test_a_request_too_large_to_read_is_refused(api: Api) -> None:
    await api.queue()
    async with api.http.post("/v1/sync/q", data=b"x" * 17_000_000, headers=AUTH) as answer:
        assert answer.status == 413
    assert await api.bodies() == []


async def test_a_broken_database_is_a_500_in_the_usual_shape(api: Api) -> None:
    await api.queue()
    await api.board._write(lambda database: database.execute("drop table message"))
    status, answer = await api.ask("POST", "/v1/sync/q", data=b"x")
    assert (status, list(answer["error_msg"])) == (500, ["storage"])


# --- what it says of itself


async def test_the_description_names_every_route_and_the_page_is_there(api: Api) -> None:
    async with api.http.get("/openapi.json") as answer:
        described = await answer.json()
    served = {"/v1/{app}", "/v1/{app}/{queue}", "/v1/{app}/{queue}/{ids}", "/v1/{app}/{queue}/stream"}
    assert described["openapi"].startswith("3.1") and served <= set(described["paths"])
    async with api.http.get("/docs") as answer:
        assert "Idempotency-Key" in await answer.text()
    async with api.http.head("/__heartbeat__") as answer:
        assert answer.status == 200


@pytest.mark.long
async def test_the_command_creates_its_own_key_and_ends_on_a_signal(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("headgate")), "queue", "serve", "--listen", "127.0.0.1:0"]
    environment = {k: v for k, v in os.environ.items() if k != "HEADGATE_CONFIG"}
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=-1, stderr=-1, env=environment)
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        text = ""
        while "served at" not in text:
            text += (await process.stdout.readline()).decode()
        url = text.rsplit("served at ", 1)[1].strip()
        headers = {"Authorization": f"Application {(tmp_path / 'state' / 'messages.key').read_text().strip()}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(url, data={"queue_name": "q"}) as answer:
                assert answer.status == 201
            async with http.post(f"{url}q/", data=b"x") as answer:
                assert answer.status == 201
                last = (await answer.json())["messages"][0]["key"]
            waits = asyncio.ensure_future(http.get(f"{url}q", params={"after": last, "wait": "60"}))
            async with http.get(f"{url}q/stream", params={"after": last}) as stream:
                await until("the request waits", lambda: waiting(http, url), every_s=0.01)
                process.send_signal(signal.SIGTERM)
                assert await stream.content.read() == b"", "it ends as streams do"
            async with await waits as answer:
                assert (await answer.json())["messages"] == []
        assert await process.wait() == 0
        assert await process.stderr.read() == b""


async def waiting(http: aiohttp.ClientSession, url: str) -> float:
    """Requests that wait for messages."""
    async with http.get(f"{url.partition('/v1/')[0]}/metrics") as answer:
        return float((await answer.text()).partition("\nheadgate_queue_requests_waiting ")[2].split("\n")[0])


async def test_a_client_uses_no_connection_that_the_server_is_about_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _configured(web.Application()).timeout_keep_alive > 2 * client.IDLE_MAX_S
    monkeypatch.setattr(client, "IDLE_MAX_S", 0.01)
    ports = set[int]()

    async def queues(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response({"status": "ok", "queues": []})

    app = web.Application()
    app.router.add_get("/v1/sync", queues)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with client.MessageClient.open([f"http://127.0.0.1:{runner.addresses[0][1]}/v1/sync"], KEY) as http:

            async def reconnected() -> bool:
                await http.partitions()
                return len(ports) > 1

            await until("it connects again", reconnected, every_s=0.05)
    finally:
        await runner.cleanup()
