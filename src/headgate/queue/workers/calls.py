"""Call jobs and hooks: async ones in the loop, plain ones in threads, with time limits and in turn."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headgate.base.errors import HeadgateError
from headgate.base.tasks import end
from headgate.queueing.message import ERROR_MAX_CHARS, RetryLater, TimeLimit
from headgate.queueing.partitions import comes_next

log = logging.getLogger("headgate.queueing")

GRACE_S = 5.0
"""Seconds that an interrupted job may take to end."""
STUCK_MAX = 10
"""Limit on threads whose jobs never end; beyond it the worker ends, so that it is restarted."""
RETRY_AFTER_MAX_S = 30 * 86_400.0
"""Longest delay before another attempt that a lease server accepts."""

Hook = Callable[..., Any]  # functions of users


@dataclass(slots=True)
class StrandTurns:
    """Order the partitions of one strand: one message at a time, as `comes_next` decides."""

    count: int
    """Number of partitions in the strand."""
    patience_s: float
    now_ms: Callable[[], int]
    changed: Callable[[], None]
    """Called when a partition that waits may have got the turn."""
    _stirring: set[int] = field(default_factory=set)
    """Partitions that may have work but have not checked yet; those of lower priority wait for them."""
    _since_ms: list[int | None] = field(default_factory=list)
    """For each partition, when its waiting message was posted, in milliseconds since 1970; None: no message waits."""
    _busy: bool = False
    _passed: int = 0

    def __post_init__(self) -> None:
        self._since_ms = [None] * self.count

    def of(self, which: int) -> Rank:
        """Return the rank of one partition."""
        return Rank(self, which)

    def next(self) -> tuple[int, int] | None:
        """Return the partition that has the turn, and the new value of `passed`; None if none that waits has it."""
        found = comes_next(self._since_ms, self.now_ms(), self._passed, self.patience_s)
        if self._busy or found is None:
            return None
        first = next(which for which, since in enumerate(self._since_ms) if since is not None)
        # One of higher priority that has not looked yet may have a message; it takes one request to find out.
        return None if any(which < first for which in self._stirring) else found


@dataclass(frozen=True, slots=True)
class Rank:
    """Represent one partition in the order."""

    turns: StrandTurns
    which: int

    def stirs(self) -> None:
        """Record that the partition may have something to do."""
        self.turns._stirring.add(self.which)

    def rests(self) -> None:
        """Record that the partition has nothing to do now."""
        if self.which in self.turns._stirring:
            self.turns._stirring.discard(self.which)
            self.turns.changed()

    def waits(self, since_ms: int) -> None:
        """Record that the partition has a message, posted at `since_ms`, or now if the server's clock is ahead."""
        self.turns._since_ms[self.which] = min(since_ms, self.turns.now_ms())

    @property
    def is_next(self) -> bool:
        """Return whether the partition has the turn."""
        found = self.turns.next()
        return found is not None and found[0] == self.which

    def begins(self) -> None:
        """Record that the partition's message has a slot; the partition has used its turn."""
        found = self.turns.next()
        assert found is not None and found[0] == self.which, "only the partition that has the turn gets a slot"
        self.turns._since_ms[self.which], self.turns._busy, self.turns._passed = None, True, found[1]

    def ends(self) -> None:
        """Record that the slot is free again."""
        self.turns._busy = False

    def gives_up(self) -> None:
        """Record that the partition no longer waits."""
        self.turns._since_ms[self.which] = None


