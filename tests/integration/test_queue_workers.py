"""Test workers on real queues: a message server over HTTP, and a store."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.queue.worker import command
from headgate.cli.queue.workerfile import WorkerFile, read_worker_file
from headgate.map.check import check
from headgate.map.trees import StoreTree
from headgate.map.workers import ROOT, QueueMap, WorkerRecord
from headgate.ports.messages import NewMessage, QueueGone
from headgate.queue.messages import queues
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.records import BODY_MAX_BYTES, QueueRecord
from headgate.queue.workers import calls
from headgate.queue.workers.calls import JobExit
from headgate.queue.workers.ownership import take
from headgate.queue.workers.progress import steer
from headgate.queue.workers.shares import WorkerScope
from headgate.queueing import (
    Message,
    Policy,
    QueuePartition,
    Reject,
    RetryLater,
    Routing,
    RoutingRule,
    StopWorker,
    TimeLimit,
)
from headgate.queueing import progress as steps
from headgate.queueing.ids import START, make_id, ticks_of, unix_text
from headgate.queueing.message import DeadLetter, dead_letter
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.queueing.progress import NEW, Progress, Tally
from headgate.store.memory import MemoryBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import GuardLost, Store
from headgate.store.types import Delete, Put
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import QUICK, QueueHarness, harness, serving
from tests.waiting import until


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[MessageBoard]:
    opened = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    yield opened
    await opened.close()


@pytest.fixture
async def hands(board: MessageBoard) -> AsyncIterator[QueueHarness]:
    async with serving(board) as url, harness(url, MemoryBackend()) as found:
        yield found


class Log:
    """Run a job that records its calls."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.of: dict[QueuePartition, list[str]] = defaultdict(list)

    async def __call__(self, message: Message, context: Any) -> None:
        self.bodies.append(message.body)
        self.of[QueuePartition(message.queue, message.partition)].append(message.body)

    def has(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.bodies) >= count


async def dead_letters(hands: QueueHarness) -> list[tuple[DeadLetter, str]]:
    try:
        return [dead_letter(m.body) for m in await hands.source.read(QueuePartition(DEAD_LETTERS), START, 100)]
    except QueueGone:
        return []


async def progress(hands: QueueHarness, partition: QueuePartition) -> Progress:
    entry = await hands.backend.get(hands.app.progress(partition).path)
    assert entry is not None
    return hands.app.progress(partition).decode(entry.value)


# --- in order, shared


async def test_messages_are_processed_in_order_and_progress_is_recorded(hands: QueueHarness) -> None:
    await hands.source.create("q", 3)
    for partition in (1, 2, 3):
        await hands.post("q", *(f"{partition}-{n}" for n in range(500)), partition=partition)
    log = Log()
    worker = hands.start(log)
    await hands.until("all are processed", log.has(1500))
    await hands.stop(worker)
    for partition in (1, 2, 3):
        assert log.of[QueuePartition("q", partition)] == [f"{partition}-{n}" for n in range(500)]
        (last,) = (await hands.source.read(QueuePartition("q", partition), START, 1000))[-1:]
        position = await progress(hands, QueuePartition("q", partition))
        assert (position.id, position.owner, position.ahead) == (last.message_id, "", "")
    entries = await hands.backend.list(ROOT)
    assert not [e.path for e in entries if e.lease], "nothing is left behind"
    findings = check(entries, [StoreTree(ROOT, QueueMap)])
    assert findings.good, findings.text()


async def test_a_fourth_worker_takes_only_its_share_from_three(hands: QueueHarness) -> None:
    for n in range(27):
        await hands.source.create(f"q{n:02d}")
    log = Log()
    workers = [hands.start(log) for _ in range(3)]

    def sizes() -> list[int]:
        return sorted(len(w.sharing.owned()) if w.sharing else 0 for w in workers)

    await hands.until("three share", lambda: sizes() == [9, 9, 9])
    before = await hands.owners()
    workers.append(hands.start(log))
    await hands.until("four share", lambda: sizes() == [6, 7, 7, 7])
    after = await hands.owners()
    assert sum(after[partition] != before[partition] for partition in before) == 6
    await hands.until("the records say so", lambda: sorted(len(w.sharing._shown) for w in workers) == [6, 7, 7, 7])
    records = [hands.app.workers.decode(e.value) for e in await hands.backend.list(hands.app.workers.path)]
    assert sorted(q for record in records for q in record.queues) == sorted(map(str, after))


