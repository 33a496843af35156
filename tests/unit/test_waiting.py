"""Test how tests wait."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from headgate.testing.clock import run_virtual
from tests.waiting import any_moment, nothing_happens, slow, until, wait_for


async def test_the_first_true_answer_is_returned() -> None:
    answers = iter([[], [], ["a"], ["b"]])
    assert await until("there is one", lambda: next(answers), every_s=0) == ["a"]
    assert await asyncio.to_thread(wait_for, "there is another", lambda: next(answers), every_s=0) == ["b"]


async def test_an_answer_may_have_to_be_awaited() -> None:
    answers = iter([[], [], ["a"], [], ["b"]])

    async def answer() -> list[str]:
        await asyncio.sleep(0)
        return next(answers)

    assert await until("there is one", answer, every_s=0) == ["a"]
    with pytest.raises(AssertionError, match="'b'"):
        await nothing_happens(answer, for_s=60, every_s=0)


async def test_other_tasks_run_while_a_test_waits() -> None:
    done: list[str] = []
    asyncio.get_running_loop().call_soon(done.append, "x")
    assert await until("the other is done", lambda: done) == ["x"]


async def test_a_condition_that_already_holds_needs_no_time() -> None:
    assert await until("it holds", lambda: 1, within_s=0) == wait_for("it holds", lambda: 1, within_s=0) == 1


async def test_a_failed_wait_reports_its_condition_and_the_last_value() -> None:
    text = r"not within 0\.01 s: two have come \(last: \[\]\)"
    with pytest.raises(AssertionError, match=text):
        await until("two have come", lambda: [], within_s=0.01, every_s=0.005)
    with pytest.raises(AssertionError, match=text):
        wait_for("two have come", lambda: [], within_s=0.01, every_s=0.005)


async def test_an_answer_that_does_not_come_ends_the_wait_and_an_error_in_it_is_its_own() -> None:
    async def silent() -> None:
        await asyncio.Event().wait()

    async def failing() -> None:
        raise TimeoutError("its own")

    with pytest.raises(AssertionError, match="it is told"):
        await until("it is told", silent, within_s=0.01)
    with pytest.raises(TimeoutError, match="its own"):
        await until("it is told", failing)


def test_nothing_happens_checks_until_the_time_is_over() -> None:
    happened: list[str] = []

    async def main(*, at_s: float) -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(at_s, happened.append, "x")
        await nothing_happens(lambda: happened, for_s=5)
        return loop.time()

    assert run_virtual(main(at_s=5.1)) == 5
    with pytest.raises(AssertionError, match=r"it happened: \['x'\]"):
        run_virtual(main(at_s=4.9))


def test_slow_takes_the_given_time() -> None:
    async def main() -> Any:
        await slow(3)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3


def test_random_moments_are_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = list[float]()
    monkeypatch.setattr(time, "sleep", took_s.append)
    for seed in range(50):
        any_moment(random.Random(seed), within_s=0.3)
    assert 0 <= min(took_s) < 0.05 and 0.25 < max(took_s) <= 0.3
