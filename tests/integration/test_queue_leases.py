"""Test workers over HTTP: a partition has one worker while its lease holds; nothing is lost, skipped or out of
order."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from headgate.queue.messages import leases, outcomes
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.database import DatabaseDown
from headgate.queue.messages.holders import LeaseMoment, LeaseRequest
from headgate.queue.messages.postgres import PostgresDatabase
from headgate.queueing.message import dead_letter
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, OTHER_KEY
from tests.integration.queue_site import Site, site


class Talk(Site):
    """Connect to one application, with control of the server's clock."""

    def __init__(self, board: MessageBoard, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__(board, http, url)
        self.ahead_s = 0.0
        real = board.now_ns
        board.now_ns = lambda: real() + int(self.ahead_s * 1e9)

    async def queue(self, *bodies: str, partitions: int = 1) -> list[str]:
        await self.ask("POST", "", 201, data={"queue_name": "q", "partitions": str(partitions)})
        return await self.post(*bodies)

    async def post(self, *bodies: str) -> list[str]:
        batch = {"messages": [{"body": body, "partition": 1} for body in bodies]}
        return [m["key"] for m in (await self.ask("POST", "/q", 201, json=batch))["messages"]] if bodies else []

    async def take(self, **options: Any) -> Any:
        return (await self.ask("POST", "/q/lease", json=options))["lease"]

    async def fetch(self, lease: Any, query: str = "", status: int = 200) -> Any:
        found = await self.ask("GET", f"/q/lease/{lease['lease']}{query}", status)
        return [(m["body"], m["attempt"]) for m in found["messages"]] if status == 200 else found

    async def tell(self, lease: Any, status: int = 200, **outcome: Any) -> Any:
        return await self.ask("POST", f"/q/lease/{lease['lease']}", status, json=outcome)

    async def dead_letters(self) -> list[Any]:
        found = await self.ask("GET", f"/{DEAD_LETTERS}")
        return [dead_letter(m["body"]) for m in found["messages"]]


@pytest.fixture
async def talk(database_url: str) -> AsyncIterator[Talk]:
    async with site(Talk, database_url) as found:
        yield found
        for queue in (await found.ask("GET", ""))["queues"]:
            await found.ask("DELETE", f"/{queue['queue_name']}")


async def test_a_partition_is_leased_processed_and_released(talk: Talk) -> None:
    a, b, c = await talk.queue("a", "b", "c")
    lease = await talk.take(worker="one")
    assert (lease["partition"], lease["epoch"], lease["processed"]) == (1, 1, "")
    assert await talk.take(worker="two") is None, "it is taken"
    assert await talk.fetch(lease, "?limit=2") == [("a", 1), ("b", 1)] == await talk.fetch(lease, "?limit=2")
    assert (await talk.tell(lease, done=[a]))["lease"]["processed"] == a
    assert await talk.fetch(lease) == [("b", 1), ("c", 1)]
    await talk.ask("DELETE", f"/q/lease/{lease['lease']}")
    await talk.fetch(lease, status=409)
    again = await talk.take(worker="two")
    assert again["epoch"] == 2
    assert await talk.fetch(again) == [("b", 1), ("c", 1)], "given back: not begun"
    await talk.tell(again, done=[b, c])
    await talk.ask("DELETE", f"/q/lease/{again['lease']}")
    assert await talk.take() is None, "nothing is to be done"


async def test_each_of_several_takes_another_partition(talk: Talk) -> None:
    await talk.queue(partitions=3)
    batch = [{"body": "x", "partition": n} for n in (1, 2, 3)]
    await talk.ask("POST", "/q", 201, json={"messages": batch})
    taken = [await talk.take() for _ in range(4)]
    assert taken[3] is None and sorted(lease["partition"] for lease in taken[:3]) == [1, 2, 3]
    assert await talk.take(group="others", partition=2) is not None, "another group has progress of its own"


async def test_a_worker_that_lost_its_lease_cannot_record_progress(talk: Talk) -> None:
    a, b = await talk.queue("a", "b")
    stale = await talk.take(ttl=500)
    await talk.fetch(stale)
    talk.ahead_s = 400
    await talk.tell(stale, ttl=500)
    talk.ahead_s = 800
    await talk.tell(stale, done=[], ttl=500)
    talk.ahead_s = 1400
    await talk.tell(stale, 409, done=[a])
    fresh = await talk.take()
    await talk.tell(stale, 409, done=[a, b])
    assert await talk.fetch(fresh) == [("a", 2)], "it may have been begun: alone, and said so"
    await talk.tell(fresh, done=[a])
    assert await talk.fetch(fresh) == [("b", 2)]
    await talk.ask("DELETE", f"/q/lease/{stale['lease']}", 409)
    await talk.tell(fresh, done=[b])


async def test_a_failed_message_waits_while_others_continue_and_becomes_a_dead_letter(talk: Talk) -> None:
    a, b = await talk.queue("a", "b")
    lease = await talk.take(ttl=3600)
    await talk.fetch(lease)
    await talk.tell(lease, done=[b], failed=[{"message_id": a, "error": "no", "retry_after": 10}], ttl=3600)
    assert await talk.fetch(lease) == []
    for attempt in (2, 3):
        talk.ahead_s += 11
        assert await talk.fetch(lease) == [("a", attempt)]
        failure = {"message_id": a, "error": f"no {attempt}", "retry_after": 10}
        await talk.tell(lease, failed=[failure], ttl=3600)
    talk.ahead_s += 11
    assert await talk.fetch(lease) == []
    ((letter, body),) = await talk.dead_letters()
    assert (letter.message_id, letter.attempts, letter.error, body) == (a, 3, "no 3", "a")


async def test_a_message_that_ends_its_workers_is_given_up_and_those_behind_it_are_not(talk: Talk) -> None:
    a, b = await talk.queue("deadly", "fine")
    handed = []
    while True:
        lease = await talk.take(ttl=500)
        page = await talk.fetch(lease)
        if page[0][0] != "deadly":
            break
        handed.append(page)
        talk.ahead_s += 600
    assert handed[0] == [("deadly", 1), ("fine", 1)]
    assert [[body for body, _ in page] for page in handed[1:]] == [["deadly"]] * 3
    assert page == [("fine", 2)]
    ((letter, _),) = await talk.dead_letters()
    assert (letter.message_id, letter.attempts, letter.died) == (a, 3, 3)
    await talk.tell(lease, done=[b])


async def test_rejected_is_not_tried_again(talk: Talk) -> None:
    (a,) = await talk.queue("a")
    lease = await talk.take()
    await talk.fetch(lease)
    await talk.tell(lease, failed=[{"message_id": a, "error": "never", "reject": True}])
    ((letter, _),) = await talk.dead_letters()
    assert (letter.attempts, letter.error) == (1, "never")


async def test_the_text_of_an_error_is_stored_whatever_it_contains(talk: Talk) -> None:
    (a,) = await talk.queue("a")
    lease = await talk.take()
    await talk.fetch(lease)
    await talk.tell(lease, failed=[{"message_id": a, "error": "a\0b", "retry_after": 0}])
    assert await talk.fetch(lease) == [("a", 2)]
    await talk.tell(lease, failed=[{"message_id": a, "error": "b\0c", "reject": True}])
    ((letter, _),) = await talk.dead_letters()
    assert (letter.attempts, letter.error) == (2, "b?c")


async def test_a_post_wakes_waiting_requests(talk: Talk) -> None:
    await talk.queue()
    taking = asyncio.ensure_future(talk.ask("POST", "/q/lease?wait=30"))
    (a,) = await talk.post("a")
    async with asyncio.timeout(DEADLINE_S):
        lease = (await taking)["lease"]
    assert await talk.fetch(lease) == [("a", 1)]
    await talk.tell(lease, done=[a])
    fetching = asyncio.ensure_future(talk.fetch(lease, "?wait=30"))
    await talk.post("b")
    async with asyncio.timeout(DEADLINE_S):
        assert await fetching == [("b", 1)]
    assert await talk.take() is None


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        ({"done": ["nonsense"]}, "done"),
        ({"done": ["c"]}, "done"),
        ({"done": ["a", "a"]}, "done"),
        ({"done": "a"}, "body"),
        ({"dun": []}, "body"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 1e300}, "ttl"),
        ({"attempts": 0}, "attempts"),
        ({"failed": [{"message_id": "a", "retry_after": -1}]}, "retry_after"),
    ],
)
async def test_invalid_outcomes_are_refused_and_nothing_is_written(talk: Talk, outcome: Any, field: str) -> None:
    a, _, c = await talk.queue("a", "b", "c")
    names = {"a": a, "c": c}
    if isinstance(outcome.get("done"), list):
        outcome = {"done": [names.get(one, one) for one in outcome["done"]]}
    if "failed" in outcome:
        outcome = {"failed": [{**one, "message_id": names[one["message_id"]]} for one in outcome["failed"]]}
    lease = await talk.take()
    await talk.fetch(lease)
    refused = await talk.tell(lease, 400, **outcome)
    assert list(refused["error_msg"]) == [field]
    assert await talk.fetch(lease) == [("a", 1), ("b", 1), ("c", 1)]


