"""Claim waiting requests, carry them out and answer them: a limited number at a time, at a limited rate of starts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, count, islice
from typing import NamedTuple

from headgate.base.tasks import about, end
from headgate.recipes.backlog import Backlog
from headgate.recipes.claims import Claim
from headgate.recipes.line import line
from headgate.recipes.mirror import Mirror
from headgate.recipes.mirrorpart import MirrorPart
from headgate.recipes.requestforms import Open, Owner
from headgate.recipes.requests import Requests
from headgate.services.quarantine import Tries, error_text, transient
from headgate.services.shares import FairSharing
from headgate.store.store import Session
from headgate.store.types import StoreError

log = logging.getLogger("headgate.worker")

BEGINNING_S = 1.0
"""Longest time for which a piece of work counts as starting."""
REST_MAX_S = 0.5
"""Longest time for which a project waits after a start."""
LATELY_S = 5.0
"""Time for which starts are remembered."""
RETRY_S = 5.0
TAKEN_MAX = 1_000
"""Limit on the remembered requests that this worker took: the mirror may still show them as waiting."""
PARKED_MAX = 1_000
"""Limit on the pieces of work that wait without occupying a slot."""
Do = Callable[[Claim], Awaitable[None]]
"""Does the work and completes the claim."""
Fail = Callable[[Claim, str], Awaitable[None]]
"""Completes the claim of work that raised an error, with an answer that contains the error."""


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


class _Beginning(NamedTuple):
    since_s: float
    """Time of the start; all times here are the clock's."""
    project: str


class _Rest(NamedTuple):
    until_s: float
    project: str