async def test_after_a_crash_only_messages_in_progress_run_again(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", *map(str, range(50)))
    seen: list[tuple[str, int]] = []
    reached = asyncio.Event()

    async def job(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "20" and message.attempt == 1:
            reached.set()
            await asyncio.Event().wait()

    first = hands.start(job)
    await reached.wait()
    await hands.crash(first)
    hands.start(job)
    await hands.until("the rest is processed", lambda: seen[-1][0] == "49")
    bodies = [body for body, attempt in seen if attempt == 1 or int(body) >= 20]
    assert list(dict.fromkeys(bodies)) == list(map(str, range(50)))
    again = [(body, attempt) for body, attempt in seen[21:]]
    assert ("20", 2) in again, "in flight: its second try"


async def test_a_stale_owner_is_refused(hands: QueueHarness) -> None:
    store, partition = Store(hands.backend), QueuePartition("q")
    await hands.backend.commit([], [hands.app.progress(partition).put(NEW)])
    async with store.session("one") as one, store.session("two") as two:
        (stale,) = await take(store, one, hands.app, [partition], "worker-1", pytest.fail)
        assert await take(store, two, hands.app, [partition], "worker-2", pytest.fail) == []
        await hands.backend.revoke(one.lease)  # as when it expired
        (fresh,) = await take(store, two, hands.app, [partition], "worker-2", pytest.fail)
        assert fresh.stored.epoch == stale.stored.epoch + 1
        done = make_id(7, 0, 0)
        await fresh.commit(steps.done(fresh.stored, done))
        for attempt in (stale.commit(stale.stored), stale.release(stale.stored), stale.commit(NEW)):
            with pytest.raises(GuardLost):
                await attempt
        assert (await progress(hands, partition)).id == done


async def test_a_strand_is_taken_completely_except_unreadable_messages(hands: QueueHarness) -> None:
    store, strand = Store(hands.backend), [QueuePartition("q", n) for n in (1, 2, 3)]
    await hands.backend.commit([], [hands.app.progress(partition).put(NEW) for partition in strand])
    async with store.session("one") as one, store.session("two") as two:
        await take(store, one, hands.app, strand[1:2], "worker-1", pytest.fail)
        assert await take(store, two, hands.app, strand, "worker-2", pytest.fail) == []
        assert await hands.owners() == {strand[1]: "worker-1"}, "nothing was taken"
        held = await take(store, one, hands.app, strand, "worker-1", pytest.fail)
        assert sorted(hold.partition for hold in held) == strand and set(await hands.owners()) == set(strand)
        for hold in held:
            await hold.commit(hold.stored)
        await hands.backend.revoke(one.lease)
        await hands.backend.commit([], [Put(hands.app.progress(strand[2]).path, b"{")])
        received = list[QueuePartition]()
        held = await take(store, two, hands.app, strand, "worker-2", lambda partition, _: received.append(partition))
        assert [hold.partition for hold in held] == strand[:2] and received == strand[2:]


async def test_a_worker_whose_owner_entry_is_deleted_stops_and_takes_the_partition_again(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    seen: list[int] = []

    async def job(message: Message, context: None) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    worker = hands.start(job)
    await hands.until("it is at it", lambda: seen and worker.sharing and worker.sharing._seen)
    await hands.backend.commit([], [Delete(hands.app.owner(QueuePartition("q")).path)])
    await hands.until("it begins anew", lambda: seen == [1, 2])
    assert worker.processor.figures.lost._value.get() == 1


async def test_a_worker_that_stops_hands_over_idle_partitions_immediately(hands: QueueHarness) -> None:
    for name in ("busy", "idle"):
        await hands.source.create(name)
    await hands.post("busy", "x")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def job(message: Message, context: None) -> None:
        began.set()
        await go_on.wait()

    first = hands.start(job)
    await began.wait()
    await hands.until("it has both", lambda: first.sharing and len(first.sharing.owned()) == 2)
    leaving = asyncio.ensure_future(hands.stop(first))
    log = Log()
    second = hands.start(log, choice=WorkerScope(only=frozenset({QueuePartition("idle")})))
    await hands.until("the other has the idle one", lambda: second.sharing and second.sharing.owned())
    assert not leaving.done(), "while the busy one is ended"
    go_on.set()
    await leaving


async def test_a_second_signal_to_stop_abandons_running_jobs(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    attempts: list[int] = []

    async def job(message: Message, context: None) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            await asyncio.Event().wait()

    first = hands.start(job)
    await hands.until("it runs", lambda: attempts)
    leaving = asyncio.ensure_future(hands.stop(first))
    await asyncio.sleep(0)
    first.abort.set()
    async with asyncio.timeout(DEADLINE_S):
        await leaving
    hands.start(job)
    await hands.until("it runs again", lambda: attempts == [1, 2])


async def test_new_queues_are_added_automatically_and_deleted_ones_removed(hands: QueueHarness) -> None:
    log = Log()
    worker = hands.start(log)
    await hands.until("it is there", lambda: worker.sharing is not None and worker.sharing.name)
    await hands.source.create("late", 2)
    await hands.post("late", "x", partition=2)
    await hands.until("the new queue is processed", log.has(1))
    await hands.source.ask("DELETE", "/late")
    await hands.until("its partitions are gone", lambda: not worker.sharing or not worker.sharing.owned())
    await hands.source.create("late", 2)
    await hands.post("late", "y", partition=2)
    await hands.until("made again, it is processed again", log.has(2))
    assert log.bodies == ["x", "y"]


@pytest.mark.long
async def test_more_than_a_thousand_queues(hands: QueueHarness, board: MessageBoard) -> None:
    def many(database: Any) -> None:
        for n in range(1_200):
            queues.create(database, "sync", QueueRecord(0, f"{n:032x}", 1, "user", "strong", "", 0))

    await board._write(many)
    log = Log()
    one, two = hands.start(log), hands.start(log)
    sizes = lambda: [len(w.sharing.owned()) if w.sharing else 0 for w in (one, two)]  # noqa: E731
    await hands.until("all are taken", lambda: sorted(sizes()) == [600, 600])


async def test_an_idle_worker_starts_immediately(hands: QueueHarness) -> None:
    """It reacts to the notification: on its own, it checks once an hour."""
    hands.pace = dataclasses.replace(QUICK, idle_s=3600.0, poll_s=3600.0, discover_s=3600.0)
    await hands.source.create("q")
    log = Log()
    worker = hands.start(log)
    await hands.until("it owns the queue", lambda: worker.sharing and worker.sharing.owned())
    for n in range(10):
        await hands.post("q", str(n))
        await hands.until("it is processed", log.has(n + 1))


async def test_a_worker_survives_an_outage_of_the_server(board: MessageBoard) -> None:
    log = Log()
    async with serving(board) as url:
        port = int(url.rpartition(":")[2])
        async with harness(url, MemoryBackend()) as hands:
            await hands.source.create("q")
            hands.start(log)
            await hands.post("q", "before")
            await hands.until("one is processed", log.has(1))
            await board.post("sync", "q", [])
            stopped = hands, port
    async with serving(board, port) as url, harness(url, stopped[0].backend) as hands:
        worker = hands.start(log)
        await hands.post("q", "after")
        await hands.until("the other, too", log.has(2))
        await hands.stop(worker)
    assert log.bodies == ["before", "after"]


# --- when jobs fail


async def test_a_failed_message_is_tried_again_while_others_continue(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "bad", "good", "better")
    seen: list[tuple[str, int]] = []

    async def job(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "bad" and message.attempt < 3:
            raise OSError("not now")

    hands.pace = dataclasses.replace(QUICK, idle_s=0.05)
    now_ms = time.time_ns() // 1_000_000
    worker = hands.start(job, Policy(attempts=3, retry_delay_s=600))
    worker.processor.now_ms = lambda: now_ms
    for number in (3, 4, 5):
        await hands.until("the next try", lambda number=number: len(seen) == number)
        await hands.until("it is recorded", lambda: worker.processor.figures.running.collect()[0].samples[0].value == 0)
        now_ms += 3_600_000
    assert seen == [("bad", 1), ("good", 1), ("better", 1), ("bad", 2), ("bad", 3)]
    assert await dead_letters(hands) == []


async def test_a_blocking_queue_waits_for_the_message_that_failed(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "bad", "good")
    seen: list[tuple[str, int]] = []

    async def job(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "bad" and message.attempt < 3:
            raise OSError("not now")

    hands.start(job, Policy(attempts=3, retry_delay_s=0.02, blocking=True))
    await hands.until("the last", lambda: ("good", 1) in seen)
    assert seen == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]


async def test_a_message_given_up_is_a_dead_letter_and_the_hook_is_called(hands: QueueHarness) -> None:
    await hands.source.create("q", 2)
    await hands.post("q", "böse\n", "good", partition=2)
    calls: list[tuple[str, Any, str, str]] = []
    log = Log()

    async def job(message: Message, context: dict[str, str]) -> None:
        if message.body != "good":
            raise ValueError("never")
        await log(message, context)

    def failure(message: Message, context: dict[str, str], queue: str, error: Exception, client: Any) -> None:
        calls.append((message["body"], context, queue, repr(error)))
        raise RuntimeError("the hook fails, too")

    worker = hands.start(job, failure=failure, context={"a": "b"})
    await hands.until("the hook is told", lambda: calls)
    await hands.until("the next one is processed", log.has(1))
    assert calls == [("böse\n", {"a": "b"}, "q-2", "ValueError('never')")]
    ((letter, body),) = await dead_letters(hands)
    assert (letter.queue, letter.partition, letter.attempts, letter.error, body) == (
        "q", 2, 3, "ValueError: never", "böse\n",
    )  # fmt: skip
    assert worker.processor.figures.hook_errors._value.get() == 1


async def test_a_dead_letter_that_another_worker_has_already_posted_exists_once(
    hands: QueueHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """It died before it could record that; its successor does not know it, but need not."""
    await hands.source.create("q")
    worker = hands.start(Log())
    message = Message("364875c74a9811e1919eb88d120c81de", "body", 1, "1327855340.4028359", "q")
    for now_ms, name in ((1, "first"), (2, "second")):
        worker.processor.worker, worker.processor.now_ms = name, lambda now_ms=now_ms: now_ms
        await worker.processor.bury(message, Tally(failed=3), ValueError("bad"))
    (letter,) = await hands.source.read(QueuePartition(DEAD_LETTERS), START, 10)
    assert dead_letter(letter.body)[0].worker == "first"
    assert "no dead letter" not in caplog.text


async def test_the_largest_message_can_be_a_dead_letter(hands: QueueHarness) -> None:
    await hands.source.create("q")
    body = "ä" * (BODY_MAX_BYTES // 2)
    await hands.source.post(NewMessage("q", body, "k"))

    async def job(message: Message, context: None) -> None:
        raise Reject("x" * 10_000)

    called = asyncio.Event()
    hands.start(job, failure=lambda *_: called.set())
    await hands.until("it is given up", called.is_set)
    assert [found for _, found in await dead_letters(hands)] == [body]


async def test_rejecting_and_asking_for_later(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "no", "later")
    seen: list[tuple[str, int]] = []

    async def job(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "no":
            raise Reject("not for me")
        if message.attempt == 1:
            raise RetryLater(0.02)

    hands.start(job, Policy(attempts=2, retry_delay_s=3600))
    await hands.until("the second try", lambda: ("later", 2) in seen)
    assert seen == [("no", 1), ("later", 1), ("later", 2)]
    assert [letter.error for letter, _ in await dead_letters(hands)] == ["Reject: not for me"]


def spin(message: Message, context: None) -> None:
    while True:
        pass


async def sleep_on(message: Message, context: None) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("job", [spin, sleep_on])
async def test_a_job_that_never_returns_is_ended_and_given_up(hands: QueueHarness, job: Any) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    errors: list[BaseException] = []
    hands.start(
        job,
        Policy(attempts=2, retry_delay_s=0, time_limit_s=0.05),
        failure=lambda message, context, queue, error, client: errors.append(error),
    )
    await hands.until("it is given up", lambda: errors)
    assert isinstance(errors[0], TimeLimit)


async def test_a_job_that_cannot_be_interrupted_does_not_delay_the_rest(
    hands: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "GRACE_S", 0.05)
    await hands.source.create("q")
    await hands.post("q", "stuck", "next")
    let_go, done = threading.Event(), []

    def job(message: Message, context: None) -> None:
        if message.body == "stuck":
            let_go.wait()  # not back in Python until then
        done.append(message.body)

    hands.start(job, Policy(attempts=1, time_limit_s=1.0), threads=1)  # enough for the next one on any machine
    await hands.until("the next one is processed", lambda: "next" in done)
    let_go.set()


async def test_a_job_that_allocates_without_end_has_failed(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "huge", "next")
    log = Log()

    async def job(message: Message, context: None) -> None:
        if message.body == "huge":
            raise MemoryError
        await log(message, context)

    hands.start(job, Policy(attempts=1))
    await hands.until("the next one is processed", log.has(1))
    assert [letter.error for letter, _ in await dead_letters(hands)] == ["MemoryError: "]


@pytest.mark.parametrize("plain", [True, False])
async def test_a_job_that_exits_ends_the_worker_and_is_counted(hands: QueueHarness, plain: bool) -> None:
    await hands.source.create("q")
    await hands.post("q", "exit", "next")
    seen: list[tuple[str, int]] = []

    def exits(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "exit":
            sys.exit(3)

    async def exits_too(message: Message, context: None) -> None:
        exits(message, context)

    for attempt in (1, 2):
        worker = hands.start(exits if plain else exits_too, Policy(attempts=2))
        with pytest.raises(JobExit) as end:
            async with asyncio.timeout(DEADLINE_S):
                await hands.ended(worker)
        assert end.value.status == 3
        assert seen == [("exit", n + 1) for n in range(attempt)]
    hands.start(exits, Policy(attempts=2))
    await hands.until("the next one is processed", lambda: ("next", 2) in seen or ("next", 1) in seen)
    assert [letter.error.partition(":")[0] for letter, _ in await dead_letters(hands)] == ["Vanished"]


async def test_a_job_may_stop_the_worker_and_its_message_stays(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "fine", "stop")
    seen: list[tuple[str, int]] = []

    async def job(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "stop" and len(seen) == 2:
            raise StopWorker

    async with asyncio.timeout(DEADLINE_S):
        await hands.ended(hands.start(job))
    hands.start(job)
    await hands.until("the message is processed", lambda: len(seen) == 3)
    assert seen == [("fine", 1), ("stop", 1), ("stop", 1)]


async def test_a_batch_is_processed_together_and_one_by_one_when_it_fails(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", *"abcdef")
    seen: list[str] = []

    async def job(messages: list[Message], context: None) -> None:
        seen.append("".join(m.body for m in messages))
        if any(m.body == "e" for m in messages):
            raise ValueError("e")

    hands.start(job, Policy(attempts=2, batch=3, retry_delay_s=0))
    await hands.until("the last", lambda: seen and seen[-1] == "f")
    assert seen == ["abc", "def", "d", "e", "f"]
    assert [body for _, body in await dead_letters(hands)] == ["e"]


async def test_healthy_messages_next_to_one_that_kills_the_process_do_not_become_dead_letters(
    hands: QueueHarness,
) -> None:
    """One place for jobs and ten queues: nine wait for it whenever the process dies."""
    begun: list[str] = []
    deadly = asyncio.Event()
    for n in range(10):
        await hands.source.create(f"q{n}")
        await hands.post(f"q{n}", "deadly" if n == 0 else f"fine {n}")

    async def job(message: Message, context: None) -> None:
        begun.append(message.body)
        if message.body == "deadly":
            deadly.set()
            await asyncio.Event().wait()

    for _ in range(8):
        deadly.clear()
        worker = hands.start(job, Policy(attempts=2), concurrency=1)
        given_up = worker.processor.figures.dead.labels("q0")
        await hands.until("it dies, or gives up", lambda counter=given_up: deadly.is_set() or counter._value.get())
        if not deadly.is_set():
            break
        await hands.crash(worker)
    await hands.until("the others are done", lambda: len(set(begun)) == 10)
    ((letter, body),) = await dead_letters(hands)
    assert body == "deadly" and begun.count("deadly") >= letter.attempts
    assert letter.attempts >= 2 or letter.attempts + letter.unsure >= 4
    assert begun.count("deadly") <= 1 + 4, "once as one of a page, and as often as the limits say"


async def test_with_the_settings_as_they_are_a_slow_job_of_one_queue_delays_no_other(hands: QueueHarness) -> None:
    usual, go_on, done = WorkerFile(Path("worker.conf")), threading.Event(), list[str]()
    for name in ("slow", "quick"):
        await hands.source.create(name)

    def job(message: Message, context: None) -> None:
        if message.queue == "slow":
            go_on.wait(DEADLINE_S)
        done.append(message.queue)

    worker = hands.start(job, concurrency=usual.concurrency, threads=usual.threads)
    try:
        await hands.post("slow", "x")
        await hands.until("the slow one runs", lambda: worker.processor.caller.running)
        await hands.post("quick", "x")
        await hands.until("the other is done", lambda: done == ["quick"])
    finally:
        go_on.set()


async def _head(hands: QueueHarness) -> Tally:
    return (await progress(hands, QueuePartition("q"))).tally or Tally()


async def test_a_job_that_did_not_end_in_time_when_its_worker_left_has_neither_failed_nor_died(
    hands: QueueHarness,
) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    hands.pace = dataclasses.replace(QUICK, drain_s=0.05)
    attempts: list[int] = []

    async def job(message: Message, context: None) -> None:
        attempts.append(message.attempt)
        await asyncio.Event().wait()

    for attempt in (1, 2):
        worker = hands.start(job, Policy(attempts=1, departures=3))
        await hands.until("it runs", lambda attempt=attempt: attempts == list(range(1, attempt + 1)))
        await hands.stop(worker)
        assert await _head(hands) == Tally(left=attempt)
    worker = hands.start(job, Policy(attempts=1, departures=2))
    await hands.until("its own limit", lambda: worker.processor.figures.dead.labels("q")._value.get())
    ((letter, _),) = await dead_letters(hands)
    assert (letter.attempts, letter.left, len(attempts)) == (2, 2, 2)
    assert "its worker stopped before the job had ended" in letter.error


@pytest.mark.long
async def test_a_lost_session_is_distinguished_from_a_death(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    attempts: list[int] = []

    async def job(message: Message, context: None) -> None:
        attempts.append(message.attempt)
        await asyncio.Event().wait()

    async def handed() -> bool:
        return any(one.handed for one in (await _head(hands)).unheard)

    worker = hands.start(job, Policy(attempts=1, losses=2))
    for attempt in (1, 2):
        await hands.until("it runs", lambda attempt=attempt: len(attempts) == attempt)
        await until("the store has it", handed, every_s=0.01)
        assert worker.sharing is not None
        await hands.backend.revoke(worker.sharing.session.lease)  # as when it expired
    await hands.until("its own limit", lambda: worker.processor.figures.dead.labels("q")._value.get())
    ((letter, _),) = await dead_letters(hands)
    assert (letter.attempts, letter.lost, letter.died) == (2, 2, 0)


# --- steering


async def test_paused_resumed_and_sent_back(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "a", "b")
    log = Log()
    worker = hands.start(log)
    store = Store(hands.backend)
    await hands.until("both are processed", log.has(2))
    await steer(store, hands.app, QueuePartition("q"), paused=True)
    await hands.until("it is told", lambda: worker.sharing and worker.sharing._now.controls.get(QueuePartition("q")))
    await hands.post("q", "c")
    await steer(store, hands.app, QueuePartition("q"), seek="")
    controls = hands.app.controls(QueuePartition("q")).path
    tree = hands.backend.tree  # type: ignore[attr-defined]  # in memory
    await hands.until("it has gone back", lambda: tree.entries[controls].value == b'{"paused":true}')
    assert log.bodies == ["a", "b"], "paused"
    await steer(store, hands.app, QueuePartition("q"), paused=False)
    await hands.until("all again, and the new one", log.has(5))
    assert log.bodies == ["a", "b", "a", "b", "c"]
    with pytest.raises(LookupError, match="no worker knows"):
        await steer(store, hands.app, QueuePartition("unknown"), paused=True)


async def test_queues_have_their_own_jobs_and_workers_take_only_their_queues(hands: QueueHarness) -> None:
    for name in ("orders-1", "orders-2", "mail"):
        await hands.source.create(name)
        await hands.post(name, name)
    orders, mail = Log(), Log()
    one = hands.start(None, routes=Routing((RoutingRule("orders-*", orders),)), choice=WorkerScope(("orders-*",)))
    two = hands.start(None, routes=Routing((RoutingRule("mail", mail),)), choice=WorkerScope(("mail",)))
    await hands.until("both are processed", lambda: len(orders.bodies) == 2 and mail.bodies)
    assert (sorted(orders.bodies), mail.bodies) == (["orders-1", "orders-2"], ["mail"])
    assert one.sharing and two.sharing and [str(r.partition) for r in two.sharing.owned()] == ["mail"]


async def test_lag_and_waiting_messages_are_measured(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "a", "b", "c")

    async def job(message: Message, context: None) -> None:
        await asyncio.Event().wait()

    worker = hands.start(job)
    figures = worker.processor.figures
    await hands.until("the lag is measured", lambda: figures.lag.labels("q", "1")._value.get() == 3)
    assert figures.running.collect()[0].samples[0].value == 1


# --- other stores, older records


async def test_on_sqlite_progress_outlives_the_process(board: MessageBoard, tmp_path: Path) -> None:
    log = Log()
    for count in (1, 2):
        backend = await SqliteBackend.open(tmp_path / "store.sqlite")
        async with serving(board) as url, harness(url, backend) as hands:
            await hands.source.create("q")
            await hands.post("q", f"message {count}")
            worker = hands.start(log)
            await hands.until("it is processed", log.has(count))
            await hands.stop(worker)
        await backend.close()
    assert log.bodies == ["message 1", "message 2"]


@pytest.mark.parametrize("form", ["ticks", "ticks with L", "seconds", "id"])
async def test_a_worker_continues_from_progress_in_any_older_form(hands: QueueHarness, form: str) -> None:
    await hands.source.create("q")
    await hands.post("q", "old", "new")
    first, _ = await hands.source.read(QueuePartition("q"), START, 2)
    ticks = ticks_of(first.message_id)
    last = {"ticks": f"{ticks}", "ticks with L": f"{ticks}L", "seconds": unix_text(ticks), "id": first.message_id}[form]
    path = hands.app.progress(QueuePartition("q")).path
    await hands.backend.commit([], [Put(path, f'{{"last": "{last}"}}'.encode())])
    log = Log()
    hands.start(log)
    await hands.until("the new one is processed", log.has(1))
    assert log.bodies == ["new"]


async def test_progress_that_cannot_be_understood_is_left_alone(hands: QueueHarness) -> None:
    for name in ("bad", "good"):
        await hands.source.create(name)
        await hands.post(name, name)
    path = hands.app.progress(QueuePartition("bad")).path
    await hands.backend.commit([], [Put(path, b'{"last": "yesterday"}')])
    log = Log()
    hands.start(log)
    await hands.until("the other is processed", log.has(1))
    entry = await hands.backend.get(path)
    assert entry is not None and entry.value == b'{"last": "yesterday"}'
    assert log.bodies == ["good"]


async def test_garbled_entries_in_the_store_stop_no_worker(hands: QueueHarness) -> None:
    await hands.source.create("q")
    await hands.post("q", "x")
    garbled = {
        f"{hands.app.workers.path}/worker-9999999999": b"not json",
        hands.app.controls(QueuePartition("other")).path: b"[",
        hands.app.controls(QueuePartition("q")).path: b'{"seek": "yesterday"}',
        f"{hands.app.queues.path}/q/partitions/many": b"{}",
    }
    await hands.backend.commit([], [Put(path, value) for path, value in garbled.items()])
    log = Log()
    worker = hands.start(log)
    await hands.until("it is processed", log.has(1))
    await hands.stop(worker)
    assert await hands.backend.get(hands.app.controls(QueuePartition("q")).path) is None, (
        "the control that nobody can obey is gone"
    )


async def test_a_worker_of_the_layout_is_seen_by_eye(hands: QueueHarness) -> None:
    queue = "a4bb2fb6dcda4b68aad743a4746d7f58"
    await hands.source.create(queue)
    worker = hands.start(Log())
    await hands.until("it owns the queue", lambda: worker.sharing and worker.sharing._shown)
    (entry,) = await hands.backend.list(hands.app.workers.path)
    assert entry.path == "/mozilla/services/qdo/sync/workers/worker-0000000000"
    assert hands.app.workers.decode(entry.value) == WorkerRecord((queue,), "here")


# --- the command

OLD_FILE = """
[qdo-worker]
job = jobs:process
job_context = jobs:context
job_failure = qdo.worker:save_failed_message
wait_interval = 5
name = test
session_timeout = 2

[partitions]
policy = automatic

[queuey]
connection = ${QUEUEY}
app_key = "cafe1234cafe"

[store]
url = sqlite:///store.sqlite

[metlog]
sender = "metlog.senders.StdOutSender"
"""
JOBS = """
import contextlib
@contextlib.contextmanager
def context():
    with open("seen", "a") as seen:
        yield seen
        seen.write("left\\n")
def process(message, context):
    if message["body"] == "bad":
        raise ValueError("bad")
    context.write(message["body"] + "\\n")
    context.flush()
    if message["body"] == "slow":
        import pathlib, time
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        context.write("slow has ended\\n")
"""


def _leaves(store: Path) -> bool:
    """Return whether a worker announces in its store, which is a file, that it is to stop."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
        found = database.execute("select value from entry where path glob '*/workers/*'").fetchall()
    return any(b'"leaving":true' in value for (value,) in found)


@pytest.mark.long
async def test_an_old_settings_file_works_and_sigterm_drains(board: MessageBoard, tmp_path: Path) -> None:
    (tmp_path / "worker.conf").write_text(OLD_FILE)
    (tmp_path / "jobs.py").write_text(JOBS)
    seen = tmp_path / "seen"
    async with serving(board) as url, harness(url, MemoryBackend()) as hands:
        await hands.source.create("q")
        await hands.post("q", "a", "bad", "slow", "never")
        line = [str(Path(sys.executable).with_name("headgate")), "worker", "-c", "worker.conf"]
        environment = {**os.environ, "QUEUEY": f"{url}/v1/sync/", "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, env=environment, stdout=-1)
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            text = (await process.stdout.readline()).decode()
            await hands.until("the slow one runs", lambda: seen.exists() and "slow\n" in seen.read_text())
            async with aiohttp.ClientSession() as http:
                page = re.search(r"http://\S+(?=/health)", text)
                assert page is not None
                async with http.get(f"{page[0]}/health") as answer:
                    assert (answer.status, (await answer.json())["partitions"]) == (200, ["q"])
                async with http.post(f"{page[0]}/control", json={"partition": "q", "paused": True}) as answer:
                    assert answer.status == 401, "not without the key"
            process.send_signal(signal.SIGTERM)
            await hands.until("it is told", lambda: _leaves(tmp_path / "store.sqlite"))
            (tmp_path / "go").touch()
            assert await process.wait() == 0
    assert seen.read_text() == "a\nslow\nslow has ended\nleft\n", "what ran has ended; the next was not begun"


HUNGRY = """
def process(message, context):
    if message.body == "hungry":
        bytearray(1 << 40)
    open("seen", "a").write(message.body)
"""


@pytest.mark.long
async def test_only_the_job_that_exceeds_its_memory_fails(board: MessageBoard, tmp_path: Path) -> None:
    text = OLD_FILE.replace("wait_interval = 5", "memory_max_mb = 16000").replace("job_context = jobs:context\n", "")
    (tmp_path / "worker.conf").write_text(f"{text}\n[retry]\nattempts = 1\n")
    (tmp_path / "jobs.py").write_text(HUNGRY)
    seen = tmp_path / "seen"
    async with serving(board) as url, harness(url, MemoryBackend()) as hands:
        await hands.source.create("q")
        await hands.post("q", "hungry", "next")
        line = [str(Path(sys.executable).with_name("headgate")), "worker", "-c", "worker.conf"]
        environment = {**os.environ, "QUEUEY": f"{url}/v1/sync/"}
        process = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, env=environment)
        await hands.until("the next one is processed", lambda: seen.exists() and seen.read_text() == "next")
        process.terminate()
        assert await process.wait() == 0
        assert [letter.error for letter, _ in await dead_letters(hands)] == ["MemoryError: "]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[qdo-worker]\njobb = a:b\n", "2: unknown option 'jobb'; did you mean 'job'?"),
        ("[qdo_worker]\n", "unknown section [qdo_worker]; did you mean 'qdo-worker'?"),
        ("[qdo-worker]\nwait_interval = soon\n", "2: wait_interval must be a number"),
        ("[qdo-worker]\njob = nowhere\n", "2: job must name a function, as module.path:function, not 'nowhere'"),
        ("[qdo-worker]\njob = no.such:thing\n", "ModuleNotFoundError"),
        ("[qdo-worker]\njob = os:nothing\n", "AttributeError"),
        (
            "[qdo-worker]\njob = os:getcwd\n[queuey]\napp_key = ${UNSET}\n",
            "4: the environment variable UNSET is not set",
        ),
        ("[qdo-worker]\njob = os:getcwd\n[queuey]\nconnection = ftp://x\n", "is not a URL of an application's queues"),
        (
            "[qdo-worker]\njob = os:getcwd\n[retry]\nattempts = 0\n",
            "4: attempts must be a whole number from 1 to 1,000, not '0'",
        ),
        ("[retry]\nblocking = maybe\n", "2: blocking must be yes or no, not 'maybe'"),
        ("[queue a]\nbatch = 1.5\n", "2: batch must be a whole number"),
        ("[retry]\ndelay = nan\n", "2: delay must be a number from 0 to 86,400, not 'nan'"),
        ("[partitions]\npolicy = automatik\n", "2: policy must be one of automatic, manual, all, not 'automatik'"),
        ("[qdo-worker]\nlisten = here\n", "2: listen must be HOST:PORT"),
        ("[qdo-worker]\nthreads = 0\n", "2: threads must be a whole number from 1"),
        ("[qdo-worker]\napp = a/b\n", "2: app must be the name of an application"),
        ("[qdo-worker]\nca_bundle = nowhere.pem\n", "2: ca_bundle must be a path"),
        ("[store]\nurl = mysql://x\n", "2: url must be server:, or begin with one of sqlite:///"),
        ("[store]\nurl = server:5000\n", "2: url must be server:, or"),
        (
            "[store]\nurl = server:\n[retry]\nblocking = yes\n",
            "4: blocking cannot be used with `[store] url = server:`",
        ),
        ("[store]\nurl = server:\n[queue a]\nbatch = 5\n", "4: batch cannot be"),
        ("[store]\nurl = server:\n[partitions]\npolicy = manual\n", "4: policy cannot be"),
        ("[store]\nurl = server:\n[qdo-worker]\njob_failure = log\n", "4: job_failure cannot be"),
        ("[store]\nurl = server:\n[zookeeper]\nconnection = zk1:2181\n", "4: connection cannot be"),
        ('[qdo-worker]\nname = "open\n', "2: name: the closing quote is missing"),
        ("[qdo-worker]\njob = os:getcwd\njob_context = no.such:thing  ; why\n", "3: no.such:thing: ModuleNotFound"),
        ("[qdo-worker]\njob = os:getcwd\n[partitions]\nids = a:0\n", "not a partition of a queue"),
    ],
)
def test_errors_in_a_settings_file_name_their_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "worker.conf"
    file.write_text(text)
    result = CliRunner().invoke(command, ["-c", str(file)])
    assert isinstance(result.exception, UserError) and message in str(result.exception), result.exception


def test_without_a_job_there_is_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "worker.conf").write_text("[qdo-worker]\n")
    result = CliRunner().invoke(command, ["-c", str(tmp_path / "worker.conf")])
    assert (result.exit_code, "nothing to do" in result.output) == (0, True)


def test_files_extend_one_another(tmp_path: Path) -> None:
    (tmp_path / "base.conf").write_text("[qdo-worker]\njob = os:getcwd\nname = base\n[retry]\nattempts = 7\n")
    (tmp_path / "worker.conf").write_text("[default]\nextends = base.conf\n[qdo-worker]\nname = mine\n")
    file = read_worker_file(tmp_path / "worker.conf", {})
    assert (file.job, file.name, file.policy.attempts) == ("os:getcwd", "mine", 7)


def test_text_after_a_value_is_a_comment_unless_it_is_quoted(tmp_path: Path) -> None:
    text = """
    [qdo-worker]
    job = os:getcwd   ; found beside this file
    name = "a ; b"    # kept
    [queuey]
    connection = http://one:5000/v1/a/   ; the first
        http://two:5000/v1/a/#part       ; a number sign without a blank is none
    app_key = k;ey#1
    [partitions]
    policy = all                         ; as in the sample of old
    [retry]
    blocking = yes                       ; why
    jitter =                             ; as it is without a word
    """
    (tmp_path / "worker.conf").write_text(re.sub("^    ", "", text, flags=re.MULTILINE))
    file = read_worker_file(tmp_path / "worker.conf", {})
    assert (file.job, file.name, file.key) == ("os:getcwd", "a ; b", "k;ey#1")
    assert file.urls == ("http://one:5000/v1/a/", "http://two:5000/v1/a/#part")
    assert (file.policy.blocking, file.policy.jitter, file.choice.manual) == (True, 0.2, True)


def test_every_option_has_the_default_that_its_page_says(tmp_path: Path) -> None:
    """The table is one declaration; the implicit behaviour of workers is another."""
    (tmp_path / "worker.conf").write_text("")
    file = read_worker_file(tmp_path / "worker.conf", {})
    defaults = WorkerFile(file.path)
    for name in ("urls", "app_name", "root", "policy", "pace", "concurrency", "threads", "listen", "session_s"):
        wanted = getattr(defaults, name)
        if name == "pace":  # a server without notifications is polled less often than in tests
            wanted = dataclasses.replace(wanted, poll_s=5.0)
        assert getattr(file, name) == wanted, name


def test_a_chroot_is_the_namespace_and_without_one_it_is_the_layouts(tmp_path: Path) -> None:
    for connection, root in (("zk1:2181,zk2:2181/mozilla-qdo", "/mozilla-qdo"), ("zk1:2181", ROOT)):
        (tmp_path / "worker.conf").write_text(f"[zookeeper]\nconnection = {connection}\n")
        file = read_worker_file(tmp_path / "worker.conf", {})
        assert file.store_url == f"zookeeper://{connection.partition('/')[0]}{root}?adopt=yes"
        assert file.app.path == "/queuey", "below the namespace"
        assert not file.choice.manual


def test_in_a_store_that_is_shared_with_a_gate_the_namespace_is_a_path_of_it(tmp_path: Path) -> None:
    (tmp_path / "worker.conf").write_text("[store]\nurl = zookeeper://zk1:2181/headgate\n")
    file = read_worker_file(tmp_path / "worker.conf", {})
    assert (file.store_url, file.app.path) == ("zookeeper://zk1:2181/headgate", f"{ROOT}/queuey")


async def test_each_group_gets_every_message_and_has_dead_letters_of_its_own(
    hands: QueueHarness, tmp_path: Path
) -> None:
    seen: dict[str, list[str]] = defaultdict(list)
    (tmp_path / "worker.conf").write_text("[qdo-worker]\napp = sync\ngroup = billing\n")
    file = read_worker_file(tmp_path / "worker.conf", {})
    others = QueueHarness(hands.source, hands.backend, app=file.app, stops=hands.stops)
    assert others.app.path != hands.app.path

    def job(name: str) -> Callable[[Message, Any], None]:
        def run(message: Message, context: Any) -> None:
            if message.body == "bad":
                raise Reject("bad")
            seen[name].append(message.body)

        return run

    await hands.source.create("q")
    await hands.post("q", "1", "bad", "2")
    hands.start(job("all"))
    await hands.until("the first group has them", lambda: seen["all"] == ["1", "2"])
    late = others.start(job("billing"))
    late.processor.group = file.group
    await hands.until("so has the other, from the start", lambda: seen["billing"] == ["1", "2"])
    await hands.post("q", "3")
    await hands.until("both go on", lambda: seen["all"][2:] == seen["billing"][2:] == ["3"])

    async def both() -> list[Message]:
        found = list(await hands.source.read(QueuePartition(DEAD_LETTERS), START, 10))
        return found if len(found) >= 2 else []

    buried = await until("both are buried", both, every_s=0.01)
    assert [dead_letter(one.body)[1] for one in buried] == ["bad", "bad"]
