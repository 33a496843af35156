"""Run lengthy tasks concurrently: one per name at a time, a limited number per connection, each when it is due."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.base.tasks import end
from headgate.ports.cloud import CloudUnavailable

ERRANDS_MAX = 50
"""Limit of errands under way for one connection, so that a slow cloud delays nobody else."""
AWAY_MIN_S = 1.0
Work = Coroutine[Any, Any, float | None]
"""Returns after how many seconds the errand is due again."""


class Errands:
    """Run tasks concurrently until `end`."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[float | None]] = {}
        self._due: dict[str, float] = {}
        """Errand -> time from which it may start again, in the loop's time."""
        self._under_way = Counter[str]()
        """Connection -> number of errands under way."""

    def begin(self, key: str, connection: str, work: Callable[[], Work]) -> None:
        """Start the errand unless it is under way or not due, or the connection has too many."""
        due = self._due.get(key, 0.0) <= asyncio.get_running_loop().time()
        if due and key not in self._tasks and self._under_way[connection] < ERRANDS_MAX:
            self._under_way[connection] += 1
            self._tasks[key] = asyncio.ensure_future(self._run(connection, work))

    async def _run(self, connection: str, work: Callable[[], Work]) -> float | None:
        try:
            return await work()
        except CloudUnavailable as away:
            return max(AWAY_MIN_S, away.after_s)
        finally:
            self._under_way[connection] -= 1

    def ended(self) -> None:
        """Collect the errands that have ended. Raise the error of one that failed."""
        for key in [key for key, task in self._tasks.items() if task.done()]:
            pause_s = self._tasks.pop(key).result()
            # The pause counts from the end of an errand, so a slow cloud is not asked without a break.
            self._due[key] = asyncio.get_running_loop().time() + (pause_s or 0.0)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Forget errands that nobody starts again."""
        for key in [key for key in self._due if gone(key)]:
            del self._due[key]

    async def wait(self, moved: asyncio.Future[int], ends_s: list[float], limit_s: float) -> None:
        """Wait for `moved`, for the end of an errand, for one that becomes due, or until `ends_s` (in the loop's
        time)."""
        now_s = asyncio.get_running_loop().time()
        due = [due_s - now_s for due_s in (*self._due.values(), *ends_s) if due_s > now_s]
        waits: list[asyncio.Future[Any]] = [moved, *self._tasks.values()]
        try:
            await asyncio.wait(waits, timeout=min([limit_s, *due]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Only this future belongs to the wait; the errands go on.
            await end(moved)

    async def end(self) -> None:
        """Cancel all of them, and wait for that."""
        await end(*self._tasks.values())
