"""The loop of a worker: claim what waits, do it, answer; a bounded number at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Claim, Open, Requests
from headgate.store.store import Session
from headgate.store.types import Conflict, SessionLost, StoreError

log = logging.getLogger("headgate.worker")

RETRY_S = 5.0
PARKED_MAX = 100
"""Pieces of work that wait and take no place."""

Do = Callable[[Claim], Awaitable[None]]
"""Does the work and completes the claim."""


class Worker:
    """`do` is called for each claim.  When the loop is cancelled, what it held is handed back."""

    def __init__(
        self,
        requests: Requests,
        mirror: Mirror,
        session: Session,
        do: Do,
        *,
        jobs_max: int,
        owner: Callable[[], dict[str, Any]],
    ) -> None:
        self._requests, self._mirror, self._session, self._do = requests, mirror, session, do
        self._jobs_max, self._owner = jobs_max, owner
        self._running: dict[str, asyncio.Task[None]] = {}
        self._free = asyncio.Event()
        self._parked = 0

    @asynccontextmanager
    async def parked(self) -> AsyncIterator[None]:
        """While a piece of work only waits: another one may be done in its place, unless too many wait."""
        counts = self._parked < PARKED_MAX
        self._parked += counts
        self._free.set()
        try:
            yield
        finally:
            self._parked -= counts

    async def run(self) -> None:
        try:
            while True:
                seen = self._mirror.moves
                while len(self._running) - self._parked < self._jobs_max and await self._claim_one():
                    pass
                await self._wait(seen)
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, seen: int) -> None:
        """For the store to move, or a place to become free."""
        self._free.clear()
        moved, freed = asyncio.ensure_future(self._mirror.moved(seen)), asyncio.ensure_future(self._free.wait())
        try:
            await asyncio.wait({moved, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
            freed.cancel()

    async def _claim_one(self) -> bool:
        """Takes the most urgent request nobody holds; False when there is none."""
        for found in self._requests.claimable(self._mirror):
            if found.request.id in self._running:
                continue
            claim = await self._try(found)
            if claim is not None:
                task = asyncio.ensure_future(self._work(claim))
                self._running[claim.request.id] = task
                return True
        return False

    async def _try(self, found: Open) -> Claim | None:
        if found.request.wanted == "cancel":
            claim = await self._requests.claim(found, self._session, {})
            if claim is not None:
                await self._requests.complete(claim, [])
            return None
        return await self._requests.claim(found, self._session, self._owner())

    async def _given_up(self, claim: Claim) -> None:
        """Whether the answer was taken may be unknown; then the lock is gone, and this changes nothing."""
        await asyncio.sleep(RETRY_S)
        try:
            await self._requests.release(claim)
        except StoreError as error:
            log.info("request %s not handed back (%s); it is free once the session ends", claim.request.id, error)

    async def _work(self, claim: Claim) -> None:
        id = claim.request.id
        try:
            await self._do(claim)
        except asyncio.CancelledError:
            try:
                await self._requests.release(claim)
            except StoreError as error:
                log.info("request %s not handed back (%s); it is free once the session ends", id, error)
            raise
        except (Conflict, SessionLost) as error:
            log.warning("request %s: the answer was not taken: %s", id, error)
            await self._given_up(claim)
        except Exception:
            log.exception("request %s failed in a way nobody foresaw; it is tried again in %s s", id, RETRY_S)
            await asyncio.sleep(RETRY_S)
            await self._requests.release(claim)
        finally:
            self._running.pop(id, None)
            self._free.set()
