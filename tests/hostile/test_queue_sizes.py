"""Test requests of queues that are small themselves and would take gigabytes of memory or of the store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest

from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.bounds import UNLIMITED, ApplicationLimits
from headgate.queue.messages.database import ROW_BYTES
from headgate.queue.messages.records import BODY_MAX_BYTES, READ_MAX_CHARS, InvalidPost, QueueRecord
from headgate.queue.server import forms
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.testing.queues.harness import APP, KEY, serving

LARGE = "x" * BODY_MAX_BYTES
MINE = {"Authorization": f"Application {KEY}"}
FORM = {**MINE, "Content-Type": "application/x-www-form-urlencoded"}
LIMIT_BYTES = 20_000


class Asking:
    """Send requests about one application, anonymously unless headers say otherwise."""

    def __init__(self, http: aiohttp.ClientSession, board: MessageBoard) -> None:
        self._http, self.board = http, board

    async def __call__(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Return status and JSON."""
        async with self._http.request(method, path, **more) as answer:
            return answer.status, await answer.json()

    async def stored_bytes(self) -> int:
        """Return the bytes that the application has stored."""
        _, found = await self("GET", "?include_size=1", headers=MINE)
        return sum(queue["bytes"] for queue in found["queues"])


@asynccontextmanager
async def asking(directory: Path, limits: ApplicationLimits = UNLIMITED) -> AsyncIterator[Asking]:
    """Serve a public queue with six partitions."""
    board = await MessageBoard.open(f"sqlite:///{directory / 'messages.sqlite'}", limits)
    await board.create(APP, QueueRecord(0, "q", 6, "public", "strong", "", 0))
    async with serving(board) as url, aiohttp.ClientSession(f"{url}/v1/{APP}/") as http:
        yield Asking(http, board)
    await board.close()


async def test_a_stranger_does_not_make_the_server_read_gigabytes_by_id(tmp_path: Path) -> None:
    """An address has room for 240 ids, and a public queue needs no key."""
    async with asking(tmp_path) as ask:
        batch = {"messages": [{"body": LARGE, "partition": 1}] * 5}
        _, posted = await ask("POST", "q", json=batch, headers=MINE)
        ids = [one["key"] for one in posted["messages"]]
        status, found = await ask("GET", f"q/{','.join(ids[:1] * 240)}")
        assert status == 200 and [one["message_id"] for one in found["messages"]] == ids[:1]
        status, found = await ask("GET", f"q/{','.join(ids)}")
        assert status == 400 and "fewer" in found["error_msg"]["message_ids"]
        assert (await ask("GET", f"q/{','.join(ids[:3])}"))[0] == 200


async def test_a_page_of_many_partitions_ends_like_one_of_a_single_partition(tmp_path: Path) -> None:
    """Each partition has megabytes, and a queue may have two hundred."""
    async with asking(tmp_path) as ask:
        for partition in range(1, 7):
            batch = {"messages": [{"body": LARGE, "partition": partition}] * 2}
            assert (await ask("POST", "q", json=batch, headers=MINE))[0] == 201
        _, found = await ask("GET", "q?partitions=1,2,3,4,5,6")
        assert [one["partition"] for one in found["messages"]] == [1, 1, 2, 2]
        assert sum(len(one["body"]) for one in found["messages"]) <= 2 * READ_MAX_CHARS


async def test_writing_by_id_is_limited_like_new_messages(tmp_path: Path) -> None:
    """One body is written to each of the ids, so a request of a megabyte would write hundreds."""
    ids = [f"0123456789ab11d7{n:016x}" for n in range(240)]
    async with asking(tmp_path, ApplicationLimits(bytes_max=LIMIT_BYTES)) as ask:
        assert (await ask("PUT", f"q/{ids[0]}", data="x" * 1_000, headers=MINE))[0] == 200
        status, found = await ask("PUT", f"q/{','.join(ids)}", data="x" * 1_000, headers=MINE)
        assert status == 429 and "full" in found["error_msg"]["queue_name"]
        assert await ask.stored_bytes() <= LIMIT_BYTES
    (tmp_path / "large").mkdir()
    async with asking(tmp_path / "large") as ask:
        status, found = await ask("PUT", f"q/{','.join(ids)}", data=LARGE, headers=MINE)
        assert status == 400 and "at a time" in found["error_msg"]["message_ids"]
        assert await ask.stored_bytes() == 0


