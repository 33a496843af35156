"""Test floods of requests of one application: others are served in between, and the store is not filled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.queue.messages.board import READS_MAX, MessageBoard
from headgate.queue.messages.bounds import ApplicationLimits
from headgate.queue.messages.records import QueueRecord
from headgate.queue.server import answers
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, OTHER_APP, OTHER_KEY, serving

FLOOD = 200
"""Requests of 200 messages each, as many at once as one address may have open."""
CONNECTIONS = 30


@pytest.mark.long
async def test_a_flood_of_one_applications_posts_delays_no_other_and_does_not_fill_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay is counted in transactions, not in seconds: another application's post is in the next one that
    begins."""
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}", ApplicationLimits(bytes_max=5_000_000))
    for app in (APP, OTHER_APP):
        await board.create(app, QueueRecord(0, "q", 1, "user", "strong", "", 0))
    groups: list[int] = []
    real = board._together
    monkeypatch.setattr(board, "_together", lambda works: groups.append(len(works)) or real(works))
    batch = {"messages": [{"body": "x" * 500}] * 200}
    async with (
        serving(board) as url,
        aiohttp.ClientSession(
            url, headers={"Authorization": f"Application {KEY}"}, connector=aiohttp.TCPConnector(limit=CONNECTIONS)
        ) as flood,
        aiohttp.ClientSession(url, headers={"Authorization": f"Application {OTHER_KEY}"}) as other,
    ):

        async def pour() -> int:
            async with flood.post(f"/v1/{APP}/q", json=batch) as answer:
                assert (answer.status == 429) == ("Retry-After" in answer.headers)
                return answer.status

        pouring = [asyncio.ensure_future(pour()) for _ in range(FLOOD)]
        for n in range(10):
            before = len(groups)
            async with other.post(f"/v1/{OTHER_APP}/q", data=f"{n}") as answer:
                assert answer.status == 201
            assert len(groups) - before <= 3, "it waited for what others wanted"
        statuses = await asyncio.gather(*pouring)
    await board.close()
    assert set(statuses) == {201, 429}
    accepted = sum(status == 201 for status in statuses) * 200 * 500
    assert accepted <= 5_000_000


@pytest.mark.long
async def test_a_flood_of_the_highest_priority_starves_nobody(tmp_path: Path) -> None:
    """More arrives than is processed; this is counted in messages, with a clock that advances with each."""
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    now_s = 1_900_000_000
    board.now_ns = lambda: now_s * 10**9
    await board.create(APP, QueueRecord(0, "q", 3, "user", "strong", "", 0, priorities=3))
    headers = {"Authorization": f"Application {KEY}"}
    async with serving(board) as url, aiohttp.ClientSession(f"{url}/v1/{APP}/", headers=headers) as http:

        async def ask(method: str, path: str, **more: Any) -> Any:
            async with http.request(method, path, **more) as answer:
                assert answer.status < 300, await answer.text()
                return await answer.json()

        honest = [{"body": f"{priority} {n}", "priority": priority} for n in range(4) for priority in ("normal", "low")]
        await ask("POST", "q", json={"messages": honest})
        lease = (await ask("POST", "q/lease", json={"ttl": 3600}))["lease"]["lease"]
        seen = list[str]()
        for _ in range(120):
            now_s += 1
            await ask("POST", "q", json={"messages": [{"body": "flood", "priority": "high"}] * 3})
            (one,) = (await ask("GET", f"q/lease/{lease}"))["messages"]
            seen.append(one["body"])
            await ask("POST", f"q/lease/{lease}", json={"done": [one["message_id"]], "ttl": 3600})
        assert set(seen[:59]) == {"flood"}, "the highest goes first while nobody is late"
        assert sorted({*seen[60:101]} - {"flood"}) == sorted(one["body"] for one in honest), "each within its share"
        assert seen[60:101].count("flood") >= 32, "and no more than that"
    await board.close()


async def test_a_flood_of_one_applications_reads_delays_no_other(tmp_path: Path) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    done = list[str]()

    def reads(app: str) -> Coroutine[Any, Any, None]:
        return board.look(app, lambda *_: done.append(app))

    await asyncio.gather(*(reads("greedy") for _ in range(60)), reads("other"))
    await board.close()
    assert len(done) == 61 and done.index("other") <= READS_MAX, done


async def test_strangers_who_read_do_not_hold_up_the_application(tmp_path: Path) -> None:
    """A public queue needs no key, and whether a queue exists is looked up before a key is checked."""
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    await board.create(APP, QueueRecord(0, "q", 1, "public", "strong", "", 0))
    turns, real = list[str](), board._read

    async def read(work: Callable[..., Any], turn: str = "") -> Any:
        turns.extend([turn] if turn else [])  # it calls itself when it is the caller's turn
        return await real(work, turn)

    board._read = read  # type: ignore[method-assign]
    async with serving(board) as url, aiohttp.ClientSession(f"{url}/v1/{APP}/") as http:
        for path in ("q", "q/lag", "q/delayed", f"q/{'0' * 32}", "nowhere"):
            for headers, turn in (({}, f"{APP}\npublic"), ({"Authorization": f"Application {KEY}"}, APP)):
                turns.clear()
                async with http.get(path, headers=headers) as answer:
                    assert answer.status == (404 if path == "nowhere" else 200)
                assert set(turns) == {turn}, path
        async with http.delete("nowhere/" + "0" * 32) as answer:
            assert answer.status == 404 and turns[-1] == f"{APP}\npublic"
    await board.close()


async def test_bodies_that_do_not_arrive_completely_take_a_limited_amount_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have 16 MB, an address hundreds of connections, and a minute passes before one is given up."""
    monkeypatch.setattr(answers, "ARRIVING_MAX_BYTES", 100_000)
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    for app in (APP, OTHER_APP):
        await board.create(app, QueueRecord(0, "q", 1, "user", "strong", "", 0))

    async def pieces(arrived: asyncio.Event, stop: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"x" * 60_000
        arrived.set()
        await stop.wait()

    headers = {"Authorization": f"Application {KEY}"}
    async with serving(board) as url, aiohttp.ClientSession(url) as http:
        arrived, stop = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(http.post(f"/v1/{APP}/q", data=pieces(arrived, stop), headers=headers))
        await arrived.wait()
        async with asyncio.timeout(DEADLINE_S):
            while True:  # until the first bytes have reached the server
                async with http.post(f"/v1/{APP}/q", data="x" * 60_000, headers=headers) as answer:
                    if answer.status == 429:
                        break
        assert "Retry-After" in answer.headers
        others = {"Authorization": f"Application {OTHER_KEY}"}
        async with http.post(f"/v1/{OTHER_APP}/q", data="x" * 60_000, headers=others) as answer:
            assert answer.status == 201
        stop.set()
        assert (await first).status == 201
        async with http.post(f"/v1/{APP}/q", data="x" * 60_000, headers=headers) as answer:
            assert answer.status == 201
    await board.close()
