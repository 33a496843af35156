"""A safety net: parameters and results of requests that nobody will take away any more.

A caller that died after its result was ready, or a worker that died between the pieces of a large one, leaves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from headgate.recipes.lock import lock
from headgate.recipes.requests import Requests
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry

log = logging.getLogger("headgate.sweep")

INTERVAL_S = 60.0
"""Between two looks; what is found in two of them, unchanged, goes."""
COUNT_MAX = OPS_MAX - 4
"""Entries removed in one commit."""


class Sweeper:
    """Of queues of one kind.  `named` are the paths of results that an event not yet taken up names."""

    def __init__(
        self,
        context: Context,
        queues: Callable[[], Sequence[Requests]],
        lock_path: str,
        named: Callable[[], Collection[str]],
    ) -> None:
        self._context, self._queues, self._lock_path, self._named = context, queues, lock_path, named

    async def run(self, session: Session) -> None:
        """Until cancelled, or until the lock is lost.  Looks only after something has moved."""
        store, mirror = self._context.store, self._context.mirror
        async with lock(store, session, self._lock_path).hold() as guard:
            suspects: dict[str, int] = {}
            while True:
                seen, left = mirror.moves, self._left()
                due = [entry for entry in left if suspects.get(entry.path) == entry.version][:COUNT_MAX]
                if due:
                    await self._remove(due, guard)
                suspects = {entry.path: entry.version for entry in left}
                if not suspects:
                    await mirror.moved(seen)
                await asyncio.sleep(INTERVAL_S)

    async def _remove(self, due: list[Entry], guard: At) -> None:
        """Raises GuardLost."""
        log.warning("removing what requests left behind: %s", ", ".join(entry.path for entry in due))
        checks = [At(entry.path, entry.version) for entry in due]
        try:
            await self._context.store.commit(checks, [Delete(entry.path) for entry in due], guards=[guard])
        except GuardLost:
            raise
        except Conflict as moved:
            log.info("%s; looking again", moved)

    def _left(self) -> list[Entry]:
        left = {path: e for q in self._queues() for path, e in q.left(self._context.mirror).items()}
        named = self._named() if left else ()
        return [entry for path, entries in left.items() if path not in named for entry in entries]
