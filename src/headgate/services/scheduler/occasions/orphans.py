"""Forget occasions that were begun and ended without notice, because their event was discarded or their pipeline no
longer exists."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headgate.map.forms import ITEM
from headgate.map.occasions import Begun
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.types import At, Delete


class LostOccasions:
    """Find lost occasions of one connection. This only frees their places; that each starts once does not depend on
    it."""

    def __init__(self, context: Context, connection: str) -> None:
        self._context = context
        self._place = context.map.cache.connection(connection).occasions
        self._suspects: set[str] = set()

    async def sweep(self, guard: At, whose: Collection[tuple[str, str]]) -> None:
        """Forget what nobody had at two looks.  `whose`: (tenant, pipeline) that there are triggers of."""
        mirror, found = self._context.mirror, set[str]()
        known = dict[tuple[str, str], set[str]]()
        for entry in mirror.under(self._place.begun.path):
            begun = readable(entry, Begun)
            if begun is None:
                found.add(entry.path)
                continue
            of = begun.tenant, begun.pipeline
            if of not in known:
                known[of] = set(self._alive(*of)) if of in whose else set()
            if entry.path.rpartition("/")[2] not in known[of]:
                found.add(entry.path)
        for commit in packed(TurnPart([Delete(path)]) for path in sorted(found & self._suspects)):
            await self._context.store.commit([], commit.ops, guards=[guard])
        self._suspects = found

    def _alive(self, tenant: str, pipeline: str) -> Iterator[str]:
        """Yield the ids of waiting events and of the events of items."""
        mirror, map = self._context.mirror, self._context.map
        stream = map.events.tenant(tenant).pipelines(pipeline).trigger.stream
        yield from (one.event.id for one in stream.waiting(mirror, limit=stream.length(mirror)))
        place = map.tenant(tenant).pipeline(pipeline).item
        for entry in mirror.under(place.path):
            own = "/" not in place.relative(entry.path)
            if own and (item := readable(entry, ITEM.type)) is not None:
                yield item.event
