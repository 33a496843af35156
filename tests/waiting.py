"""Wait in tests for an event, and report what did not happen."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.testing.clock import DEADLINE_S

T = TypeVar("T")


async def until(
    what: str, holds: Callable[[], T | Awaitable[T]], within_s: float = DEADLINE_S, every_s: float = 0.02
) -> T:
    """Return the first true answer of `holds`, which may be awaitable; fail with `what` was waited for and the last
    answer."""
    found: T | None = None
    try:
        async with asyncio.timeout(within_s) as limit:
            while not (found := await _answer(holds)):  # noqa: ASYNC110 - events are for what tells of itself
                await asyncio.sleep(every_s)
    except TimeoutError:
        if limit.expired():
            raise AssertionError(_never(what, within_s, found)) from None
        raise
    return found


def wait_for(what: str, holds: Callable[[], T], within_s: float = DEADLINE_S, every_s: float = 0.05) -> T:
    """Wait like `until`, without a loop."""
    end_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end_s, _never(what, within_s, found)
        time.sleep(every_s)
    return found


async def nothing_happens(happened: Callable[[], T | Awaitable[T]], for_s: float, every_s: float = 0.02) -> None:
    """Fail as soon as `happened` is true. Use it only if nothing shows that the moment has passed: `for_s` is lost
    whenever nothing is wrong."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_s
    while True:
        found = await _answer(happened)
        assert not found, f"it happened: {found!r}"
        if (left_s := end_s - loop.time()) <= 0:
            return
        await asyncio.sleep(min(every_s, left_s))


async def slow(seconds: float) -> None:
    """Take this long on purpose, to imitate something slow, or a lasting fault. Never wait for an event this way."""
    await asyncio.sleep(seconds)


def any_moment(chance: random.Random, within_s: float) -> None:
    """Let an arbitrary moment pass before a fault that may come at any time."""
    time.sleep(chance.uniform(0, within_s))


async def _answer(question: Callable[[], T | Awaitable[T]]) -> T:
    answer = question()
    return await answer if inspect.isawaitable(answer) else answer


def _never(what: str, within_s: float, last: object) -> str:
    return f"not within {within_s} s: {what} (last: {last!r})"
