"""Test what an application of the queues stores besides bodies of messages, and how much it does at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from headgate.queue.messages import leases, schedules, storage
from headgate.queue.messages.bounds import ApplicationLimits
from headgate.queue.messages.records import BODY_MAX_BYTES
from headgate.queue.workers import discovery
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition
from headgate.store.memory import MemoryBackend
from headgate.testing.queues.harness import harness, serving
from tests.hostile.test_queue_sizes import MINE, Asking, asking

LIMIT_BYTES = 1_000_000


def later(ask: Asking, seconds: float) -> None:
    """Move the server's clock, so that usage is read again; it then stands still, however busy the machine is."""
    now_ns = time.time_ns() + int(seconds * 1e9)
    ask.board.now_ns = lambda: now_ns


async def leased(ask: Asking, group: str = "g", ttl: float = 3600, partition: int = 1) -> str:
    """Return the path of a lease."""
    wanted = {"group": group, "ttl": ttl, "partition": partition}
    _, taken = await ask("POST", "q/lease", json=wanted, headers=MINE)
    return f"q/lease/{taken['lease']['lease']}"


async def posted(ask: Asking, *bodies: str, **fields: Any) -> list[str]:
    """Post to one partition and return the ids."""
    batch = {"messages": [{"body": body, "partition": 1} | fields for body in bodies]}
    status, answer = await ask("POST", "q", json=batch, headers=MINE)
    assert status == 201, answer
    return [one["key"] for one in answer["messages"]]


async def test_empty_messages_do_not_fill_the_store(tmp_path: Path) -> None:
    """A row with its index entries takes far more than a body of one character."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=LIMIT_BYTES)) as ask:
        batch = {"messages": [{"body": "x", "partition": 1}] * 1_000}
        statuses = [(await ask("POST", "q", json=batch, headers=MINE))[0] for _ in range(6)]
        assert statuses == [201] * 4 + [429] * 2
        later(ask, 1)
        assert (await ask("POST", "q", json=batch, headers=MINE))[0] == 429, "read from the database, it is the same"


async def test_stored_answers_do_not_fill_the_store(tmp_path: Path) -> None:
    """Messages are dropped at once, but answers to posts with an Idempotency-Key stay for days."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=LIMIT_BYTES)) as ask:
        await ask("PUT", "q", data={"messages_max": "1", "full": "drop"}, headers=MINE)
        batch, statuses = {"messages": [{"body": "x", "partition": 1}] * 1_000}, list[int]()
        for n in range(20):
            later(ask, n)
            statuses.append((await ask("POST", "q", json=batch, headers={**MINE, "Idempotency-Key": f"k{n}"}))[0])
        assert statuses[:5] == [201] * 5 and statuses[-5:] == [429] * 5
        later(ask, 4 * 86_400)
        await ask.board._purge()
        later(ask, 4 * 86_400 + 1)
        assert (await ask("POST", "q", json=batch, headers=MINE))[0] == 201, "old answers are forgotten"


async def test_old_answers_are_forgotten_as_fast_as_they_come(tmp_path: Path) -> None:
    """Each removal handles a thousand; there were as many removals as expired messages needed."""
    async with asking(tmp_path) as ask:
        for n in range(2):
            drafts = [{"body": "x", "partition": 1}]
            status, _ = await ask("POST", "q", json={"messages": drafts}, headers={**MINE, "Idempotency-Key": f"{n}"})
            assert status == 201
        later(ask, 4 * 86_400)
        removed = await ask.board.change("sync", lambda database, now: _purged(database, now.now_ms))
        assert removed == [1, 1, 1, 1, 0], "two messages, then two answers"


def _purged(database: Any, now_ms: int) -> list[int]:
    found = [storage.purge(database, now_ms, 1)]
    while found[-1]:
        found.append(storage.purge(database, now_ms, 1))
    return found


async def test_an_application_creates_so_many_queues_and_partitions(tmp_path: Path) -> None:
    """There is one queue with six partitions already."""
    async with asking(tmp_path, ApplicationLimits(queues_max=3, partitions_max=20)) as ask:
        assert (await ask("POST", "", data={"queue_name": "a", "partitions": "10"}, headers=MINE))[0] == 201
        status, found = await ask("POST", "", data={"queue_name": "b", "partitions": "5"}, headers=MINE)
        assert status == 429 and "20 partitions" in found["error_msg"]["queue_name"]
        assert (await ask("POST", "", data={"queue_name": "b", "partitions": "1"}, headers=MINE))[0] == 201
        status, found = await ask("POST", "", data={"queue_name": "c"}, headers=MINE)
        assert status == 429 and "3 queues" in found["error_msg"]["queue_name"]
        assert (await ask("PUT", "b", data={"partitions": "5"}, headers=MINE))[0] == 429
        assert (await ask("PUT", "b", data={"partitions": "4"}, headers=MINE))[0] == 200
        assert (await ask("PUT", "b", data={"type": "public"}, headers=MINE))[0] == 200, "what exists may be changed"
        assert (await ask("DELETE", "a", headers=MINE))[0] == 200
        assert (await ask("POST", "", data={"queue_name": "c", "partitions": "10"}, headers=MINE))[0] == 201


