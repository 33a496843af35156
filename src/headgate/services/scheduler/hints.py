"""The hints of one connection: each is handed to its forge once, and removed with the look that answers it."""

from __future__ import annotations

from collections.abc import Collection

from headgate.base.ids import fresh
from headgate.map.connections import Hint
from headgate.ports.forge import ForgeWatch
from headgate.services.context import Context
from headgate.store.types import Op

WAITING_MAX = 500
"""Limit of hints that wait for one connection; with more, the whole connection is looked at once."""
TAKEN_MAX = 1_000
"""Limit of hints taken for one look."""


async def store_hint(context: Context, connection: str, hint: Hint) -> bool:
    """Store a hint for the watcher of the connection, unless the same hint already waits. When too many wait, store one
    that requests a look at everything instead; return False if even too many of those wait. Raise StoreError.
    """
    stream = context.map.events.connection(connection).events.hints.stream
    waiting = stream.waiting(context.mirror, limit=WAITING_MAX)
    # The look at everything that replaces hints is a hint, too, so twice the limit means that nobody takes them.
    if stream.length(context.mirror) >= 2 * WAITING_MAX:
        return False
    if len(waiting) >= WAITING_MAX:
        if hint.order is not None:  # a look at everything would not find it
            return False
        # It stands for many deliveries, and names no place: that means a look at everything.
        hint = Hint(fresh())
    if hint.id not in {one.event.id for one in waiting}:
        await context.store.commit([], stream.append(hint))
    return True


class Hints:
    """Pass the hints of one connection to its forge. If there are none, do nothing."""

    def __init__(self, context: Context, forge: ForgeWatch) -> None:
        self._context, self._forge = context, forge
        self._stream = context.map.events.connection(forge.name).events.hints.stream

    async def follow(self) -> None:
        """Pass on hints that waited before, because it is unknown how far the last look came."""
        mirror, handed = self._context.mirror, set[str]()
        with mirror.part(self._stream.queue, self._stream.data) as stirs:
            while True:
                seen = stirs.moves
                waiting = self._stream.waiting(mirror, limit=TAKEN_MAX)
                # Hints that were answered are forgotten, so the set does not grow.
                handed &= {one.entry for one in waiting}
                for one in waiting:
                    if one.entry not in handed:
                        handed.add(one.entry)
                        self._forge.stir(one.event)
                await stirs.moved(seen)

    def answered(self, ids: Collection[str]) -> list[list[Op]]:
        """Return operations that remove each hint with one of these ids, including repeated ones."""
        if not ids:
            return []
        waiting = self._stream.waiting(self._context.mirror, limit=TAKEN_MAX)
        return [one.consume() for one in waiting if one.event.id in ids]
