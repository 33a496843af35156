"""Keep what a forge says about branches, for the tenants that read configuration from only some of them.

What moved is written with what has every tenant of the project read its configuration anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.config.tenants import Protection
from headgate.map.records import Reconfigure
from headgate.recipes import blob
from headgate.recipes.codec import decode
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart
from headgate.store.types import Delete, Op, Put


class Protections:
    """Store the branch protection of one connection."""

    def __init__(self, context: Context, connection: str, tenants: Mapping[str, frozenset[str]]) -> None:
        """Make a store of protections. `tenants` maps each tenant to the canonical names of its projects."""
        self._context, self._tenants = context, tenants
        self._place = context.map.cache.connection(connection).protection

    def pieces(self, protections: Mapping[str, Protection]) -> Iterator[TurnPart]:
        """Yield the commits that store the protection, in order; nothing for what is stored already."""
        mirror = self._context.mirror
        for project, protection in protections.items():
            place = self._place(project).record
            entries = mirror.under(place.path)
            if self._stored(project) == protection:
                continue
            *parts, pointer = place.blob(protection)
            # A reader finds the old value or the new one: pieces first, then the pointer together with the orders to
            # read again, and old pieces last.
            yield from (TurnPart([part]) for part in parts)
            fresh = {place.path, *(part.path for part in parts if isinstance(part, Put))}
            stale: list[Op] = [Delete(entry.path) for entry in entries if entry.path not in fresh]
            yield TurnPart([pointer, *self._read_anew(project)])
            yield from (TurnPart([op]) for op in stale)

    def _stored(self, project: str) -> Protection | None:
        """Return the stored protection; None also where it is damaged, so that it is written again."""
        path = self._place(project).record.path
        entry = self._context.mirror.get(path)
        try:
            body = blob.assemble(entry, self._context.mirror.under(path)) if entry is not None else b""
            return decode(body, Protection) if body else None
        except ValueError:
            return None

    def _read_anew(self, project: str) -> list[Op]:
        events, again = self._context.map.events, Reconfigure({project: ()})
        concerned = [tenant for tenant, projects in self._tenants.items() if project in projects]
        return [op for tenant in concerned for op in events.tenant(tenant).management.stream.append(again)]
