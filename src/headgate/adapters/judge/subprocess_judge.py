"""Judge proposals in a separate process, so that none of them can delay the scheduler.

The process starts when it is first needed.  It receives the parts of a layout that it does not know yet, then the
proposal.  It judges a few proposals at a time, at most one of each project; the project that was served longest ago
comes first.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import msgspec

from headgate.adapters.judge import process as court
from headgate.base.tasks import end
from headgate.config.budgets import sized
from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts, refusal

log = logging.getLogger("headgate.judging")

PLACES_MAX = 2
"""Number of proposals that are judged concurrently."""
TRIES_MAX = 3
"""Limit on the attempts at a proposal if the process ends during each of them."""
END_MAX_S = 5.0
"""Time for the process to end before it is killed."""
TOO_LARGE = "reading and linking this takes more than {most} ([scheduler] {option}); split it up, or remove repetitions"


_MAIN = f"from {court.__name__} import main; main()"


class JudgeLimits(NamedTuple):
    """Limit the judgement of one proposal."""

    time_max_s: int = 20
    """CPU time in seconds."""
    memory_max_bytes: int = 1_000_000_000
    """Memory besides that of the layout itself."""


class _ProcessEnded(Exception):
    """Report that the process has ended."""


@dataclass(slots=True, eq=False)
class _JudgeProcess:
    """Hold the process, and the layouts that were sent to it."""

    process: asyncio.subprocess.Process
    listening: asyncio.Future[None] | None = None
    waiting: dict[int, asyncio.Future[tuple[str, bytes]]] = field(default_factory=dict)
    known: dict[str, TenantLayouts] = field(default_factory=dict)
    """Tenant -> the layouts that the process last received."""


class ApartJudge:
    """Implement `ports.judge.Judge` with a separate process. Call `close` at the end."""

    def __init__(self, limits: JudgeLimits | None = None) -> None:
        self._limits = limits or JudgeLimits()
        self._running: _JudgeProcess | None = None
        self._starting = asyncio.Lock()
        self._numbers = count(1)
        self._busy: dict[str, int] = {}
        """Project whose proposal is being judged -> sequence number of its turn."""
        self._served: dict[str, int] = {}
        self._line: list[tuple[str, asyncio.Future[None]]] = []

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        if running.process.stdin is not None:
            running.process.stdin.close()
        try:
            async with asyncio.timeout(END_MAX_S):
                await running.process.wait()
        except TimeoutError:
            running.process.kill()
            await running.process.wait()
        if running.listening is not None:
            await end(running.listening)

    async def judged(self, layouts: TenantLayouts, request: LayoutRequest) -> Judgement:
        """Judge a proposal in the process; see `ports.judge.Judge`."""
        await self._enter(request.project)
        try:
            for _ in range(TRIES_MAX):
                try:
                    return self._judgement(request, *await self._ask(layouts, request))
                except _ProcessEnded:
                    log.warning("the process that judges proposals has ended; starting it again")
            return refusal(request, f"the process that reads this configuration has crashed on it {TRIES_MAX} times")
        finally:
            self._leave(request.project)

    def _judgement(self, request: LayoutRequest, how: str, body: bytes) -> Judgement:
        limits = self._limits
        if how == court.OK:
            return msgspec.json.decode(body, type=Judgement)
        if how == court.TIME:
            return refusal(request, TOO_LARGE.format(most=f"{limits.time_max_s} s", option="config_reading_max_s"))
        if how == court.MEMORY:
            most = sized(limits.memory_max_bytes)
            return refusal(request, TOO_LARGE.format(most=most, option="config_reading_max_bytes"))
        return refusal(request, "this configuration cannot be judged; see the log of the scheduler for the reason")

    # --- turns

    async def _enter(self, project: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((project, waiter))
        self._next()
        try:
            await waiter
        except asyncio.CancelledError:
            # If this caller has just received its turn, it must pass it on, or the place would be lost forever.
            if waiter.done() and not waiter.cancelled():
                self._leave(project)
            else:
                self._line.remove((project, waiter))
            raise

    def _next(self) -> None:
        while len(self._busy) < PLACES_MAX:
            free = [one for one in self._line if one[0] not in self._busy and not one[1].done()]
            if not free:
                return
            # Another project waits for at most one proposal of a project that has many.
            chosen = min(free, key=lambda one: self._served.get(one[0], 0))
            self._line.remove(chosen)
            self._busy[chosen[0]] = self._served[chosen[0]] = next(self._numbers)
            chosen[1].set_result(None)

    def _leave(self, project: str) -> None:
        del self._busy[project]
        self._next()

    # --- the process

    async def _ask(self, layouts: TenantLayouts, request: LayoutRequest) -> tuple[str, bytes]:
        """Send a proposal to the process, and return the outcome and the answer. Raise _ProcessEnded."""
        running = await self._started()
        number, limits = next(self._numbers), self._limits
        tenant = layouts.tenant
        messages = _news(running.known.get(tenant.name), layouts)
        messages.append(court.Ask(number, tenant.name, msgspec.json.encode(request), *limits))
        # Pickled before `known` is set, because it may fail: layouts that were not sent must not count as known.
        sent = b"".join(court.frame(pickle.dumps(one)) for one in messages)
        # No await between `_news` and the write: the next proposal must not rely on layouts that were not sent yet.
        running.known[tenant.name] = layouts
        answer: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
        running.waiting[number] = answer
        assert running.process.stdin is not None, "it has pipes"
        try:
            running.process.stdin.write(sent)
            await running.process.stdin.drain()
            return await answer
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ProcessEnded from error
        finally:
            running.waiting.pop(number, None)

    async def _started(self) -> _JudgeProcess:
        async with self._starting:
            running = self._running
            if running is None or running.process.returncode is not None or running.listening is None:
                if running is not None and running.listening is not None:
                    await end(running.listening)
                pipe = asyncio.subprocess.PIPE
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", _MAIN, stdin=pipe, stdout=pipe, start_new_session=True
                )
                running = self._running = _JudgeProcess(process)
                running.listening = asyncio.ensure_future(self._listen(running))
            return running

    async def _listen(self, running: _JudgeProcess) -> None:
        stream = running.process.stdout
        assert stream is not None, "it has pipes"
        try:
            while True:
                preface = msgspec.json.decode(await _frame(stream), type=court.JudgePreface)
                body = await _frame(stream)
                waiter = running.waiting.get(preface.number)
                if waiter is not None and not waiter.done():
                    waiter.set_result((preface.how, body))
        except asyncio.IncompleteReadError:
            await running.process.wait()
        finally:
            # Each caller tries again with a new process; `judged` limits the attempts.
            for waiter in running.waiting.values():
                if not waiter.done():
                    waiter.set_exception(_ProcessEnded())


async def _frame(stream: asyncio.StreamReader) -> bytes:
    (size_bytes,) = court.HEAD.unpack(await stream.readexactly(court.HEAD.size))
    return await stream.readexactly(size_bytes)


def _news(known: TenantLayouts | None, layouts: TenantLayouts) -> list[court.Begin | court.Follow | court.Ask]:
    """Return the messages that update the process from the known layouts to these."""
    messages: list[court.Begin | court.Follow | court.Ask] = []
    if known is layouts:
        return messages
    if known is None or known.tenant is not layouts.tenant:
        messages.append(court.Begin(layouts.tenant, layouts.cache.budgets))
        known = None
    old = known.branches if known is not None else {}
    other = {
        project: {branch: dict(one.files) for branch, one in found.items()}
        for project, found in layouts.branches.items()
        if not _same(old.get(project), found)
    }
    if other:
        messages.append(court.Follow(layouts.tenant.name, other))
    return messages


def _same(old: object, new: object) -> bool:
    if old is new:
        return True
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    # The order matters, too, because the default branch comes first. Identity suffices: parsed branches are immutable.
    return list(old) == list(new) and all(old[branch] is new[branch] for branch in new)
