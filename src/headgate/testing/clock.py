"""Run in virtual time, where hours pass in milliseconds, and limit how long tests wait in real time."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple, Unpack

DEADLINE_S = 180.0
"""Deadline for events that normally take a moment. Only failing tests reach it, on the busiest of machines, too."""
THREAD_WAIT_MAX_S = 60.0
"""Real time that an idle loop waits for a thread to deliver a result."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Call(asyncio.TimerHandle):
    """Represent a scheduled callback, without the data that asyncio keeps for its debug mode."""

    __slots__ = ("args", "call", "due_s", "inside", "off")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...], inside: Context, due_s: float) -> None:
        self.call, self.args, self.inside, self.due_s, self.off = call, args, inside, due_s, False

    def __repr__(self) -> str:
        return f"<{self.call} at {self.due_s} s>"

    def cancel(self) -> None:
        self.off, self.args = True, ()

    def cancelled(self) -> bool:
        return self.off

    def when(self) -> float:
        return self.due_s


class VirtualLoop(asyncio.BaseEventLoop):
    """Run callbacks in virtual time.

    The loop knows neither files nor signals, so it asks the system nothing: it needs only a queue and a heap.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._soon: deque[_Call] = deque()
        self._later: list[tuple[float, int, _Call]] = []
        self._count = 0
        """Number of timers so far: timers of one moment fire in the order in which they were set."""
        self._woken = threading.Event()

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = _Call(callback, args, context if context is not None else copy_context(), self._now_s)
        self._soon.append(call)
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = self.call_soon(callback, *args, context=context)
        self._woken.set()
        return call

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(callback, args, context if context is not None else copy_context(), when)
        self._count += 1
        heappush(self._later, (when, self._count, call))
        return call

    def _run_once(self) -> None:
        """Run the callbacks that were ready when this began; callbacks that they schedule run the next time."""
        soon, later = self._soon, self._later
        # A cancelled timer must not move the time.
        while later and later[0][2].off:
            heappop(later)
        if not soon:
            self._jump()
        while later and later[0][0] <= self._now_s:
            soon.append(heappop(later)[2])
        for _ in range(len(soon)):
            call = soon.popleft()
            if call.off:
                continue
            try:
                call.inside.run(call.call, *call.args)
            except (SystemExit, KeyboardInterrupt):
                # As in asyncio, these end the loop.
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"{call.call} failed", "exception": error, "handle": call})

    def _jump(self) -> None:
        """Move to the next timer; without one, wait for a thread, the only possible source of work."""
        if self._later:
            # A timer may have been set for a time that has passed.
            self._now_s = max(self._now_s, self._later[0][0])
        elif not self._woken.wait(THREAD_WAIT_MAX_S):
            raise RuntimeError("nothing is left to do, and no timer is set: all tasks wait forever")
        self._woken.clear()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run like asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def tidily(runs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of the runs. Garbage collection, which would take a sixth of a run's time, is off during a
    run; after each run, only new objects are collected: so nothing outside may keep references to a run's objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for run in runs:
            yield run()
            gc.collect(0)
    finally:
        if was_enabled:
            gc.enable()
