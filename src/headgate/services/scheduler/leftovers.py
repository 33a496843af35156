"""Find in the store the remains of pipelines and tenants that no longer exist, and remove them.

Workers of such a pipeline are stopped by the turns of `pipeline`. What remains after that is removed here, and anything
that appears later is found by the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from headgate.map.tree import Dir, unescape
from headgate.recipes.requests import Requests
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.services.tenancy import Tenancy
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Delete

log = logging.getLogger("headgate.leftovers")

PAUSE_S = 0.2
"""Interval between two looks while builds are being cancelled."""
LOOK_AGAIN_S = 60.0
"""Time after a change at which everything is looked at again."""


class Leftovers:
    """Find leftovers of all tenants, as the mirror shows them."""

    def __init__(self, context: Context, tenants: Tenancy) -> None:
        self._context, self._tenants = context, tenants

    def pipelines(self) -> set[tuple[str, str]]:
        """Return (tenant, pipeline) of pipelines that no longer exist."""
        map = self._context.map
        found = set[tuple[str, str]]()
        for tenant in self._named(map.tenant.path, map.events.tenant.path):
            own = self._tenants.get(tenant)
            # A refused entry of the tenant file does not say that the tenant is gone, and a tenant that is not loaded
            # may have any pipeline.
            if tenant in self._tenants.file.refused or (own is not None and not own.loaded.is_set()):
                continue
            places = (map.tenant(tenant).pipeline.path, map.events.tenant(tenant).pipelines.path)
            known = own.layouts.landed.pipelines if own is not None else ()
            missing = (name for name in self._named(*places) if name not in known)
            # `without` is empty while a config-project has errors: a typo there must not remove pipelines.
            found.update((tenant, name) for name in missing if own is None or own.without(name))
        return found

    def tenants(self) -> set[str]:
        """Return tenants that no longer exist and that the tenant file does not name."""
        map, known = self._context.map, {*self._tenants, *self._tenants.file.refused}
        named = self._named(map.tenant.path, map.events.tenant.path, map.layout.path, map.semaphores.path)
        return {name for name in named if name not in known}

    def _named(self, *directories: str) -> Iterator[str]:
        """Yield the names below the directories."""
        return (unescape(name) for path in directories for name in self._context.mirror.names(path))

    async def look(self, found: Callable[[], None]) -> None:
        """Call `found` a while after every change, where there may be something, until cancelled."""
        map = self._context.map
        with self._context.mirror.part(map.tenant.path, map.events.tenant.path) as moves:
            while True:
                seen = moves.moves
                await asyncio.sleep(LOOK_AGAIN_S)
                if self.pipelines() or self.tenants():
                    found()
                else:
                    await moves.moved(seen)


async def ended(context: Context, tenant: str, pipeline: str) -> bool:
    """Return whether nobody works for the pipeline any more. If somebody does, wait a little first."""
    mirror, seen = context.mirror, context.mirror.moves
    requests = (one.request.meta for queue in (*context.zones(), context.merges) for one in queue.open(mirror))
    # Only requests that name an item count: reports may still be under way, and do not depend on the pipeline.
    if not any(
        "item" in meta and (meta.get("tenant"), meta.get("pipeline")) == (tenant, pipeline) for meta in requests
    ):
        return True
    await mirror.moved(seen)
    # Every move of the mirror ends the wait, and each round looks at all requests; hence the pause.
    await asyncio.sleep(PAUSE_S)
    return False


def leftover(context: Context, *places: Dir) -> list[TurnPart]:
    """Return operations that delete everything visible at and below these paths."""
    return [TurnPart([Delete(entry.path)]) for place in places for entry in context.mirror.under(place.path)]


async def removed(context: Context, pieces: Iterable[TurnPart], guards: Sequence[At]) -> None:
    """Delete it, and wait until the mirror shows that. Raise Conflict."""
    for commit in packed(pieces):
        await context.store.commit(commit.checks, commit.ops, guards=guards)
        for op in commit.ops:
            if isinstance(op, Delete):
                await context.mirror.gone(op.path)


async def disowned(context: Context, tenant: str, pipeline: str, wanted: Collection[str], guard: At) -> bool:
    """Cancel the requests of a pipeline's items that nobody wants.  Return False when one moved meanwhile."""
    for queue in (*context.zones(), context.merges):
        # The list comes from the store: the mirror may not show yet what a dying holder of the lock requested last.
        for found in await queue.listed():
            meta = found.request.meta
            ours = (meta.get("tenant"), meta.get("pipeline")) == (tenant, pipeline) and "item" in meta
            if not ours or found.request.id in wanted or found.request.wanted == "cancel":
                continue
            try:
                await context.store.commit(*Requests.cancel(found), guards=[guard])
            except GuardLost:
                raise
            # A worker took or ended it between the list and the commit; the caller lists again.
            except Conflict:
                return False
    return True
