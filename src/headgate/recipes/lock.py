"""Provide locks of every kind from one idea: a fair line of ephemeral contenders, oldest first.

The holder gets a guard. Put it into every commit made under the lock, and the store itself refuses commits of a
process that has lost the lock. `read_lock` and `write_lock` on one path are one read/write lock, and `semaphore` is
the same line with more places. The gate takes only the write side, since it reads from its mirror, and its own
semaphores are records that turns write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from headgate.base.ids import fresh
from headgate.recipes.patience import answered
from headgate.store import types
from headgate.store.store import Session, Store

Rule = Callable[[Sequence[types.Entry]], bool]
"""Decides from the entries ahead whether this one may proceed: the only difference between the kinds of locks."""

_READER = b"r "


def alone(ahead: Sequence[types.Entry]) -> bool:
    return not ahead


def behind_readers_only(ahead: Sequence[types.Entry]) -> bool:
    return all(entry.value.startswith(_READER) for entry in ahead)


def within(permits: int) -> Rule:
    return lambda ahead: len(ahead) < permits


class LockLine:
    """Keep a line of contenders under one path; when the process of a contender dies, the line moves up."""

    def __init__(self, store: Store, session: Session, path: str, rule: Rule = alone, *, reader: bool = False) -> None:
        self.store, self.session, self.path, self.rule = store, session, path, rule
        self._kind = _READER if reader else b"w "

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[types.At]:
        """Wait for the lock, then yield its guard. Holding it costs no requests."""
        me = await self._join()
        try:
            await self._wait(me)
            yield types.At(me.path, me.version)
        finally:
            await self._go(me)

    @asynccontextmanager
    async def try_hold(self) -> AsyncIterator[types.At | None]:
        """Yield the guard, or None if others are ahead."""
        me = await self._join()
        try:
            line = await self.store.list(self.path)
            yield types.At(me.path, me.version) if self._mine(me, line) else None
        finally:
            await self._go(me)

    async def _join(self) -> types.Entry:
        """Append our entry to the line, and return it. If the caller is cancelled first, the entry is deleted as soon
        as it exists."""
        joining = self.session.errand(self._enter())
        try:
            return await asyncio.shield(joining)
        except asyncio.CancelledError:
            self.session.errand(self._undo(joining))
            raise

    async def _undo(self, joining: asyncio.Task[types.Entry]) -> None:
        with suppress(types.StoreError):
            await self._leave(await joining)

    async def _enter(self) -> types.Entry:
        """Append exactly one entry, although the answer may get lost, and return it."""
        ticket = self._kind + f"{self.session.name} {fresh()}".encode()

        async def join() -> types.Entry:
            try:
                (me,) = await self.store.commit([], [types.Append(self.path, ticket, self.session.lease)])
            except types.Unavailable:
                line = await answered(self.session, lambda: self.store.list(self.path))
                me = next((entry for entry in line if entry.value == ticket), None)
                # Every backend delays this read until the unanswered commit can no longer take effect, so appending
                # again is safe.
                if me is None:
                    raise
            assert me is not None, "an append answers with its entry"
            return me

        return await answered(self.session, join)

    async def _go(self, me: types.Entry) -> None:
        """Leave the line, even if the task is cancelled in the meantime; if the session ends first, the store removes
        the entry."""
        await asyncio.shield(self.session.errand(self._leave(me)))

    async def _leave(self, me: types.Entry) -> None:
        with suppress(types.StoreError):
            await answered(self.session, lambda: self.store.commit([], [types.Delete(me.path)]))

    def _mine(self, me: types.Entry, line: Sequence[types.Entry]) -> bool:
        # Without this check, a contender whose entry was deleted by hand would find nobody ahead, and believe that it
        # holds the lock.
        if not any(entry.path == me.path for entry in line):
            raise types.SessionLost(f"{self.session.name} lost its place in {self.path}")
        # The order of births is the order of commits on every backend, whatever the names are.
        ahead = (entry for entry in line if entry.born < me.born and entry.path != self.path)
        # An entry without a session does not count: the store would never remove it, and the line would stop.
        return self.rule([entry for entry in ahead if entry.lease is not None])

    async def _wait(self, me: types.Entry) -> None:
        """Wait until the rule lets this entry proceed."""
        await answered(self.session, lambda: self._watch(me))

    async def _watch(self, me: types.Entry) -> None:
        line: dict[str, types.Entry] = {}
        watch = self.store.watch(self.path)
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in watch:
                match change:
                    case types.Snapshot(entries):
                        line = {entry.path: entry for entry in entries}
                    case types.EntryChanged(entry):
                        line[entry.path] = entry
                    case types.EntryGone(path):
                        line.pop(path, None)
                if self._mine(me, list(line.values())):
                    return


def lock(store: Store, session: Session, path: str) -> LockLine:
    """Return a lock with one holder at a time, in order of arrival.  An election is such a lock, held for a term."""
    return LockLine(store, session, path)


def read_lock(store: Store, session: Session, path: str) -> LockLine:
    """Return a lock shared with other readers; it waits for every writer that came first."""
    return LockLine(store, session, path, behind_readers_only, reader=True)


def write_lock(store: Store, session: Session, path: str) -> LockLine:
    """Return an exclusive lock; it waits for everyone who came first."""
    return LockLine(store, session, path)


def semaphore(store: Store, session: Session, path: str, *, permits: int) -> LockLine:
    """Return a lock with at most `permits` holders; the next waiter proceeds as soon as one leaves."""
    return LockLine(store, session, path, within(permits))