async def test_dead_letters_do_not_fill_the_store(tmp_path: Path) -> None:
    """They are accepted when the application is full, since giving messages up must be possible; but not for ever."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=LIMIT_BYTES)) as ask:
        await ask("POST", "", data={"queue_name": DEAD_LETTERS}, headers=MINE)
        body = "x" * (LIMIT_BYTES - ROW_BYTES)
        assert (await ask("POST", "q", data=body, headers={**MINE, "X-Partition": "1"}))[0] == 201
        assert (await ask("POST", "q", data="x", headers=MINE))[0] == 429
        statuses = [(await ask("POST", DEAD_LETTERS, data="x" * 3_800, headers=MINE))[0] for _ in range(8)]
        assert statuses == [201] * 5 + [429] * 3
        assert await ask.stored_bytes() <= 2 * LIMIT_BYTES


async def test_groups_that_give_up_the_same_message_do_not_fill_the_store(tmp_path: Path) -> None:
    """Each group has a dead letter of its own, and anybody with the key may invent groups."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=LIMIT_BYTES)) as ask:
        await ask("POST", "q", data="x" * 9_000, headers={**MINE, "X-Partition": "1"})
        statuses = list[int]()
        for n in range(10):
            # Usage that was read from the database counts as current for half a second.
            ask.board.now_ns = lambda n=n: time.time_ns() + n * 10**9
            status, taken = await ask("POST", "q/lease", json={"group": f"g{n}"}, headers=MINE)
            if status == 429:  # a full application gets no leases for further groups
                statuses.append(status)
                continue
            path = f"q/lease/{taken['lease']['lease']}"
            _, found = await ask("GET", path, headers=MINE)
            failed = [{"message_id": found["messages"][0]["message_id"], "reject": True}]
            statuses.append((await ask("POST", path, json={"failed": failed}, headers=MINE))[0])
        assert statuses[:2] == [200, 200] and statuses[-1] == 429
        assert await ask.stored_bytes() <= 3 * LIMIT_BYTES


async def test_small_messages_before_large_ones_do_not_make_a_page_of_gigabytes(tmp_path: Path) -> None:
    """The average size of the first messages says nothing of those that follow."""
    async with asking(tmp_path) as ask:
        batches = [["x"] * 20, [LARGE] * 10, [LARGE] * 10]
        for batch in batches:
            posted = {"messages": [{"body": body, "partition": 1} for body in batch]}
            assert (await ask("POST", "q", json=posted, headers=MINE))[0] == 201
        _, found = await ask("GET", "q?limit=1000")
        bodies = [one["body"] for one in found["messages"]]
        assert bodies == ["x"] * 20 + [LARGE] * 4, "it ends with the message that exceeds the limit"
        _, rest = await ask("GET", f"q?limit=1000&order=descending&since={found['messages'][-1]['message_id']}")
        assert rest["messages"] == found["messages"][:-5:-1], "in the other order, too"


async def test_a_page_of_delayed_messages_ends_like_any_other(tmp_path: Path) -> None:
    """It held a thousand messages of any size, and a public queue needs no key."""
    async with asking(tmp_path) as ask:
        batch = {"messages": [{"body": LARGE, "partition": 1, "delay": 60}] * 10}
        assert (await ask("POST", "q", json=batch, headers=MINE))[0] == 201
        _, found = await ask("GET", "q/delayed?limit=1000")
        assert sum(len(one["body"]) for one in found["messages"]) <= READ_MAX_CHARS + BODY_MAX_BYTES
        assert len(found["messages"]) == 4


async def test_principals_of_a_queue_are_short(tmp_path: Path) -> None:
    """They are read with every request to the queue, also inside the transaction that others wait for."""
    async with asking(tmp_path) as ask:
        for long in ("app:a," * 15_000, "app:a," * 500, f"bid:{'a' * 3_000}@host.org", "bid:a\x01@host.org"):
            status, found = await ask("POST", "", data=urlencode({"queue_name": "q", "principles": long}), headers=FORM)
            assert status == 400, found
        few = urlencode({"queue_name": "q", "principles": "app:sync,bid:a@host.org"})
        assert (await ask("POST", "", data=few, headers=FORM))[0] == 201


async def test_values_of_a_type_that_fits_nowhere_are_not_written_out(tmp_path: Path) -> None:
    """Writing out a list of 16 megabytes for the answer, or for a comparison, took seconds, in which nobody was
    served."""
    headers = {"content-type": "application/json"}
    for name in ("ttl", "partition", "priority", "hold", "delay", "deliver_at"):
        body = msgspec.json.encode({"messages": [{"body": "x", "delay": None, name: [["written"]]}]})
        with pytest.raises(InvalidPost) as refused:
            forms.drafts(headers, body, "q", 0)
        assert "written" not in str(refused.value) and f"0.{name}" in refused.value.fields
