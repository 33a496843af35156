"""The recorder: moves finished buildsets from the store into the history database."""

from __future__ import annotations

import asyncio
import logging

from headgate.map.records import Finished
from headgate.ports.history import HistoryUnavailable, HistoryWriter
from headgate.recipes.lock import lock
from headgate.recipes.stream import Waiting, consumed
from headgate.services.context import Context
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.recorder")

BATCH_MAX = 20
RETRY_FIRST_S = 5.0
RETRY_MAX_S = 60.0


class Recorder:
    """`run` is the body; one process at a time records."""

    def __init__(self, context: Context, history: HistoryWriter) -> None:
        self._context, self._history = context, history
        self._wait_s = RETRY_FIRST_S

    async def run(self, session: Session) -> None:
        place, mirror = self._context.map.history, self._context.mirror
        async with lock(self._context.store, session, place.election.path).hold() as guard:
            with mirror.part(place.path) as part:
                while True:
                    seen = part.moves
                    waiting = place.stream.waiting(mirror, limit=BATCH_MAX)
                    if not waiting:
                        await part.moved(seen)
                        continue
                    await self._record(waiting, guard)

    async def _record(self, waiting: list[Waiting[Finished]], guard: At) -> None:
        try:
            for event in waiting:
                await self._history.record(event.event)
        except HistoryUnavailable as error:
            log.error("the history database cannot be written, trying again in %.0f s: %s", self._wait_s, error)
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s, RETRY_MAX_S)
            return
        self._wait_s = RETRY_FIRST_S
        await self._context.store.commit([], consumed(waiting), guards=[guard])
        for event in waiting:
            self._context.observer.finished(event.event)
        await self._context.mirror.gone(waiting[-1].entry)