async def test_one_outcome_does_not_write_gigabytes_of_dead_letters(tmp_path: Path) -> None:
    """Failed messages wait under their ids, whatever a fetch returns: one outcome could give all of them up."""
    async with asking(tmp_path) as ask:
        lease, ids = await leased_and_failed(ask, 20)
        rejected = [{"message_id": id, "reject": True} for id in ids]
        status, found = await ask("POST", lease, json={"failed": rejected}, headers=MINE)
        assert status == 400 and "at a time" in found["error_msg"]["failed"]
        _, listed = await ask("GET", "?include_size=1", headers=MINE)
        assert DEAD_LETTERS not in [queue["queue_name"] for queue in listed["queues"]], "nothing of it is written"
        for some in (rejected[:10], rejected[10:]):
            assert (await ask("POST", lease, json={"failed": some}, headers=MINE))[0] == 200
        _, listed = await ask("GET", "?include_size=1", headers=MINE)
        assert [queue["messages"] for queue in listed["queues"] if queue["queue_name"] == DEAD_LETTERS] == [20]


async def leased_and_failed(ask: Asking, count: int, body: str = "x" * BODY_MAX_BYTES) -> tuple[str, list[str]]:
    """Let messages fail that are due again in an hour; return the lease and their ids."""
    await posted(ask, "first")
    lease, ids = await leased(ask), list[str]()
    await ask("POST", lease, json={"done": [(await fetched(ask, lease))[0]], "ttl": 3600}, headers=MINE)
    while len(ids) < count:
        some = await posted(ask, *[body] * min(3, count - len(ids)))
        assert await fetched(ask, lease) == some
        failed = [{"message_id": id, "retry_after": 3600} for id in some]
        status, answer = await ask("POST", lease, json={"failed": failed, "ttl": 3600}, headers=MINE)
        assert status == 200, answer
        ids += some
    return lease, ids


async def fetched(ask: Asking, lease: str) -> list[str]:
    _, found = await ask("GET", f"{lease}?limit=1000", headers=MINE)
    return [one["message_id"] for one in found["messages"]]


async def test_outcomes_at_the_same_time_have_no_more_room_for_dead_letters(tmp_path: Path) -> None:
    """Each of them alone fits; none is written when the next one comes."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=10_000)) as ask:
        outcomes_of = list[tuple[str, Any]]()
        for partition in range(1, 6):
            await posted(ask, "x" * 1_500, partition=partition)
            lease = await leased(ask, partition=partition)
            rejected = [{"message_id": id, "reject": True} for id in await fetched(ask, lease)]
            outcomes_of.append((lease, {"failed": rejected}))
        later(ask, 1)
        # Usage is read here, and not again: another read would find the dead letters that are written.
        await ask("POST", lease, json={"ttl": 3600}, headers=MINE)
        answers = await asyncio.gather(*(ask("POST", lease, json=one, headers=MINE) for lease, one in outcomes_of))
        assert sorted(status for status, _ in answers) == [200, 200, 200, 429, 429]


async def test_failures_and_groups_do_not_fill_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group remembers the failures of each message, with two thousand characters of its error."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=10_000)) as ask:
        (id,) = await posted(ask, "x")
        known, statuses = [await leased(ask, f"g{n}") for n in range(12)], list[int]()
        for n, lease in enumerate(known):
            later(ask, n)
            await fetched(ask, lease)
            failed = [{"message_id": id, "error": "x" * 2_000, "retry_after": 3600}]
            statuses.append((await ask("POST", lease, json={"failed": failed}, headers=MINE))[0])
        assert statuses[:5] == [200] * 5 and statuses[-2:] == [429] * 2
        status, answer = await ask("POST", "q/lease", json={"group": "new"}, headers=MINE)
        assert status == 429 and "10000 bytes" in answer["error_msg"]["queue_name"]
        assert (await ask("DELETE", known[-1], headers=MINE))[0] == 200
        assert await leased(ask, "g11"), "a group that is known continues"
    (tmp_path / "groups").mkdir()
    monkeypatch.setattr(leases, "LEASES_MAX", 5)
    async with asking(tmp_path / "groups") as ask:
        await posted(ask, "x")
        answers = [await ask("POST", "q/lease", json={"group": f"g{n}"}, headers=MINE) for n in range(7)]
        assert [status for status, _ in answers] == [200] * 5 + [429] * 2
        assert "fewer groups" in answers[-1][1]["error_msg"]["queue_name"]


async def test_messages_that_vanish_do_not_fill_the_store(tmp_path: Path) -> None:
    """A lease that expires three times makes a dead letter, too, and no outcome reports it."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=10_000)) as ask:
        await posted(ask, "x" * 4_000)
        statuses = list[int]()
        for n in range(12):
            await leased(ask, f"g{n}", 1)
        for n in range(60):
            later(ask, 10 * n + 10)
            lease = await leased(ask, f"g{n // 5}", 1)
            statuses.append((await ask("GET", lease, headers=MINE))[0])
        assert statuses[:10] == [200] * 10 and statuses[-1] == 429
        assert await ask.stored_bytes() <= 3 * 10_000


