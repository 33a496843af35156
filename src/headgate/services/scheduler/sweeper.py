"""A safety net: what nobody will take away any more.

A caller that died after its result was ready, or a worker that died between the pieces of a large one, leaves
parameters and results of requests; who died before taking an answer, or with a desired state unfulfilled, leaves that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, Op

log = logging.getLogger("headgate.sweep")

INTERVAL_S = 60.0
"""Interval between two looks; what both of them find, unchanged, is deleted."""
COUNT_MAX = OPS_MAX - 4
"""Limit of checks in one commit: of the entries that it removes and of the locks that their users hold."""


class Leaving(Protocol):
    """Declare a place where something may be left over."""

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return name -> entries that seem to be unwanted, to be removed together."""
        ...


class Unwanted:
    """Find answers that nobody collected, and desired states of components that are gone."""

    def __init__(self, context: Context) -> None:
        self._map = context.map

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        answers = (entry for entry in mirror.under(self._map.results.management.path) if entry.lease is None)
        # An answer with a lease is still waited for; it disappears with the session of whoever waits.
        return {entry.path: [entry] for entry in (*answers, *self._desired_states(mirror))}

    def _desired_states(self, mirror: Mirror) -> Iterator[Entry]:
        for entry in mirror.under(self._map.desired_states.path):
            kind, _, name = self._map.desired_states.relative(entry.path).partition(".")
            if mirror.get(self._map.components.inside(kind, name)) is None:
                yield entry


class ResultSweeper:
    """Sweep places of one kind. `named` are the paths of results that unhandled events refer to."""

    def __init__(
        self,
        context: Context,
        places: Callable[[], Sequence[Leaving]],
        lock_path: str,
        named: Callable[[], Collection[str]] = frozenset,
        *,
        looks: int = 1,
        mended: Callable[[Entry], Op] | None = None,
        locks: Callable[[Entry], Sequence[str]] = lambda entry: (),
    ) -> None:
        """Make a sweeper. `looks` is how many looks must find an entry unchanged before it is deleted; `mended`
        gives what to write instead if part of it stays; `locks` gives the paths of locks that a user of the entry
        holds."""
        self._context, self._places, self._lock_path, self._named = context, places, lock_path, named
        self._looks, self._mended, self._locks = looks, mended, locks

    async def run(self, session: Session) -> None:
        """Sweep until cancelled or the lock is lost, and only after something has changed."""
        store, mirror = self._context.store, self._context.mirror
        async with lock(store, session, self._lock_path).hold() as guard:
            suspects: dict[str, tuple[int, int]] = {}
            while True:
                seen, left = mirror.moves, self._left()
                known = {entry.path: suspects.get(entry.path, (entry.version, 0)) for entry in left}
                # Only what stays unchanged is counted: a new version shows that somebody uses the entry.
                found = {e.path: known[e.path][1] + 1 if known[e.path][0] == e.version else 1 for e in left}
                # What exceeds one commit is found again at the next look.
                due = self._first(entry for entry in left if found[entry.path] > self._looks)
                if due:
                    await self._remove(due, session, guard)
                suspects = {entry.path: (entry.version, found[entry.path]) for entry in left}
                # The interval follows even then: a busy store moves all the time, and a look reads whole places.
                if not suspects:
                    await mirror.moved(seen)
                await asyncio.sleep(INTERVAL_S)

    def _first(self, due: Iterable[Entry]) -> list[Entry]:
        """Return the first entries that one commit can remove."""
        first, locks = list[Entry](), set[str]()
        for entry in due:
            locks.update(self._locks(entry))
            if len(first) + 1 + len(locks) > COUNT_MAX:
                break
            first.append(entry)
        return first

    async def _remove(self, due: list[Entry], session: Session, guard: At) -> None:
        """Delete the entries that are due. Raise GuardLost."""
        store, wanted = self._context.store, sorted({path for entry in due for path in self._locks(entry)})
        async with AsyncExitStack() as stack:
            # Somebody who holds one of the locks uses the entry now; waiting for the lock would stop the sweep.
            held = [await stack.enter_async_context(lock(store, session, path).try_hold()) for path in wanted]
            free = {path: at for path, at in zip(wanted, held, strict=True) if at is not None}
            due = [entry for entry in due if all(path in free for path in self._locks(entry))]
            if not due:
                return
            log.warning("removing what nobody wants any more: %s", ", ".join(entry.path for entry in due))
            ops = [self._mended(entry) if self._mended else Delete(entry.path) for entry in due]
            try:
                checks = [At(entry.path, entry.version) for entry in due]
                await store.commit(checks, ops, guards=[guard, *free.values()])
            except GuardLost:
                raise
            except Conflict as moved:
                log.info("%s; looking again", moved)

    def _left(self) -> list[Entry]:
        left = {path: e for p in self._places() for path, e in p.left(self._context.mirror).items()}
        named = self._named() if left else ()
        return [entry for path, entries in left.items() if path not in named for entry in entries]
