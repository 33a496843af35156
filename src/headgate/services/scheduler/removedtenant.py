"""A tenant that the tenant file does not have any more: its pipelines are run until nothing is in them, then whatever
is kept of it goes.  What ended is in the history, and stays there."""

from __future__ import annotations

import logging

from headgate.config.parse import ParseCache
from headgate.config.tenants import Tenant
from headgate.map.records import ForPipeline, ManagementResult, Quarantined, Reread
from headgate.map.tree import unescape
from headgate.recipes.codec import readable
from headgate.recipes.lock import lock, write_lock
from headgate.services.autohold import hold_requests
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.requests import tell
from headgate.services.scheduler.leftovers import leftover, removed
from headgate.services.scheduler.turn import TurnPart
from headgate.services.tenancy import Tenancy
from headgate.store.store import Session
from headgate.store.types import Delete

log = logging.getLogger("headgate.tenant")

TOLD_MAX = 1_000
"""Limit of people whose requests to a removed tenant are answered at once."""


class VanishedConfiguration(Configuration):
    """Stand in for the configuration of a removed tenant: it has no projects and no pipelines."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, Tenant(name, ()), ParseCache())

    def current(self) -> bool:
        """Return True: the store's records of the tenant are not followed."""
        return True

    def without(self, pipeline: str) -> str:
        return f"the tenant {self.tenant.name} was removed from the tenant file"


class VanishedTenant:
    """Remove a tenant. Once its pipelines are empty, `run` deletes what is stored of it."""

    def __init__(self, context: Context, name: str, tenants: Tenancy) -> None:
        self._context, self._name, self._tenants = context, name, tenants

    async def run(self, session: Session) -> None:
        """Remove everything of the tenant, then return."""
        map, store, name = self._context.map, self._context.store, self._name
        events = map.locks.events
        async with (
            # A scheduler that has not seen the new tenant file may still run the tenant under these locks; they are
            # taken in the same order there, so nobody waits for ever.
            lock(store, session, events.management(name).lock.path).hold() as management,
            lock(store, session, events.trigger(name).lock.path).hold() as trigger,
            write_lock(store, session, map.locks.tenant(name).lock.path).hold() as own,
        ):
            await self._empty()
            await self._forget_projects(session)
            await self._tell()
            log.info("tenant %s: it was removed from the tenant file; what is left is its history", name)
            places = (map.events.tenant(name), map.layout(name), map.semaphores(name), map.nodes.providers(name))
            pieces = leftover(self._context, *places)
            await removed(self._context, [*self._holds(), *pieces, *self._aside()], [management, trigger, own])

    async def _empty(self) -> None:
        """Run until the tenant's pipelines are gone."""
        mirror, map = self._context.mirror, self._context.map
        places = (map.tenant(self._name).path, map.events.tenant(self._name).pipelines.path)
        with mirror.part(*places) as stirs:
            while any(mirror.names(place) for place in places):
                await stirs.moved(stirs.moves)

    async def _tell(self) -> None:
        """Answer those who wait for something that they requested of the tenant."""
        stream = self._context.map.events.tenant(self._name).management.stream
        why = f"the tenant {self._name} was removed from the tenant file"
        # Any further ones wait until their own time runs out (`requests.ask`).
        for waiting in stream.waiting(self._context.mirror, limit=TOLD_MAX):
            if isinstance(waiting.event, ForPipeline | Reread) and waiting.event.result:
                await tell(self._context, waiting.event.result, ManagementResult(False, why))

    def _aside(self) -> list[TurnPart]:
        """Delete what was set aside for the tenant, which nobody can retry any more."""
        place = self._context.map.quarantine
        pieces = list[TurnPart]()
        for entry in self._context.mirror.under(place.records.path):
            record = readable(entry, Quarantined)
            if record is not None and record.tenant == self._name:
                id = entry.path.rpartition("/")[2]
                pieces.append(TurnPart([Delete(entry.path), Delete(place.bodies.inside(id))]))
        return pieces

    def _holds(self) -> list[TurnPart]:
        """Delete requests to hold its builds; their machines are released once the requests are gone."""
        map, mirror = self._context.map, self._context.mirror
        own = [one for one in hold_requests(map, mirror) if one.tenant == self._name]
        return [TurnPart([map.hold_requests(one.id).record.delete()]) for one in own]

    async def _forget_projects(self, session: Session) -> None:
        """Delete the configuration of projects that no tenant has any more."""
        place, had = self._context.map.config, set[str]()
        for tenant in self._tenants.tenants().values():
            had.update(project.project for project in tenant.projects)
        for project in map(unescape, self._context.mirror.names(place.cache.path)):
            if project not in had:
                # Another tenant may be writing these texts.
                async with write_lock(self._context.store, session, place.lock(project).lock.path).hold() as guard:
                    await removed(self._context, leftover(self._context, place.cache(project)), [guard])
