"""Run tasks that end together, and remember the subject of each for its log lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_SUBJECT: ContextVar[Mapping[str, str]] = ContextVar("subject", default={})  # noqa: B039 - never changed in place
"""Names (tenant, change, build, …) that the log lines of the current task carry."""


async def run_until(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Run `works` together until all have ended or `stop` is set; then cancel and await the rest.

    A failure cancels the rest and is raised alone, not as a group; cancelling the caller cancels them all.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    stopper = asyncio.ensure_future(stop.wait())
    try:
        pending = set(tasks)
        while pending and not stopper.done():
            done, _ = await asyncio.wait({*pending, stopper}, return_when=asyncio.FIRST_COMPLETED)
            # Raises the first failure while the others still run; `end` below stops them.
            for task in done - {stopper}:
                await task
            pending -= done
    finally:
        failures = await end(*tasks, stopper)
    for failure in failures:  # raised while the tasks were cancelled
        if isinstance(failure, Exception):
            raise failure


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if `stop` is set first; `work` is then cancelled, and has ended when this
    returns."""
    task, stopper = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopper}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await end(task, stopper)


async def once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. However often the caller is cancelled, `work` is cancelled once and has ended when
    this returns."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        await end(task)


async def with_place(places: asyncio.Semaphore, work: Callable[[], Coroutine[Any, Any, T]], max_s: float) -> T:
    """Return the result of `work`, which occupies one of `places` for at most `max_s` seconds. Work that takes longer
    continues without a place, so that it does not block others."""
    async with AsyncExitStack() as stack:
        async with places:
            task = asyncio.ensure_future(work())
            stack.push_async_callback(end, task)
            # Not `asyncio.timeout`, which would cancel the work.
            await asyncio.wait({task}, timeout=max_s)
        return await asyncio.shield(task)


class OwnThreads:
    """Run calls that another program may delay endlessly in threads of their own: in the threads that all share, a few
    of them would leave no room for anything else. The process does not wait for them when it ends."""

    def __init__(self, most: int) -> None:
        """Create them; at most `most` calls run at a time."""
        self._free = threading.Semaphore(most)

    async def run(self, call: Callable[[], T], max_s: float) -> T:
        """Return the result of the call. Raise TimeoutError after `max_s`, and immediately if too many earlier calls
        still run."""
        if not self._free.acquire(blocking=False):
            raise TimeoutError("earlier calls have not ended yet")
        result = Future[T]()
        # Otherwise the end of the wait would cancel it, and the thread could not set it any more.
        result.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="patient", daemon=True).start()
        async with asyncio.timeout(max_s):
            return await asyncio.wrap_future(result)


async def end(*tasks: asyncio.Future[Any]) -> list[BaseException]:
    """Cancel the futures once and wait until all have ended. Further cancellations of the caller do not reach them.
    Return their exceptions."""
    for task in tasks:
        task.cancel()
    return await _rest(*tasks)


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Like a thread, it is never cancelled: a cancelled caller waits for its end."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    finally:
        await _rest(running)


async def _rest(*tasks: asyncio.Future[Any]) -> list[BaseException]:
    """Wait until all have ended, then raise the caller's cancellation, if any. Return their exceptions."""
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            # Unlike `gather` or a plain `await`, this leaves the tasks alone when it is itself cancelled.
            await asyncio.wait(running)
        except asyncio.CancelledError as now:
            cancelled = now
    failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if cancelled is not None:
        raise cancelled
    return failures


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Add names to the log lines of the current task: tenant, pipeline, change, item, buildset, job, build. Tasks
    started inside the context inherit them."""
    token = _SUBJECT.set({**_SUBJECT.get(), **{name: value for name, value in names.items() if value}})
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def subject() -> Mapping[str, str]:
    return _SUBJECT.get()
