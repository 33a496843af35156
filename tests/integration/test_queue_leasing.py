"""Test workers without a store: fenced, bounded, in order; they end on request, and share with others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.ports.messages import LeaseGone, SourceDown
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient, MessageLeasing
from headgate.queue.messages.holders import MessageLease, Outcome
from headgate.queue.workers.calls import JobCaller, JobExit
from headgate.queue.workers.processor import JobPace
from headgate.queue.workers.storeless import LeaseSettings, LeaseWorker
from headgate.queueing import Message, Reject, StopWorker
from headgate.queueing.ids import START
from headgate.queueing.message import dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving
from tests.waiting import slow, until

QUICK = JobPace(drain_s=DEADLINE_S, poll_s=0.2, discover_s=0.5)


class Hands:
    """Run workers of one application, each with its own connection."""

    def __init__(self, board: MessageBoard, source: MessageClient) -> None:
        self.board, self.source, self.pace = board, source, QUICK
        self.running: dict[int, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def post(self, queue: str, *bodies: str, partitions: int = 1, partition: int = 1) -> None:
        await self.source.create(queue, partitions)
        await self.source.post_many(queue, [(body, partition) for body in bodies], f"{queue}-{partition}-{bodies}")

    def start(self, job: Any, policy: Policy | None = None, **more: Any) -> LeaseWorker:  # people's own functions
        """Represent a running worker."""
        routes = Routing((RoutingRule("*", job, policy or Policy(retry_delay_s=0.05)),))
        caller = JobCaller(more.pop("concurrency", 50), more.pop("threads", 4))
        worker = LeaseWorker(self.source, routes, caller, None, "here", LeaseSettings(pace=self.pace, **more))
        stop = asyncio.Event()
        self.running[id(worker)] = stop, asyncio.ensure_future(worker.run(stop))
        return worker

    async def stop(self, worker: LeaseWorker) -> None:
        """Stop it gracefully, and raise its error."""
        stop, task = self.running.pop(id(worker))
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await task

    async def ended(self, worker: LeaseWorker) -> None:
        """Wait until it ends on its own, and raise its error."""
        async with asyncio.timeout(DEADLINE_S):
            await self.running.pop(id(worker))[1]

    async def crash(self, worker: LeaseWorker) -> None:
        """Kill it silently: its leases expire."""
        worker.abort.set()
        await self.stop(worker)

    async def dead_letters(self) -> list[tuple[str, str, int]]:
        found = [dead_letter(one.body) for one in await self.source.read(QueuePartition(DEAD_LETTERS, 1), START, 100)]
        return [(head.queue, head.error, head.attempts) for head, _ in found]


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as source:
        found = Hands(board, source)
        yield found
        for stop, task in found.running.values():
            stop.set()
            task.cancel()
        await asyncio.gather(*(task for _, task in found.running.values()), return_exceptions=True)
    await board.close()


async def test_in_order_with_retries_and_dead_letters_and_new_queues_join(hands: Hands) -> None:
    seen: list[tuple[str, str, int]] = []

    def job(message: Message, _: Any) -> None:
        seen.append((message.queue, message.body, message.attempt))
        if message.body == "bad":
            raise Reject("never")
        if (message.body == "late" and message.attempt < 3) or message.body == "worse":
            raise ValueError("not yet")

    await hands.post("q", "a", "late", "worse", "b")
    worker = hands.start(job)
    await until("both had their last attempt", lambda: ("q", "late", 3) in seen and ("q", "worse", 3) in seen)
    await hands.post("new", "bad", "c")
    await until("the other queue is worked on", lambda: ("new", "c", 1) in seen)
    await until("nothing is held any more", lambda: not worker.held)
    firsts = [body for queue, body, attempt in seen if queue == "q" and attempt == 1]
    assert firsts == ["a", "late", "worse", "b"]
    assert sorted(await hands.dead_letters()) == [("new", "Reject: never", 1), ("q", "ValueError: not yet", 3)]
    await hands.stop(worker)
    assert len(seen) == len(set(seen)), "nothing twice"


async def test_a_failure_whose_recording_is_not_answered_counts_once(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, lost, real = list[int](), list[Outcome](), MessageLeasing.tell

    async def tell(leasing: MessageLeasing, queue: str, lease: MessageLease, outcome: Outcome, *key: str) -> None:
        await real(leasing, queue, lease, outcome, *key)
        if outcome.failed and not lost:
            lost.append(outcome)
            raise SourceDown("the answer is lost")

    async def job(message: Message, _: None) -> None:
        tried.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("not now")

    monkeypatch.setattr(MessageLeasing, "tell", tell)
    await hands.post("q", "a")
    worker = hands.start(job, Policy(attempts=2, retry_delay_s=0.05))
    await until("it is tried again", lambda: tried == [1, 2])
    await hands.stop(worker)
    assert lost and DEAD_LETTERS not in {one.queue for one in await hands.source.partitions()}


async def test_two_share_partitions_and_groups_have_progress_of_their_own(hands: Hands) -> None:
    seen: dict[str, list[str]] = {"one": [], "two": [], "other": []}
    at_once: set[str] = set()

    def job(name: str) -> Callable[[Message, Any], Any]:
        async def run(message: Message, _: Any) -> None:
            partition = f"{'g' if name == 'other' else 'w'}{message.partition}"
            assert partition not in at_once
            at_once.add(partition)
            await slow(0.01)
            at_once.discard(partition)
            seen[name].append(message.body)

        return run

    for n in (1, 2, 3):
        await hands.post("q", *(f"{n}{letter}" for letter in "abcde"), partitions=3, partition=n)
    workers = [hands.start(job("one"), leases_max=1), hands.start(job("two"), leases_max=1)]
    workers.append(hands.start(job("other"), group="billing"))
    await until("all is processed, once per group", lambda: len(seen["one"] + seen["two"]) == 15 == len(seen["other"]))
    assert sorted(seen["one"] + seen["two"]) == sorted(seen["other"])
    for n in "123":
        assert [body for body in seen["other"] if body[0] == n] == [f"{n}{letter}" for letter in "abcde"]
    for worker in workers:
        await hands.stop(worker)


async def test_a_worker_processes_only_its_partitions(hands: Hands) -> None:
    seen: list[str] = []
    for n in (1, 2):
        await hands.post("q", f"m{n}", partitions=2, partition=n)
    await hands.post("r", "r")
    worker = hands.start(lambda message, _: seen.append(message.body), only=frozenset({QueuePartition("q", 2)}))
    await until("the first is processed", lambda: seen)
    await until("nothing is held any more", lambda: not worker.held)
    assert seen == ["m2"]
    await hands.stop(worker)


async def test_a_stopped_worker_returns_messages_that_it_has_not_started(hands: Hands) -> None:
    seen: list[tuple[str, int]] = []
    go = asyncio.Event()

    async def first(message: Message, _: Any) -> None:
        seen.append((message.body, message.attempt))
        await go.wait()

    await hands.post("q", "a", "b")
    worker = hands.start(first)
    await until("the first is under way", lambda: seen)
    asyncio.get_running_loop().call_later(0.1, go.set)
    await hands.stop(worker)
    assert seen == [("a", 1)], "it may end, the next is not begun"
    follower = hands.start(first)
    await until("both are processed", lambda: len(seen) == 2)
    assert seen[1] == ("b", 1)
    await hands.stop(follower)


async def test_a_message_that_was_not_finished_in_time_counts_as_begun(hands: Hands) -> None:
    seen: list[tuple[str, int]] = []

    async def never(message: Message, _: Any) -> None:
        seen.append((message.body, message.attempt))
        await asyncio.Event().wait()

    await hands.post("q", "a")
    hands.pace = replace(QUICK, drain_s=0.3)
    worker = hands.start(never, ttl_s=1.0)
    await until("the job has begun", lambda: seen)
    await hands.stop(worker)  # once that time is over
    follower = hands.start(lambda message, _: seen.append((message.body, message.attempt)))
    await until("another has done it", lambda: len(seen) == 2)
    assert seen[1] == ("a", 2)
    await hands.stop(follower)


async def test_a_job_whose_lease_another_worker_has_taken_is_stopped_and_writes_nothing(hands: Hands) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def long(message: Message, _: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(message.body)
            raise

    await hands.post("q", "a")
    worker = hands.start(long, ttl_s=1.0)
    await begun.wait()
    (name,) = worker.held
    real = hands.board.now_ns
    hands.board.now_ns = lambda: real() + 5_000_000_000
    await until("the job was ended", lambda: ended)
    with pytest.raises(LeaseGone):
        await MessageLeasing(hands.source).fetch("q", MessageLease(name, 1, 1, 1.0, ""), 1)
    worker.abort.set()
    await hands.stop(worker)


@pytest.mark.parametrize("ending", [StopWorker("enough"), SystemExit(3)])
async def test_a_job_may_end_the_worker(hands: Hands, ending: BaseException) -> None:
    def job(message: Message, _: Any) -> None:
        raise ending

    await hands.post("q", "a")
    worker = hands.start(job)
    if isinstance(ending, SystemExit):
        with pytest.raises(JobExit) as found:
            await hands.ended(worker)
        assert found.value.status == 3
    else:
        await hands.ended(worker)


async def test_simultaneous_jobs_and_leases_are_limited(hands: Hands) -> None:
    now, most, done = 0, 0, 0

    async def job(_: Message, __: Any) -> None:
        nonlocal now, most, done
        now, most = now + 1, max(most, now + 1)
        await slow(0.02)
        now, done = now - 1, done + 1

    for n in range(1, 7):
        await hands.post("q", "x", "y", partitions=6, partition=n)
    worker = hands.start(job, concurrency=2, leases_max=2)
    await until("all is done, or too much is held", lambda: done == 12 or len(worker.held) > 2, every_s=0.01)
    assert most == 2 and done == 12
    await hands.stop(worker)
