"""Test `headgate.queue`: posting and processing from Python programs, against a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.queue import (
    JobExit,
    Message,
    PostRefused,
    Queues,
    Reject,
    RetryLater,
    SourceDown,
    StopWorker,
    Stuck,
    SyncQueues,
    Worker,
    job,
    tried,
)
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient, MessageLeasing
from headgate.queue.messages.database import Database
from headgate.queue.messages.holders import DEFAULT_GROUP
from headgate.queue.messages.records import NoQueue
from headgate.queueing.ids import START
from headgate.queueing.message import dead_letter
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving
from tests.waiting import slow, until


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[MessageBoard]:
    opened = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    yield opened
    await opened.close()


@pytest.fixture
async def url(board: MessageBoard) -> AsyncIterator[str]:
    async with serving(board) as found:
        yield f"{found}/v1/{APP}/"


async def bodies(board: MessageBoard, queue: str, partition: int = 1) -> list[str]:
    of = await board.queue(APP, queue)
    return [one.body for one in await board.read("any", of, partition, START, limit=100)]


@asynccontextmanager
async def working(*jobs: Any, url: str, **more: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.ensure_future(Worker(url, KEY, jobs, **more).run(stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await running


async def test_posted_from_a_loop_and_from_a_thread(board: MessageBoard, url: str) -> None:
    async with Queues(url, KEY) as queues:
        await queues.post("q", "text")
        await queues.post("q", {"v": 1}, once="order 1")
        await queues.post("q", {"v": 1}, once="order 1")

    def plain() -> None:
        with SyncQueues(url, KEY) as queues:
            queues.post("q", [1, "zwei"])

    await asyncio.to_thread(plain)
    assert await bodies(board, "q") == ["text", '{"v":1}', '[1,"zwei"]']


async def test_messages_of_one_key_are_in_one_partition(board: MessageBoard, url: str) -> None:
    async with Queues(url, KEY) as queues:
        await queues.create("q", 5)
        for n in range(10):
            await queues.post("q", str(n), key="customer größe")
    found = [await bodies(board, "q", n) for n in range(1, 6)]
    assert sorted(map(len, found)) == [0, 0, 0, 0, 10]


async def test_messages_that_cannot_be_posted_are_reported(url: str) -> None:
    async with Queues(url, KEY) as queues:
        with pytest.raises(PostRefused):
            await queues.post("q", "")
        with pytest.raises(TypeError):
            await queues.post("q", object())
    with pytest.raises(RuntimeError, match="not open"):
        await queues.post("q", "x")
    with pytest.raises(RuntimeError, match="not open"):
        SyncQueues(url, KEY).post("q", "x")
    async with Queues(url, "wrong") as queues:
        with pytest.raises(SourceDown, match="401"):
            await queues.post("q", "x")


@pytest.mark.parametrize("error", [ValueError("a name \ud800"), RetryLater(1e9), RetryLater(-1.0)])
async def test_any_error_of_a_job_is_recorded(board: MessageBoard, url: str, error: Exception) -> None:
    @job("q")
    def fails(message: Message, _: None) -> None:
        raise error

    @job("last", attempts=1)
    def last(message: Message, _: None) -> None:
        raise error

    async with Queues(url, KEY) as queues:
        await queues.post("q", "x")
        await queues.post("last", "y")

    async def recorded() -> bool:
        read = lambda database, _: database.execute("select id from tried where failed > 0")  # noqa: E731
        # A message that is retried at once may have had all its attempts: then it is no longer in the list.
        given_up = [body for _, body in map(dead_letter, await bodies(board, DEAD_LETTERS))]
        return "y" in given_up and ("x" in given_up or bool(await board.look("any", read)))

    async with working(fails, last, url=url):
        await until("both failures are recorded", lambda: _unless_absent(recorded))


async def _unless_absent(recorded: Callable[[], Any]) -> bool:
    try:
        return await recorded()
    except NoQueue:
        return False


async def test_plain_and_async_jobs_in_order_with_retries_and_dead_letters(board: MessageBoard, url: str) -> None:
    seen: list[tuple[str, int]] = []
    threads: set[str] = set()

    @job("plain")
    def plain(message: Message, context: str) -> None:
        threads.add(threading.current_thread().name)
        seen.append((context + message.body, message.attempt))

    @job("later", attempts=2)
    async def later(message: Message, context: str) -> None:
        seen.append((message.body, message.attempt))
        if message.body == "bad":
            raise Reject("never")
        if message.attempt == 1:
            raise RetryLater(0.0)

    async with Queues(url, KEY) as queues:
        for n in range(3):
            await queues.post("plain", str(n))
        await queues.post("later", "bad")
        await queues.post("later", "again")
    async with working(plain, later, url=url, context="c"):
        await until("all are processed", lambda: len(seen) == 6)
    assert [one for one in seen if one[0].startswith("c")] == [("c0", 1), ("c1", 1), ("c2", 1)]
    assert [one for one in seen if not one[0].startswith("c")] == [("bad", 1), ("again", 1), ("again", 2)]
    assert threads == {"job"}
    ((letter, body),) = [dead_letter(one) for one in await bodies(board, DEAD_LETTERS)]
    assert (letter.error, body) == ("Reject: never", "bad")


async def test_on_a_signal_to_stop_the_job_ends_and_another_worker_takes_the_rest(url: str) -> None:
    began, go_on, seen = asyncio.Event(), asyncio.Event(), list[tuple[str, int]]()

    @job("q")
    async def slow(message: Message, context: None) -> None:
        seen.append((message.body, message.attempt))
        began.set()
        await go_on.wait()

    async with Queues(url, KEY) as queues:
        await queues.post("q", "a")
        await queues.post("q", "b")
    stop = asyncio.Event()
    first = asyncio.ensure_future(Worker(url, KEY, [slow]).run(stop))
    await began.wait()
    stop.set()
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        await first
    assert seen == [("a", 1)]
    async with working(slow, url=url):
        await until("both are processed", lambda: len(seen) == 2)
    assert seen == [("a", 1), ("b", 1)], "given back: not begun"


@pytest.mark.long
async def test_a_long_job_keeps_its_lease(board: MessageBoard, url: str) -> None:
    """The test controls the server's clock, which passes the first end of the lease; the worker's clock renews it."""
    seen, begun, may_end, now_ns = list[int](), asyncio.Event(), asyncio.Event(), time.time_ns()
    board.now_ns = lambda: now_ns

    @job("q")
    async def long(message: Message, context: None) -> None:
        seen.append(message.attempt)
        begun.set()
        await may_end.wait()
        seen.append(0)

    def end_ms(database: Database) -> int:
        ((found,),) = database.execute("select expires_ms from lease where token != ''")
        return int(found)

    async with Queues(url, KEY) as queues:
        await queues.post("q", "a")
    async with working(long, url=url, ttl_s=10.0), working(long, url=url, ttl_s=10.0):
        await until("it is under way", begun.is_set)
        first_ms = await board._read(end_ms)
        now_ns += 6 * 10**9
        await until("its lease is renewed", lambda: _later(board, end_ms, first_ms))
        now_ns += 6 * 10**9
        assert now_ns > first_ms * 10**6
        async with MessageClient.open([url], KEY) as client:
            assert await MessageLeasing(client).take("q", "another", DEFAULT_GROUP, 10.0) is None
        may_end.set()
        await until("the long job has ended", lambda: 0 in seen)
    assert seen == [1, 0], "nobody else took it meanwhile"


async def _later(board: MessageBoard, read_ms: Callable[[Database], int], than_ms: int) -> bool:
    return await board._read(read_ms) > than_ms


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("ending", [StopWorker("enough"), SystemExit(3), Stuck("eleven never ended")])
async def test_a_job_that_ends_the_worker_has_not_failed(board: MessageBoard, url: str, ending: BaseException) -> None:
    """Other jobs finish and report meanwhile; the message comes again."""
    busy, seen, done = asyncio.Event(), list[int](), list[str]()

    @job("ends", attempts=1)
    async def ends(message: Message, context: None) -> None:
        await busy.wait()
        seen.append(message.attempt)
        if len(seen) == 1:
            raise ending

    @job("slow")
    async def other(message: Message, context: None) -> None:
        busy.set()
        await until("the other job has begun", lambda: bool(seen))
        await slow(0.05)
        done.append(message.body)

    async with Queues(url, KEY) as queues:
        await queues.post("ends", "a")
        await queues.post("slow", "b")
    worker = Worker(url, KEY, [ends, other], ttl_s=3.0)
    async with asyncio.timeout(DEADLINE_S):
        if isinstance(ending, StopWorker):
            await worker.run(asyncio.Event())
        else:
            with pytest.raises(JobExit if isinstance(ending, SystemExit) else Stuck):
                await worker.run(asyncio.Event())
    assert (seen, done) == ([1], ["b"])
    async with working(ends, other, url=url):
        await until("both are processed", lambda: len(seen) == 2)
    assert (seen, done) == ([1, 2], ["b"]), "with attempts = 1 a failure would have made it a dead letter"
    with pytest.raises(NoQueue):
        await board.queue(APP, DEAD_LETTERS)


async def test_jobs_are_tried_without_a_server() -> None:
    @job("q", time_limit_s=0.05)
    async def work(message: Message, context: str) -> None:
        match message.json()["do"]:
            case "hang":
                await asyncio.Event().wait()
            case "reject":
                raise Reject("no")
            case "later":
                raise RetryLater(5)
            case "stop":
                raise StopWorker
        assert context == "c" and message.attempt == 2

    for do, outcome in (
        ("fine", "done"), ("hang", "failed"), ("reject", "rejected"), ("later", "later"), ("stop", "stop"),
    ):  # fmt: skip
        assert (await tried(work, {"do": do}, attempt=2, context="c")).outcome == outcome
    assert (await tried(work, {"do": "later"})).retry_after_s == 5
    assert (await tried(lambda message, context: 1 / 0, "x")).outcome == "failed"
