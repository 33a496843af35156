"""Send requests to mergers for people who review a change, cache the results, and limit the requests of each person."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from headgate.gate.state.gitwork import PatchRequest, RemarksRequest, ReviewWork, SayRequest
from headgate.gate.state.works import MergerAnswer
from headgate.map.tree import union
from headgate.recipes.calls import call
from headgate.recipes.codec import decode
from headgate.rest import HTTPException
from headgate.services.context import Context
from headgate.store.store import Session
from headgate.store.types import SessionLost, StoreError
from headgate.web.access import PeerFleet

A = TypeVar("A")

PRECEDENCE = 400
"""Precedence of requests for pages: after all requests of the gate."""
AT_ONCE, WAITING_MAX = 3, 50
"""Limits on one web process: its simultaneous requests to mergers, and the requests that run or wait."""
ANSWER_WAIT_MAX_S = 60.0
CACHE_MAX_BYTES, ANSWER_MIN_BYTES = 32 * 2**20, 1_000
"""Limit on the size of all cached answers, and the size that a smaller answer counts as."""
FRESH_S = {True: 600.0, False: 5.0}
"""Whether a request succeeded -> how long its result is cached, in seconds."""
MOVING_S = 10.0
"""Cache time of results that may change: remarks, and the commits of a change that may have landed."""
STRANGERS, KNOWN = (60.0, 5.0), (200.0, 10.0)
"""Requests to mergers, as burst and per second: of all anonymous callers together, and of each identified person."""
CALLERS_MAX = 1_000
BUSY = "too many requests for reviews at the moment; try again"


class _CachedAnswer(NamedTuple):
    answer: MergerAnswer
    until_s: float
    size: int


@dataclass(slots=True)
class ReviewService:
    """Send requests to mergers for one web server."""

    context: Context
    joined: Callable[[], Session | None]
    clock: Callable[[], float] = time.monotonic
    fleet: PeerFleet = field(init=False)
    _cache: OrderedDict[bytes, _CachedAnswer] = field(default_factory=OrderedDict)
    _size: int = 0
    _pending: dict[bytes, asyncio.Future[MergerAnswer]] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _waiting: int = 0
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """Caller -> the number of requests they may still send, and when that was computed."""

    def __post_init__(self) -> None:
        self.fleet = PeerFleet(self.context)

    async def secret(self) -> bytes:
        """Return the key with which remarks are signed. Raise StoreError."""
        return await self.fleet.key("remarks")

    async def answer(self, who: str, work: ReviewWork, kind: type[A]) -> A:
        """Return a merger's answer, or a cached one. A request to a merger counts against the limit of `who`; empty: an
        anonymous caller. Raise 503.
        """
        key = msgspec.json.encode(work)
        cached = self._cache.get(key)
        if cached is not None and cached.until_s > self.clock():
            self._cache.move_to_end(key)
            return self._of(cached.answer, kind)
        # Callers with the same question share one request, which counts for the first of them only.
        pending = self._pending.get(key)
        if pending is None:
            self._pay(who)
            pending = self._pending[key] = asyncio.ensure_future(self._ask(work))
            pending.add_done_callback(lambda done: self._done(key, work, done))
        # A client that disconnects must not cancel the request for the others.
        return self._of(await asyncio.shield(pending), kind)

    async def say(self, who: str, work: SayRequest, kind: type[A]) -> A:
        """Have a merger write a remark, return its answer, and drop the cached remarks of the project. Raise 503."""
        self._pay(who)
        try:
            return self._of(await self._ask(work), kind)
        finally:
            # Also after a failure: the push may have succeeded although the answer was lost.
            self.forget(work.project)

    def forget(self, project: str) -> None:
        """Drop the cached remarks of a project, so that they are read again."""
        for key in [key for key in self._cache if b'"type":"remarks"' in key and _of_project(key, project)]:
            self._size -= self._cache.pop(key).size

    @staticmethod
    def _of(answer: MergerAnswer, kind: type[A]) -> A:
        if isinstance(answer, kind):
            return answer
        why = getattr(answer, "error", "") or "a merger of another version answered"
        raise HTTPException(f"the merger failed: {why}", status_code=502)

    def _pay(self, who: str) -> None:
        """Count a request of the caller. Raise 503 once the caller has none left."""
        burst, rate = KNOWN if who else STRANGERS
        now_s = self.clock()
        left, at_s = self._left.get(who, (burst, now_s))
        left = min(burst, left + rate * (now_s - at_s)) - 1.0
        if left < 0 or self._waiting >= WAITING_MAX:
            raise HTTPException(BUSY, status_code=503, headers={"Retry-After": "2"})
        self._left[who] = left, now_s
        self._left.move_to_end(who)
        # Forget the caller whose last request is the oldest: its allowance has refilled most.
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)

    async def _ask(self, work: ReviewWork) -> MergerAnswer:
        session = self.joined()
        if session is None:
            raise HTTPException("the store cannot be reached at the moment; no request was sent", status_code=503)
        self._waiting += 1
        try:
            # The timeout includes the wait for a place, so that callers behind others get an answer in time, too.
            async with asyncio.timeout(ANSWER_WAIT_MAX_S), self._places:
                meta = {"project": work.project, "for": "review"}
                body = msgspec.json.encode(work)
                encoded = await call(self.context.merges, session, body, precedence=PRECEDENCE, meta=meta)
            answer: MergerAnswer = decode(encoded, union(MergerAnswer))
            return answer
        except TimeoutError as error:
            raise HTTPException("no merger answered in time; try again later", status_code=503) from error
        except (StoreError, SessionLost) as error:
            raise HTTPException(f"the store is unavailable at the moment: {error}", status_code=503) from error
        finally:
            self._waiting -= 1

    def _done(self, key: bytes, work: ReviewWork, done: asyncio.Future[MergerAnswer]) -> None:
        self._pending.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        holds_s = FRESH_S[answer.ok]
        if answer.ok and not isinstance(work, PatchRequest):
            holds_s = MOVING_S if isinstance(work, RemarksRequest) else 6 * MOVING_S
        # Keys and records take memory besides the answers, so the number of small answers must be limited, too.
        size = max(ANSWER_MIN_BYTES, len(msgspec.json.encode(answer)))
        before = self._cache.pop(key, None)
        self._size += size - (before.size if before is not None else 0)
        self._cache[key] = _CachedAnswer(answer, self.clock() + holds_s, size)
        while self._size > CACHE_MAX_BYTES:
            self._size -= self._cache.popitem(last=False)[1].size


def _of_project(key: bytes, project: str) -> bool:
    return bool(msgspec.json.decode(key).get("project") == project)