async def test_a_message_that_was_not_fetched_cannot_be_completed(talk: Talk) -> None:
    a, b = await talk.queue("a", "b")
    lease = await talk.take()
    await talk.tell(lease, 400, done=[a])
    await talk.fetch(lease, "?limit=1")
    await talk.tell(lease, 400, done=[a, b])
    await talk.tell(lease, done=[a])
    await talk.tell(lease, 400, done=[a])


async def test_an_outcome_that_is_repeated_counts_once(talk: Talk) -> None:
    a, b = await talk.queue("a", "b")
    lease = await talk.take()
    await talk.fetch(lease)
    address, failed = f"/q/lease/{lease['lease']}", {"failed": [{"message_id": a, "error": "no", "retry_after": 0}]}
    for key, outcome in (("first", {**failed, "attempts": 3}), ("second", {"done": [b]})):
        answers = [await talk.ask("POST", address, json=outcome, headers={"Idempotency-Key": key}) for _ in range(3)]
        assert answers[0]["lease"]["processed"] == answers[2]["lease"]["processed"] == (a if key == "first" else b)
    assert await talk.fetch(lease) == [("a", 2)], "it was tried once"
    await talk.ask("POST", address, 422, json={"done": [a]}, headers={"Idempotency-Key": "second"})
    await talk.ask("POST", address, 400, json={"done": [a]}, headers={"Idempotency-Key": "k" * 201})
    await talk.ask("POST", address, json={"failed": [{"message_id": a, "reject": True}]})
    assert len(await talk.dead_letters()) == 1