class JobExit(BaseException):
    """Report that a job or hook wanted the process to end: it raised SystemExit or KeyboardInterrupt."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a job ended the process with status {status}")
        self.status = status


class Stuck(HeadgateError):
    """Report that too many jobs cannot be stopped."""


def error_text(error: Exception) -> str:
    """Return the text that a lease server records of a failure."""
    # Messages of errors may hold lone surrogates, as from names of files; JSON cannot, and the server would refuse the
    # outcome.
    return f"{type(error).__name__}: {error}"[:ERROR_MAX_CHARS].encode(errors="replace").decode()


def retry_after_s(later: RetryLater) -> float:
    """Return the delay that the job wants, within the bounds of the server."""
    # The server refuses delays outside these bounds, and with them the outcome.
    wanted_s = later.after_s if isinstance(later.after_s, int | float) else 0.0
    return min(max(0.0, wanted_s), RETRY_AFTER_MAX_S)


@dataclass(frozen=True, slots=True)
class _SlotWaiter:
    """Wait for a slot."""

    plain: bool
    place: asyncio.Future[None]
    rank: Rank | None
    """Rank of the partition, which must have the turn; None: no turn is needed."""


class CallSlots:
    """Limit the calls that run concurrently, and among them those of plain functions. First come, first served, but a
    call that needs no thread does not wait for one, and a call whose partition does not have the turn is passed
    over."""

    def __init__(self, calls_max: int, threads: int) -> None:
        self._calls, self._threads = calls_max, threads
        self._waiting: deque[_SlotWaiter] = deque()

    @asynccontextmanager
    async def one(
        self, plain: bool, unless: asyncio.Event | None = None, rank: Rank | None = None
    ) -> AsyncIterator[bool]:
        """Yield True while holding a slot, or False if `unless` was set before one was free."""
        place = asyncio.get_running_loop().create_future()
        waiting = _SlotWaiter(plain, place, rank)
        self._waiting.append(waiting)
        self.grant()
        try:
            if not place.done():
                await _either(place, unless)
            yield place.done()
        finally:
            # Granted, perhaps in the very moment in which the caller was cancelled: the slot must go back either way.
            if place.done() and not place.cancelled():
                self._calls, self._threads = self._calls + 1, self._threads + plain
                if rank is not None:
                    rank.ends()
            else:
                self._waiting.remove(waiting)
                if rank is not None:
                    rank.gives_up()
            self.grant()

    def grant(self) -> None:
        """Give free slots to calls that wait."""
        left: deque[_SlotWaiter] = deque()
        while self._waiting and self._calls:
            one = self._waiting.popleft()
            if (one.plain and not self._threads) or (one.rank is not None and not one.rank.is_next):
                left.append(one)
                continue
            self._calls, self._threads = self._calls - 1, self._threads - one.plain
            if one.rank is not None:
                one.rank.begins()
            one.place.set_result(None)
        # Those passed over stay in front, in their order.
        self._waiting.extendleft(reversed(left))


async def _either(place: asyncio.Future[None], unless: asyncio.Event | None) -> None:
    """Wait until either is done; cancelling the caller cancels neither."""
    stopper = asyncio.ensure_future((unless or asyncio.Event()).wait())
    waited: set[asyncio.Future[Any]] = {place, stopper}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(stopper)


class JobCaller:
    """Call jobs: `jobs_max` concurrently, of which `threads` may be plain functions."""

    def __init__(self, jobs_max: int, threads: int) -> None:
        self.places = CallSlots(jobs_max, threads)
        self._idle: list[_Thread] = []
        self._stuck = 0
        self.running = 0

    def place(
        self, hook: Hook, unless: asyncio.Event | None = None, rank: Rank | None = None
    ) -> AbstractAsyncContextManager[bool]:
        """Hold a slot for one `run` inside the context. Yield False if `unless` was set before there was one."""
        return self.places.one(not _is_async(hook), unless, rank)

    async def call(self, hook: Hook, *arguments: Any, limit_s: float = 0.0) -> Any:  # arguments of users' functions
        """Call like `run`, once there is a slot."""
        async with self.place(hook):
            return await self.run(hook, *arguments, limit_s=limit_s)

    async def run(self, hook: Hook, *arguments: Any, limit_s: float = 0.0) -> Any:  # arguments of users' functions
        """Call the hook in a slot that the caller holds, and return its answer. Raise what it raises, TimeLimit,
        JobExit or Stuck."""
        self.running += 1
        try:
            if _is_async(hook):
                return await _awaited(hook(*arguments), limit_s)
            answer = await self._in_thread(hook, arguments, limit_s)
            # A plain function may return a coroutine, as a lambda around an async one does.
            return await _awaited(answer, limit_s) if inspect.isawaitable(answer) else answer
        # Raised in a task, these would end the loop immediately, before partitions are released.
        except (SystemExit, KeyboardInterrupt) as end:
            # As Python and shells do it: no code is 0, a message is 1, and an interrupt is 128 and the number of
            # SIGINT.
            code = end.code if isinstance(end, SystemExit) else 130
            raise JobExit(code if isinstance(code, int) else 0 if code is None else 1) from end
        finally:
            self.running -= 1

    def close(self) -> None:
        for thread in self._idle:
            thread.end()

    async def _in_thread(self, hook: Hook, arguments: tuple[Any, ...], limit_s: float) -> Any:  # any result of the hook
        thread = self._idle.pop() if self._idle else _Thread()
        done = thread.start(hook, arguments)
        try:
            await asyncio.wait({done}, timeout=limit_s or None)
        except asyncio.CancelledError:
            thread.interrupt()
            raise
        if not done.done():
            await self._interrupt(thread, done)
        else:
            # Only a thread that was never interrupted: the exception could still arrive during the next call.
            self._idle.append(thread)
        answer, error = done.result()
        if error is not None:
            raise error
        return answer

    async def _interrupt(self, thread: _Thread, done: asyncio.Future[Any]) -> None:
        """Stop the call by interrupting it; it has then ended, at least for us. Raise Stuck."""
        thread.interrupt()
        await asyncio.wait({done}, timeout=GRACE_S)
        if done.done():
            return
        self._stuck += 1
        log.error("a job did not end even when interrupted; abandoning its thread (%s so far)", self._stuck)
        if self._stuck > STUCK_MAX:
            raise Stuck(f"{self._stuck} jobs never ended; restart the worker")
        done.set_result((None, TimeLimit("it did not end in time, and could not be interrupted")))


def _is_async(hook: Hook) -> bool:
    # The second test is for objects with an async `__call__`.
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


async def _awaited(work: Any, limit_s: float) -> Any:  # any result of the hook
    """Await a job. A job that cancels itself has failed and was not cancelled."""
    try:
        if not limit_s:
            return await work
        async with asyncio.timeout(limit_s) as limit:
            return await work
    except TimeoutError as error:
        if limit_s and limit.expired():
            raise TimeLimit(f"it took longer than {limit_s:g} s") from error
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        # Python counts requests to cancel a task. Without one, the job itself raised the error.
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the job cancelled itself") from None


_Call = tuple[Hook, tuple[Any, ...], asyncio.Future[Any]]


class _Thread:
    """Run one call after another in a thread. An interrupted thread ends after its call, because the interruption
    may still arrive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Not a ThreadPoolExecutor, which joins its threads when the process ends: a job that never ends would prevent
        # that.
        self._thread = threading.Thread(target=self._work, name="job", daemon=True)
        self._thread.start()

    def start(self, hook: Hook, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Start a call whose future gives (answer, None) or (None, error) once it has ended."""
        done = self._loop.create_future()
        self._calls.put((hook, arguments, done))
        return done

    def interrupt(self) -> None:
        """Raise TimeLimit in the running call, as soon as it executes Python code again."""
        self._calls.put(None)
        assert self._thread.ident is not None, "it was started"
        # The end was queued first, so a thread whose call is over by now leaves, with the exception or without.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(TimeLimit))

    def end(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        call: _Call | None = None
        try:
            while (call := self._calls.get()) is not None:
                hook, arguments, done = call
                try:
                    result: tuple[Any, BaseException | None] = (hook(*arguments), None)
                except BaseException as error:  # passed on to the caller
                    result = (None, error)
                self._tell(done, result)
        except TimeLimit as late:  # the interruption arrived just after the call had ended
            if call is not None:
                self._tell(call[2], (None, late))

    def _tell(self, done: asyncio.Future[Any], result: tuple[Any, BaseException | None]) -> None:
        # A job that could not be stopped may end after its worker.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, done, result)


def _settle(done: asyncio.Future[Any], result: tuple[Any, BaseException | None]) -> None:
    if not done.done():
        done.set_result(result)
