"""A safety net: what nobody will take away any more.

A caller that died after its result was ready, or a worker that died between the pieces of a large one, leaves
parameters and results of requests; who died before taking an answer, or with a wish unfulfilled, leaves that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry

log = logging.getLogger("headgate.sweep")

INTERVAL_S = 60.0
"""Between two looks; what is found in two of them, unchanged, goes."""
COUNT_MAX = OPS_MAX - 4
"""Entries removed in one commit."""


class Leaving(Protocol):
    """Where something may be left behind."""

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Name -> entries that nobody seems to want, to be removed together."""
        ...


class Unwanted:
    """Answers that nobody took away, and wishes for components that are gone."""

    def __init__(self, context: Context) -> None:
        self._map = context.map

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        answers = (entry for entry in mirror.under(self._map.results.management.path) if entry.lease is None)
        return {entry.path: [entry] for entry in (*answers, *self._wishes(mirror))}

    def _wishes(self, mirror: Mirror) -> Iterator[Entry]:
        for entry in mirror.under(self._map.wishes.path):
            kind, _, name = entry.path.removeprefix(f"{self._map.wishes.path}/").partition(".")
            if mirror.get(f"{self._map.components.path}/{kind}/{name}") is None:
                yield entry


class Sweeper:
    """Of places of one kind.  `named` are the paths of results that an event not yet taken up names."""

    def __init__(
        self,
        context: Context,
        places: Callable[[], Sequence[Leaving]],
        lock_path: str,
        named: Callable[[], Collection[str]],
    ) -> None:
        self._context, self._places, self._lock_path, self._named = context, places, lock_path, named

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
        left = {path: e for p in self._places() for path, e in p.left(self._context.mirror).items()}
        named = self._named() if left else ()
        return [entry for path, entries in left.items() if path not in named for entry in entries]
