"""Move finished buildsets and people's actions from the store into the history database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from headgate.base.tasks import run_until
from headgate.map.records import Finished, HandAction
from headgate.ports.history import HistoryUnavailable, HistoryWriter
from headgate.recipes.lock import lock
from headgate.recipes.mirrorpart import MirrorPart
from headgate.recipes.stream import Unread, consumed
from headgate.services.context import Context
from headgate.services.quarantine import TRY_AGAIN_S, Quarantine, Tries
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.recorder")

BATCH_MAX = 20
RETRY_FIRST_S = 5.0
RETRY_MAX_S = 60.0


async def nothing() -> None:
    """Do nothing."""


class Recorder:
    """Record the history, one process at a time; `run` is the body."""

    def __init__(
        self, context: Context, history: HistoryWriter, beside: Callable[[], Coroutine[Any, Any, None]] = nothing
    ) -> None:
        """Create a recorder. The recording process also runs `beside` until cancelled."""
        self._context, self._history = context, history
        self._beside, self._wait_s = beside, RETRY_FIRST_S
        self._quarantine, self._tries = Quarantine(context), Tries()

    async def run(self, session: Session) -> None:
        place, mirror = self._context.map.history, self._context.mirror
        async with lock(self._context.store, session, place.election.path).hold() as guard:
            with mirror.part(place.path) as part:
                await run_until(asyncio.Event(), self._move(part, guard), self._beside())

    async def _move(self, part: MirrorPart, guard: At) -> None:
        place, mirror = self._context.map.history, self._context.mirror
        while True:
            seen = part.moves
            by_hand = place.by_hand.waiting(mirror, limit=BATCH_MAX)
            waiting = place.stream.waiting(mirror, limit=BATCH_MAX)
            if not waiting and not by_hand:
                await part.moved(seen)
                continue
            await self._record(waiting, by_hand, guard)

    async def _record(self, waiting: list[Unread[Finished]], by_hand: list[Unread[HandAction]], guard: At) -> None:
        try:
            every: list[Unread[Any]] = [*by_hand, *waiting]  # events of both kinds
            for event in every:
                try:
                    await self._keep(event.event)
                # An unavailable database affects all events, so no single one is to blame.
                except HistoryUnavailable:
                    raise
                except Exception as error:
                    await self._blame(event, error, guard)
                    return
        except HistoryUnavailable as error:
            log.error("the history database cannot be written, trying again in %.0f s: %s", self._wait_s, error)
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s, RETRY_MAX_S)
            return
        self._wait_s = RETRY_FIRST_S
        # The database has them now. After a crash before this commit, they are recorded again, which changes nothing.
        await self._context.store.commit([], [*consumed(by_hand), *consumed(waiting)], guards=[guard])
        for event in waiting:
            # Records of repeated builds are not the ends of items, and would be counted twice.
            if event.event.result and event.event.final:
                self._context.observer.finished(event.event)
        for entry in [*(one.entry for one in by_hand[-1:]), *(one.entry for one in waiting[-1:])]:
            await self._context.mirror.gone(entry)

    async def _keep(self, event: Finished | HandAction) -> None:
        if isinstance(event, HandAction):
            await self._history.keep(event)
        else:
            await self._history.record(self._addressed(event))

    def _addressed(self, finished: Finished) -> Finished:
        """Return the buildset with the URL of every log."""
        builds = tuple(
            replace(build, log_url=self._context.log_url(finished.tenant, build.uuid))
            if build.start_ms and not build.log_url
            else build
            for build in finished.builds
        )
        return replace(finished, builds=builds)

    async def _blame(self, event: Unread[Any], error: Exception, guard: At) -> None:
        """Move an event that cannot be recorded to the quarantine after a few attempts."""
        log.error("%s cannot be recorded: %s: %s", event.entry, type(error).__name__, error)
        if not self._tries.spent(event.entry):
            await asyncio.sleep(TRY_AGAIN_S)
            return
        place = self._context.map.history
        queue = place.actions.path if isinstance(event.event, HandAction) else place.queue.path
        ops = self._quarantine.event(event, queue, error, event.event.tenant)
        await self._context.store.commit([], ops, guards=[guard])
        await self._context.mirror.gone(event.entry)