class Pace:
    """Decide which project may start work, and when.

    All projects that have recently started work have equal shares of the starts.  A project that has used more than its
    share pauses after each start for as long as the other projects' shares would take, so that projects with little
    work need not wait.
    """

    def __init__(self, beginning_max: int, clock: Callable[[], float] = _loop_s) -> None:
        """Limit the concurrent starts to `beginning_max`, and to half as many for one project; 0: no limit. `clock`
        returns seconds."""
        self._max, self._clock = beginning_max, clock
        self._beginning: dict[str, _Beginning] = {}
        """Request -> its start."""
        self._rests: list[_Rest] = []
        self._lately: deque[_Beginning] = deque()
        self._counts: Counter[str] = Counter()
        """Project -> number of its recent starts."""

    def begins(self, request: str, project: str) -> None:
        """Count a piece of work as starting."""
        if self._max:
            one = _Beginning(self._clock(), project)
            self._beginning[request] = one
            self._lately.append(one)
            self._counts[project] += 1

    def begun(self, request: str) -> bool:
        """Stop counting the work as starting; return whether it was counted."""
        one = self._beginning.pop(request, None)
        if one is None:
            return False
        now_s = self._clock()
        if self._greedy(one.project, now_s):
            # The longer a start took, the busier the processors are, and the longer the other shares would take.
            rest_s = min((now_s - one.since_s) * (len(self._counts) - 1), REST_MAX_S)
            self._rests.append(_Rest(now_s + rest_s, one.project))
        return True

    def wait_s(self, project: str | None = None) -> float:
        """Return the seconds until one more piece of work of the project, or of any (None), may start; 0: now."""
        if not self._max:
            return 0.0
        now_s = self._clock()
        # A start that hangs must not block others forever.
        self._beginning = {id: one for id, one in self._beginning.items() if one.since_s + BEGINNING_S > now_s}
        ends = [one.since_s + BEGINNING_S for one in self._beginning.values() if project in (None, one.project)]
        if project is not None:
            self._rests = [one for one in self._rests if one.until_s > now_s]
            ends += [one.until_s for one in self._rests if one.project == project]
        # One project uses at most half of the starts, even without other projects, so that a newcomer need not wait.
        room = self._max if project is None else max(1, self._max // 2)
        return min(ends) - now_s if len(ends) >= room else 0.0

    def _greedy(self, project: str, now_s: float) -> bool:
        """Return whether the project has recently started more than its share."""
        while self._lately and self._lately[0].since_s + LATELY_S <= now_s:
            gone = self._lately.popleft().project
            self._counts[gone] -= 1
            if not self._counts[gone]:
                del self._counts[gone]
        # More than an equal part: own * projects > total, without a division.
        return self._counts[project] * len(self._counts) > self._counts.total()


class RequestWorker:
    """Process requests with `do`, which is called for each claim. If the loop is cancelled, claimed requests are handed
    back; if the worker must stop, it takes no further requests and ends after the last one."""

    def __init__(
        self,
        queues: Callable[[], Sequence[Requests]],
        mirror: Mirror,
        session: Session,
        do: Do,
        fail: Fail,
        *,
        tries_max: int,
        jobs_max: int,
        owner: Callable[[], Owner],
        sharing: FairSharing,
        looked_at: Sequence[str],
        beginning_max: int = 0,
        able: Callable[[Open], bool] = lambda found: True,
    ) -> None:
        """Create a worker. `tries_max` limits the attempts at work that raises an error. `queues` returns the queues
        from which it takes requests; `looked_at` are the path prefixes of everything that affects its choice; `owner`
        is written into the requests that it takes. It takes only requests that it is `able` to do.

        `beginning_max`: limit on the concurrent starts, and on half as many for one project; 0: no limit.  Starting
        takes processor time: with more starts than processors, all of them take longer.  See `Pace`.
        """
        self._queues, self._mirror, self._session, self._do, self._fail = queues, mirror, session, do, fail
        self._tries = Tries(tries_max)
        self._jobs_max, self._owner, self._sharing = jobs_max, owner, sharing
        self._looked_at, self._pace, self._able = looked_at, Pace(beginning_max), able
        self._running: dict[str, asyncio.Task[None]] = {}
        self._taken: dict[str, int] = {}
        """Request -> its version before this worker took it."""
        self._backlogs: dict[str, Backlog] = {}
        self._turns = count(1)
        self._stirs: MirrorPart | None = None
        self._parked = self._begun = 0
        """Number of pieces of work that wait, and how many of these have started."""
        self._back: deque[asyncio.Future[None]] = deque()
        """Work that has finished waiting and continues once there is a free slot."""

    @asynccontextmanager
    async def parked(self, claim: Claim, *, begun: bool = False) -> AsyncIterator[None]:
        """Give up the slot while work only waits, so that other work can run, unless too many wait.

        Afterwards it waits for a slot, and gets one before any new work does.  Work that has `begun` is not handed back
        when the worker must stop.
        """
        # Waiting work still takes memory and locks.
        if self._parked >= PARKED_MAX:
            yield
            return
        # Waiting work needs no processor, so other work may start.
        self.begun(claim)
        self._parked += 1
        self._begun += begun
        self._freed()
        try:
            yield
        finally:
            self._parked -= 1
            self._begun -= begun
        back = asyncio.get_running_loop().create_future()
        # Parked work comes before new work, because it already holds machines and locks.
        self._back.append(back)
        self._freed()
        try:
            await back
        # It may be cancelled while it waits for its slot.
        finally:
            if back in self._back:
                self._back.remove(back)

    def begun(self, claim: Claim) -> None:
        """Declare that the expensive start of this work is over, so that other work may start."""
        if self._pace.begun(claim.request.id) and self._stirs is not None:
            self._stirs.nudge()

    def _freed(self) -> None:
        """Offer a slot that may be free: to parked work first, otherwise to new work."""
        while self._back and len(self._running) - self._parked - len(self._back) < self._jobs_max:
            back = self._back.popleft()
            if not back.done():
                back.set_result(None)
        if self._stirs is not None:
            self._stirs.nudge()

    async def run(self) -> None:
        try:
            with self._mirror.part(*self._looked_at) as stirs:
                self._stirs = stirs
                while True:
                    seen = stirs.moves
                    wait_s = await self._claim()
                    # The worker waits only for work that has begun; the cancellation below hands back parked work that
                    # has not.
                    if self._sharing.stopping and len(self._running) == self._parked - self._begun:
                        return
                    await stirs.moved_within(wait_s, seen)
        finally:
            await end(*self._running.values())
            for backlog in self._backlogs.values():
                backlog.close()

    async def _claim(self) -> float | None:
        """Claim the requests that are ours to take, the most urgent first, while slots are free. Return the seconds
        until a waiting request may become ours, or None if only a change in the store can make it so."""
        while True:
            running = len(self._running) - self._parked
            if running >= self._jobs_max:
                return None  # checked first, because there may be many waiting requests
            # The cheap limits come first, before the inspection of thousands of requests.
            if wait_s := self._pace.wait_s():
                return wait_s
            backlogs = self._looked_over()
            waiting = self._waiting(backlogs)
            if (first := next(waiting, None)) is None:
                return None
            if wait_s := self._sharing.accepting(running):
                # Only now that a request waits, the load of the machine is checked.
                return wait_s
            order, soonest_s = self._sharing.order(backlogs, running), None
            # Requests further back do not get a turn, so a long queue costs nothing extra.
            for found in islice(chain([first], waiting), order.free):
                left_s = self._pace.wait_s(_project(found)) or order.delay_s(found)
                if left_s > 0:
                    soonest_s = left_s if soonest_s is None else min(left_s, soonest_s)
                elif await self._take(found):
                    # Taking one changes loads and turns, so everything is computed again.
                    break
            else:
                return soonest_s

    def _looked_over(self) -> list[Backlog]:
        """Return the backlogs of the queues from which it takes requests, as the mirror shows them now."""
        queues = self._queues()
        for requests in queues:
            if requests.places.requests not in self._backlogs:
                self._backlogs[requests.places.requests] = Backlog(requests, self._mirror, self._turns, self._able)
        backlogs = [self._backlogs[requests.places.requests] for requests in queues]
        for backlog in backlogs:
            backlog.look()
        return backlogs

    def _waiting(self, backlogs: Sequence[Backlog]) -> Iterator[Open]:
        """Yield requests, the most urgent first; among equally urgent ones, take tenants and projects in turn."""
        return (f for f in line(backlogs) if f.request.id not in self._running and not self._old(f))

    def _old(self, found: Open) -> bool:
        """Return whether the mirror still shows the state of the request before we took it."""
        # The mirror may lag; without this check, the worker would keep trying to claim a request that it already has.
        return self._taken.get(found.request.id) == found.entry.version

    async def _take(self, found: Open) -> bool:
        queue = self._backlogs[found.queue].requests
        claim = await self._try(queue, found)
        if claim is not None:
            while len(self._taken) >= TAKEN_MAX:
                del self._taken[next(iter(self._taken))]
            self._taken[claim.request.id] = found.entry.version
            self._running[claim.request.id] = asyncio.ensure_future(self._work(claim))
            self._pace.begins(claim.request.id, _project(found))
        return claim is not None

    async def _try(self, queue: Requests, found: Open) -> Claim | None:
        if found.request.wanted == "cancel":
            # The request was cancelled, so it is completed without being started.
            claim = await queue.claim(found, self._session)
            if claim is not None:
                await claim.complete([])
            return None
        return await queue.claim(found, self._session, self._owner())

    async def _given_up(self, claim: Claim) -> None:
        """Release the claim after a pause. If the lock is already gone, for example because the answer was written
        after all, this changes nothing."""
        # Without the pause, the next worker would probably have the same problem immediately.
        await asyncio.sleep(RETRY_S)
        try:
            await claim.release()
        except StoreError as error:
            log.info("request %s not handed back (%s); it is free once the session ends", claim.request.id, error)

    async def _failed(self, claim: Claim, error: Exception) -> None:
        """Handle an unexpected error: after a few attempts, it becomes the answer."""
        id = claim.request.id
        log.error("request %s failed with an unexpected error", id, exc_info=error)
        if self._tries.spent(id):
            # Endless retries would keep the requester waiting forever.
            try:
                await self._fail(claim, error_text(error))
                return
            except Exception as refused:
                log.error("request %s: the answer about its failure cannot be written", id, exc_info=refused)
        await self._given_up(claim)

    async def _work(self, claim: Claim) -> None:
        with about(**claim.request.meta):
            await self._inside(claim)

    async def _inside(self, claim: Claim) -> None:
        id = claim.request.id
        try:
            await self._do(claim)
        except asyncio.CancelledError:
            try:
                # After the release, others can take it immediately, not only when the session ends.
                await claim.release()
            except StoreError as error:
                log.info("request %s not handed back (%s); it is free once the session ends", id, error)
            raise
        except Exception as error:
            if transient(error):
                log.warning("request %s is handed back: %s", id, error)
                await self._given_up(claim)
            else:
                await self._failed(claim, error)
        finally:
            self._running.pop(id, None)
            self._pace.begun(id)
            self._freed()


def _project(found: Open) -> str:
    meta = found.request.meta
    return f"{meta.get('tenant', '')} {meta.get('project', '')}"
