"""Measure the requests to a store, and track how long it has been unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from headgate.store.store import TTL_S
from headgate.store.types import At, Backend, Change, Conflict, Entry, Lease, Op, Unavailable, Unwritable, Wide

log = logging.getLogger("headgate.store")

T = TypeVar("T")

SILENT_MAX_S = 2.0
"""A request that is cancelled after at least this time without an answer counts as a failure of the store. With short
sessions it is less, because a session gives up its renewal after a third of its lifetime."""

ReportRequest = Callable[[str, str, float], None]
"""(request, outcome, seconds); outcomes are ok, conflict, refused, unavailable and given up."""


class MeasuredBackend:
    """Measure the requests to another `Backend`."""

    def __init__(self, inner: Backend, report: ReportRequest, now_ms: Callable[[], int], ttl_s: float = TTL_S) -> None:
        """Measure `inner`; `ttl_s` is the lifetime of sessions."""
        self.inner, self._report, self._now_ms = inner, report, now_ms
        self._silent_s = min(SILENT_MAX_S, ttl_s / 4)
        self.away_since_ms: int | None = None
        """Time since which no request was answered; None while the store answers."""
        self.away_why = ""
        self._lost = 0.0
        """Time of the last unanswered request, by the performance counter."""
        self._unwritable = False
        """Whether only a commit shows that the store is available again."""

    async def _measured(self, name: str, request: Awaitable[T]) -> T:
        began, outcome = time.perf_counter(), "given up"
        try:
            answer = await request
            outcome = "ok"
        except Conflict:
            outcome = "conflict"
            raise
        except Unavailable as error:
            outcome = "unavailable"
            self._away(str(error))
            self._unwritable = isinstance(error, Unwritable)
            raise
        except Exception:
            outcome = "refused"
            raise
        finally:
            took_s = time.perf_counter() - began
            self._report(name, outcome, took_s)
            # Callers also cancel requests for their own reasons, so a short wait says nothing about the store.
            if outcome == "given up" and took_s > self._silent_s:
                self._away(f"no answer within {took_s:.1f} s")
            # Other outcomes may come without an answer: for example, this process may know that a lease is lost.
            if outcome == "ok" or (outcome == "conflict" and not self._unwritable):
                self._back(began, wrote=name == "commit")
        return answer

    def _away(self, why: str) -> None:
        if self.away_since_ms is None:
            log.warning("the store is unavailable; waiting for it: %s", why)
        self.away_since_ms, self.away_why = self.away_since_ms or self._now_ms(), why
        self._lost = time.perf_counter()

    def _back(self, began: float, *, wrote: bool = False) -> None:
        """Record an answer to a request that began at `began`. The store is available again only if that was after
        the last unanswered request, and after a write if it could not write."""
        if began < self._lost or (self._unwritable and not wrote):
            return
        self._unwritable = False
        if self.away_since_ms is not None:
            log.info("the store is available again after %.1f s", (self._now_ms() - self.away_since_ms) / 1000)
        self.away_since_ms = None

    async def get(self, path: str) -> Entry | None:
        return await self._measured("get", self.inner.get(path))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._measured("list", self.inner.list(prefix))

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self._measured("commit", self.inner.commit(checks, ops))

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        began = time.perf_counter()
        try:
            async for change in self.inner.watch(prefix):
                self._back(began)
                yield change
        except Unavailable as error:
            self._away(str(error))
            raise

    async def grant(self, ttl_s: float) -> Lease:
        return await self._measured("grant", self.inner.grant(ttl_s))

    async def keep_alive(self, lease: Lease) -> None:
        await self._measured("keep_alive", self.inner.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._measured("revoke", self.inner.revoke(lease))

    async def close(self) -> None:
        await self.inner.close()


class MeasuredWideBackend(MeasuredBackend):
    """Measure another backend that is also `Wide`."""

    def __init__(
        self, inner: Backend, wide: Wide, report: ReportRequest, now_ms: Callable[[], int], ttl_s: float = TTL_S
    ) -> None:
        super().__init__(inner, report, now_ms, ttl_s)
        self._wide = wide

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        return await self._measured("get_many", self._wide.get_many(paths))

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        found = self._wide.scan(directory, begins=begins, after=after, limit=limit)
        return await self._measured("scan", found)


def measured(inner: Backend, report: ReportRequest, now_ms: Callable[[], int], ttl_s: float = TTL_S) -> MeasuredBackend:
    # Two classes, because callers check whether a store is `Wide`: it must not have methods that its backend lacks.
    if isinstance(inner, Wide):
        return MeasuredWideBackend(inner, inner, report, now_ms, ttl_s)
    return MeasuredBackend(inner, report, now_ms, ttl_s)