async def test_a_post_under_a_key_of_the_server_makes_no_transaction_fail(tmp_path: Path) -> None:
    """The failure undid the transaction with the writes of others, each time."""
    async with asking(tmp_path) as ask:
        (id,) = await posted(ask, "x")
        lease = await leased(ask)
        await fetched(ask, lease)
        await ask("POST", "", data={"queue_name": DEAD_LETTERS}, headers=MINE)
        for key in (f"dead-g-q-{id}", f"dead-g-q:1-{id}"):
            assert (await ask("POST", DEAD_LETTERS, data="x", headers={**MINE, "Idempotency-Key": key}))[0] == 201
        failed = [{"message_id": id, "reject": True}]
        assert (await ask("POST", lease, json={"failed": failed}, headers=MINE))[0] == 200


async def test_what_failed_and_expired_holds_up_no_transaction(tmp_path: Path) -> None:
    """A fetch looks at so many of them; the next one continues."""
    async with asking(tmp_path) as ask:
        await posted(ask, "first")
        lease = await leased(ask)
        await fetched(ask, lease)
        ids = await posted(ask, *["x"] * 300, ttl=60)
        await posted(ask, "last")
        failed = [{"message_id": id, "retry_after": 70} for id in (await fetched(ask, lease))[1:301]]
        done = [(await fetched(ask, lease))[0]]
        assert [one["message_id"] for one in failed] == ids
        status, _ = await ask("POST", lease, json={"done": done, "failed": failed, "ttl": 3600}, headers=MINE)
        assert status == 200
        later(ask, 100)
        counts = [len(await fetched(ask, lease)) for _ in range(2)]
        assert counts == [0, 1], f"{leases.GONE_MAX} of 300, then the rest and the message behind them"


async def test_an_outcome_reads_only_the_attempts_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as ask:
        lease, _ = await leased_and_failed(ask, 30, "x")
        await posted(ask, "y")
        done, rows = await fetched(ask, lease), list[int]()
        real = ask.board._writer.execute

        def counted(*of: Any) -> Any:
            found = real(*of)
            rows.append(len(found))
            return found

        monkeypatch.setattr(ask.board._writer, "execute", counted)
        assert (await ask("POST", lease, json={"done": done}, headers=MINE))[0] == 200
        assert max(rows) <= 2, "the message, and the one before it"


async def test_schedules_do_not_fill_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule posted a message each minute, whether there was room or not, and a queue has a thousand schedules."""
    async with asking(tmp_path, ApplicationLimits(bytes_max=20_000)) as ask:
        often = {"cron": "* * * * *", "missed": "all", "body": "x" * 5_000, "partition": 1}
        assert (await ask("PUT", "q/schedules/often", json=often, headers=MINE))[0] == 200
        later(ask, 10 * 60)
        await ask.board.deliver()
        assert await ask.stored_bytes() == 10_000, "with the schedule itself, and 200 bytes for each"
        _, found = await ask("GET", "q/schedules", headers=MINE)
        assert "20000 bytes" in found["schedules"][0]["problem"]
    monkeypatch.setattr(schedules, "TOGETHER_MAX_BYTES", 20_000)
    (tmp_path / "many").mkdir()
    async with asking(tmp_path / "many") as ask:
        statuses = [(await ask("PUT", f"q/schedules/s{n}", json=often, headers=MINE))[0] for n in range(5)]
        assert statuses == [200] * 4 + [400]
        assert (await ask("PUT", "q/schedules/s0", json=often, headers=MINE))[0] == 200, "what exists may be changed"


async def test_queues_that_come_and_go_do_not_fill_the_store_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress of each was kept for a week, in a store that a gate may share."""
    monkeypatch.setattr(discovery, "GONE_MAX", 3)
    async with asking(tmp_path) as ask, serving(ask.board) as url, harness(url, MemoryBackend()) as hands:
        worker = hands.start(lambda message, context: None)

        def known(prefix: str) -> set[str]:
            entries = worker.sharing.mirror.under(hands.app.queues.path) if worker.sharing else ()
            return {entry.path.rpartition("/")[2] for entry in entries if f"/{prefix}" in entry.path}

        for n in range(8):
            await hands.source.create(f"r{n}")
            await hands.until("it is recorded", lambda n=n: f"r{n}" in known("r"))
            await hands.source.ask("DELETE", f"/r{n}")
            await hands.until("it is gone", lambda n=n: QueuePartition(f"r{n}") not in worker.sharing.owned())
        await hands.source.create("last")
        await hands.until("the queues were looked at again", lambda: known("last"))
        await hands.source.create("very-last")
        await hands.until("the first ones are forgotten", lambda: len(known("r")) <= 4)
        assert "r0" not in known("r") and "r7" in known("r")
