"""Wait in tests: the one place where they may sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headgate.testing.deadline import DEADLINE_S

T = TypeVar("T")


async def until(what: str, holds: Callable[[], T], within_s: float = DEADLINE_S, every_s: float = 0.02) -> T:
    """Return the first true answer of `holds`; fail with `what` was waited for and the last answer."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not (found := holds()):
        assert loop.time() < end_s, f"not within {within_s} s: {what} (last: {found!r})"
        await asyncio.sleep(every_s)
    return found
