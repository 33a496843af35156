"""Test how tests wait."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until, wait_for


async def test_the_first_true_answer_is_returned() -> None:
    answers = iter([[], [], ["a"], ["b"]])
    assert await until("there is one", lambda: next(answers), every_s=0) == ["a"]
    assert await asyncio.to_thread(wait_for, "there is another", lambda: next(answers), every_s=0) == ["b"]


async def test_others_go_on_meanwhile() -> None:
    done: list[str] = []
    asyncio.get_running_loop().call_soon(done.append, "x")
    assert await until("the other is done", lambda: done) == ["x"]


async def test_what_is_true_at_once_needs_no_time() -> None:
    assert await until("it holds", lambda: 1, within_s=0) == wait_for("it holds", lambda: 1, within_s=0) == 1


async def test_who_waits_in_vain_is_told_for_what_and_what_was_there() -> None:
    said = r"not within 0\.01 s: two have come \(last: \[\]\)"
    with pytest.raises(AssertionError, match=said):
        await until("two have come", lambda: [], within_s=0.01, every_s=0.005)
    with pytest.raises(AssertionError, match=said):
        wait_for("two have come", lambda: [], within_s=0.01, every_s=0.005)
