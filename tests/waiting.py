"""Wait in tests for what is to happen, and say what did not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from headgate.testing.deadline import DEADLINE_S

T = TypeVar("T")


async def until(what: str, holds: Callable[[], T], within_s: float = DEADLINE_S, every_s: float = 0.02) -> T:
    """Return the first true answer of `holds`; fail with `what` was waited for and the last answer."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not (found := holds()):
        assert loop.time() < end_s, _never(what, within_s, found)
        await asyncio.sleep(every_s)
    return found


def wait_for(what: str, holds: Callable[[], T], within_s: float = DEADLINE_S, every_s: float = 0.05) -> T:
    """Do as `until` does, where no loop runs."""
    end_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end_s, _never(what, within_s, found)
        time.sleep(every_s)
    return found


def _never(what: str, within_s: float, last: object) -> str:
    return f"not within {within_s} s: {what} (last: {last!r})"