async def test_a_lease_that_runs_out_goes_to_nobody_while_its_last_outcome_is_recorded(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(Talk, database) as talk:
        (a,) = await talk.queue("a")
        lease = await talk.take(ttl=10)
        await talk.fetch(lease)
        others: list[Any] = []

        def checked(*of: Any) -> Any:
            """Another server, on which the lease has expired, leases the partition at this moment."""
            other = PostgresDatabase(database)
            other.execute("set lock_timeout = 100")
            later = LeaseMoment(talk.board.now_ns() + 3600 * 10**9, 1, random.Random(1))
            try:
                with other.transaction():
                    others.append(leases.take(other, LeaseRequest(APP, "q", "other"), later))
            except DatabaseDown as locked:
                others.append(locked)
            finally:
                other.close()
            return real(*of)

        real = outcomes._checked
        monkeypatch.setattr(outcomes, "_checked", checked)
        await talk.tell(lease, done=[a])
        assert len(others) == 1 and isinstance(others[0], DatabaseDown), others
        assert await talk.take() is None, "it is the first one's, and nothing is to be done"
        await talk.ask("DELETE", "/q")


async def test_another_application_and_nobody_learn_nothing(talk: Talk) -> None:
    await talk.queue("a")
    lease = await talk.take()
    for key, status in ((f"Application {OTHER_KEY}", 403), ("", 403), ("Application guess", 401)):
        for method, path in (("POST", "/q/lease"), ("GET", f"/q/lease/{lease['lease']}"), ("DELETE", "/q/lease/x")):
            await talk.ask(method, path, status, headers={"Authorization": key})
    await talk.ask("POST", "/nowhere/lease", 404)
    await talk.fetch({"lease": "guess"}, status=409)


async def test_a_queue_that_is_created_again_has_no_leases_of_the_old_one(talk: Talk) -> None:
    await talk.queue("a")
    lease = await talk.take()
    await talk.ask("DELETE", "/q")
    await talk.queue("b")
    await talk.fetch(lease, status=409)
    assert await talk.fetch(await talk.take()) == [("b", 1)]


# --- keys


def expected(key: str, partitions: int) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest()[:16], 16) % partitions + 1


async def test_messages_of_one_key_are_in_one_partition(talk: Talk) -> None:
    await talk.queue(partitions=7)
    keys = ["customer 1", "customer 2", "größe", "x" * 200]
    batch = [{"body": "x", "key": key} for key in keys * 2]
    posted = (await talk.ask("POST", "/q", 201, json={"messages": batch}))["messages"]
    assert [one["partition"] for one in posted] == [expected(key, 7) for key in keys * 2]
    for key in keys[:3]:
        (one,) = (await talk.ask("POST", "/q", 201, data="x", headers={"X-Key": key}))["messages"]
        assert one["partition"] == expected(key, 7)


@pytest.mark.parametrize("draft", [{"key": 7}, {"key": "x" * 201}, {"key": "a\nb"}, {"key": "a", "partition": 1}])
async def test_an_invalid_key_is_refused(talk: Talk, draft: Any) -> None:
    await talk.queue(partitions=2)
    refused = await talk.ask("POST", "/q", 400, json={"messages": [{"body": "x", **draft}]})
    assert list(refused["error_msg"]) == ["0.key"]


async def test_the_same_idempotency_key_with_another_key_is_another_post(talk: Talk) -> None:
    await talk.queue(partitions=2)
    for key, status in (("a", 201), ("a", 201), ("b", 422)):
        batch = {"messages": [{"body": "x", "key": key}]}
        await talk.ask("POST", "/q", status, json=batch, headers={"Idempotency-Key": "once"})
