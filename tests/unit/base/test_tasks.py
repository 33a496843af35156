"""Test that tasks end together, and no failure is lost."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.base.tasks import OwnThreads, end, once, run_to_end, run_until, unless, with_place
from headgate.testing.clock import DEADLINE_S
from tests.waiting import nothing_happens, until


async def forever(ended: list[str], name: str = "forever") -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def failing() -> None:
    raise OSError("the disk is gone")


async def stubborn() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise OSError("could not clean up") from None


async def test_a_failure_stops_the_rest_and_is_raised() -> None:
    ended: list[str] = []
    with pytest.raises(OSError, match="disk is gone"):
        await run_until(asyncio.Event(), forever(ended), failing())
    assert ended == ["forever"]


async def test_the_event_stops_them_all() -> None:
    stop, ended = asyncio.Event(), list[str]()
    asyncio.get_running_loop().call_soon(stop.set)
    await run_until(stop, forever(ended, "a"), forever(ended, "b"))
    assert ended == ["a", "b"]


async def test_a_failure_while_winding_down_is_raised() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(OSError, match="could not clean up"):
        await run_until(stop, stubborn())


async def test_cancelling_the_caller_cancels_them_all() -> None:
    ended: list[str] = []
    task = asyncio.ensure_future(run_until(asyncio.Event(), forever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["forever"]


class Winding:
    """Run a task that takes a while to end; `disturbed` counts how often it is cancelled meanwhile."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.ended, self.disturbed = asyncio.Event(), asyncio.Event(), False, 0

    async def run(self) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            while not self.may_end.is_set():
                try:
                    await self.may_end.wait()
                except asyncio.CancelledError:
                    self.disturbed += 1
            self.ended = True


CALLERS: dict[str, Callable[[Winding], Coroutine[Any, Any, object]]] = {
    "run_until": lambda work: run_until(asyncio.Event(), work.run(), failing_once(work.begun)),
    "run_until, cancelled": lambda work: run_until(asyncio.Event(), work.run()),
    "unless": lambda work: unless(work.begun, work.run()),
    "once": lambda work: once(work.run()),
    "end": lambda work: ended_when_begun(work),
}


async def failing_once(begun: asyncio.Event) -> None:
    await begun.wait()
    await failing()


async def ended_when_begun(work: Winding) -> None:
    task = asyncio.ensure_future(work.run())
    await work.begun.wait()
    await end(task)


@pytest.mark.parametrize("calling", CALLERS)
async def test_cleanup_is_not_disturbed_however_often_its_caller_is_cancelled(calling: str) -> None:
    work = Winding()
    task = asyncio.ensure_future(CALLERS[calling](work))
    await work.begun.wait()
    for _ in range(4):
        await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
    assert not task.done() and not work.disturbed
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended and not work.disturbed


async def test_a_thread_is_waited_for_however_often_the_caller_is_cancelled() -> None:
    may_end, ended = threading.Event(), list[bool]()
    waiting = asyncio.ensure_future(run_to_end(asyncio.to_thread(lambda: ended.append(may_end.wait(DEADLINE_S)))))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    asyncio.get_running_loop().call_later(0.01, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [True]


async def test_a_failure_while_the_caller_was_cancelled_is_not_reported_as_lost() -> None:
    contexts: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: contexts.append(context))
    task = asyncio.ensure_future(run_until(asyncio.Event(), stubborn()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    assert not contexts


async def test_work_that_takes_long_continues_without_its_slot() -> None:
    places, begun, go = asyncio.Semaphore(1), list[str](), asyncio.Event()

    async def work(name: str) -> str:
        begun.append(name)
        await go.wait()
        return name

    slow = asyncio.ensure_future(with_place(places, lambda: work("slow"), 0.01))
    next_one = asyncio.ensure_future(with_place(places, lambda: work("next"), DEADLINE_S))
    third = asyncio.ensure_future(with_place(places, lambda: work("third"), DEADLINE_S))
    await until("the next has begun", lambda: begun == ["slow", "next"])
    await nothing_happens(lambda: "third" in begun, 0.05)
    assert not slow.done()
    go.set()
    assert await asyncio.gather(slow, next_one, third) == ["slow", "next", "third"] and not places.locked()


@pytest.mark.parametrize("most_s", [0.01, DEADLINE_S])
async def test_work_with_a_place_ends_with_its_caller_and_gives_the_place_back(most_s: float) -> None:
    places, begun, ended = asyncio.Semaphore(1), list[str](), list[str]()

    def work() -> Coroutine[Any, Any, None]:
        begun.append("forever")
        return forever(ended)

    task = asyncio.ensure_future(with_place(places, work, most_s))
    await until("it has begun, and had its time", lambda: begun and places.locked() == (most_s > 1))
    await end(task)
    assert ended == ["forever"] and not places.locked()
    with pytest.raises(OSError, match="the disk is gone"):
        await with_place(places, failing, most_s)
    assert not places.locked()


async def test_a_call_in_a_thread_of_its_own_returns_its_result_or_raises_its_error() -> None:
    threads = OwnThreads(1)
    for _ in range(3):
        assert await threads.run(threading.current_thread, DEADLINE_S) is not threading.main_thread()
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0, DEADLINE_S)


async def test_a_call_that_does_not_end_in_time_is_abandoned_and_keeps_its_place_until_it_ends() -> None:
    threads, goes_on, ended = OwnThreads(1), threading.Event(), list[bool]()
    with pytest.raises(TimeoutError):
        await threads.run(lambda: ended.append(goes_on.wait(DEADLINE_S)), 0)
    with pytest.raises(TimeoutError, match="earlier calls"):
        await threads.run(lambda: None, DEADLINE_S)
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "patient":
            thread.join(DEADLINE_S)
    assert ended == [True]
    assert await threads.run(lambda: "free", DEADLINE_S) == "free"
