"""Tasks with parents: they start together, the first failure stops the rest, and an event stops them all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_until(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Runs `works` together until all have ended or `stop` is set; then what still runs is cancelled and awaited.

    A failure cancels the rest and is raised alone; cancelling the caller cancels them all.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    stopper = asyncio.ensure_future(stop.wait())
    try:
        pending = set(tasks)
        while pending and not stopper.done():
            done, _ = await asyncio.wait({*pending, stopper}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopper}:
                await task
            pending -= done
    finally:
        for task in (*tasks, stopper):
            task.cancel()
        ends = await asyncio.gather(*tasks, stopper, return_exceptions=True)
    for end in ends:  # what failed while it wound down
        if isinstance(end, Exception):
            raise end


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` answers; None when `stop` was set first: then it was cancelled and has ended."""
    task, stopper = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopper}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopper.cancel()
        await asyncio.gather(task, stopper, return_exceptions=True)
