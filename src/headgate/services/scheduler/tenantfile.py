"""Read the tenant file on request and store it; remove tenants that it no longer contains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from headgate.base.errors import UserError
from headgate.config.operator.model import ConfigErrors, Tenant
from headgate.config.parse import ParseCache
from headgate.map.places import Map
from headgate.map.queues import ReadAnew
from headgate.map.records import ForPipeline, ManagementResult, Quarantined, Reread, SystemConf
from headgate.map.tree import unescape
from headgate.recipes import blob
from headgate.recipes.codec import readable
from headgate.recipes.lock import lock, write_lock
from headgate.recipes.stream import consumed
from headgate.services.autohold import hold_requests
from headgate.services.configuration import Configuration, Tenancy, conf_of
from headgate.services.context import Context
from headgate.services.orders import tell
from headgate.services.scheduler.leftovers import leftover, removed
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.store import Session, Store
from headgate.store.types import At, Delete, Op

log = logging.getLogger("headgate.tenants")
tenant_log = logging.getLogger("headgate.tenant")

REQUESTS_MAX = 10
"""Limit on the requests that one read answers."""
WORDS_MAX_CHARS = 4_000
"""Limit on the characters of the reason why a file is rejected."""
ANSWERED_MAX = 1_000
"""Limit on the requests to a removed tenant that are answered in one pass."""


class TenantFileRunner:
    """Publish the tenant file. `run` does so in one of the schedulers; `obey` makes this process read its own file."""

    def __init__(
        self, context: Context, tenancy: Tenancy, conf: SystemConf, read: Callable[[], str] | None = None
    ) -> None:
        """Create a runner. `conf` is the file as first read; `read` reads it again and may raise UserError; None means
        that the file never changes."""
        self._context, self._tenancy, self._conf, self._read = context, tenancy, conf, read
        self._hup = asyncio.Event()

    def obey(self) -> None:
        """Read the file again soon."""
        self._hup.set()

    async def publish(self, session: Session) -> None:
        """Write the file that this process read when it started for the other processes, and follow the store from then
        on."""
        # A process publishes its file without a request only when it starts; later the store is newer.
        if not self._tenancy.follows:
            await self._write(self._conf, session)
            self._tenancy.follow()

    async def obeys(self, session: Session) -> None:
        """Handle requests until cancelled."""
        while True:
            await self._hup.wait()
            self._hup.clear()
            log.info("the tenant file: %s", (await self.anew(session)).text)

    async def run(self, session: Session) -> None:
        """Publish until cancelled or the lock is lost."""
        place, mirror = self._context.map.system.requests, self._context.mirror
        async with lock(self._context.store, session, place.election.path).hold() as guard:
            with mirror.part(place.path) as stirs:
                while True:
                    seen = stirs.moves
                    waiting = place.stream.waiting(mirror, limit=REQUESTS_MAX)
                    if not waiting:
                        await stirs.moved(seen)
                        continue
                    answer = await self.anew(session, [guard])
                    requests = [one.event for one in waiting]
                    pieces = [TurnPart(consumed(waiting))]
                    # Projects are read again after the file is in effect, because the file determines which projects
                    # exist.
                    if answer.done and any(one.full for one in requests):
                        pieces += [TurnPart(ops) for ops in self._all_projects()]
                    for commit in packed(pieces):
                        await self._context.store.commit([], commit.ops, guards=[guard])
                    await self._tell(requests, answer)
                    await mirror.gone(waiting[-1].entry)

    async def _tell(self, requests: Sequence[ReadAnew], answer: ManagementResult) -> None:
        for one in requests:
            if one.result:
                await tell(self._context, one.result, answer)

    def _all_projects(self) -> list[list[Op]]:
        events = self._context.map.events
        return [events.tenant(name).management.stream.append(Reread(())) for name in self._tenancy]

    async def anew(self, session: Session, guards: Sequence[At] = ()) -> ManagementResult:
        """Read the file and put it into effect in all processes.  Return the differences, or why the file is rejected;
        then the previous file stays in effect, and the status shows the reason."""
        if self._read is None:
            return ManagementResult(False, "this scheduler has no tenant file to read")
        before = self._tenancy.tenants()
        try:
            # Parsing a file with thousands of projects takes long, and the loop must renew the session's lease in the
            # meantime.
            conf = conf_of(await asyncio.to_thread(self._read), self._conf.path)
            found = await asyncio.to_thread(self._tenancy.parsed, conf)
        except (UserError, ConfigErrors) as refused:
            why = str(refused)[:WORDS_MAX_CHARS]
            log.error("the tenant file is rejected, and the previous one stays in effect: %s", why)
            await self._write(None, session, guards, why)
            return ManagementResult(False, f"the tenant file is rejected, and the previous one stays in effect: {why}")
        self._conf = conf
        await self._write(conf, session, guards)
        return ManagementResult(True, differences(before, found.tenants))

    async def _write(
        self, conf: SystemConf | None, session: Session, guards: Sequence[At] = (), refused: str = ""
    ) -> None:
        """Write `conf` as the current file; None: record only that the read file is rejected."""
        system, store, mirror = self._context.map.system, self._context.store, self._context.mirror
        # Several schedulers may start at the same time, and a request may arrive in the meantime.
        async with write_lock(store, session, system.conf_lock.path).hold() as own:
            known = await in_force(store)
            if conf is None:
                if known is None:
                    # Without a file in effect, the rejection cannot be recorded; the requester still gets it as the
                    # answer.
                    return
                conf = msgspec.structs.replace(known, refused=refused, refused_ms=self._context.now_ms())
            if known != conf:
                await blob.write(store, system.conf.path, msgspec.json.encode(conf), guards=[own, *guards])
        # The answer follows, and its receivers expect to see the new tenants.
        if (entry := await store.get(system.conf.path)) is not None:
            await mirror.reached(entry.path, entry.version)


async def in_force(store: Store) -> SystemConf | None:
    """Return the tenant file in the store; None if there is none, or if it is damaged, so that it is written again."""
    try:
        value = await blob.read(store, Map().system.conf.path)
        return None if value is None else msgspec.json.decode(value, type=SystemConf)
    except ValueError as damaged:
        log.error("%s; writing the tenant file again", damaged)
        return None


def differences(before: dict[str, Tenant], after: dict[str, Tenant]) -> str:
    """Return a message with the differences."""
    changed = [name for name in after if name in before and after[name] != before[name]]
    parts = [
        _named("added", [name for name in after if name not in before]),
        _named("removed", [name for name in before if name not in after]),
        _named("changed", changed),
    ]
    return "; ".join(filter(None, parts)) or "no tenant has changed"


def _named(verb: str, names: Collection[str]) -> str:
    return f"{verb}: {', '.join(names)}" if names else ""


class VanishedConfiguration(Configuration):
    """Replace the configuration of a removed tenant: it has no projects and no pipelines."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, Tenant(name, ()), ParseCache())

    def current(self) -> bool:
        """Return True, because the store's records of the tenant are ignored."""
        return True

    def without(self, pipeline: str) -> str:
        return f"the tenant {self.tenant.name} was removed from the tenant file"


class VanishedTenant:
    """Remove a tenant. Once its pipelines are empty, `run` deletes its data in the store."""

    def __init__(self, context: Context, name: str, tenants: Tenancy) -> None:
        self._context, self._name, self._tenants = context, name, tenants

    async def run(self, session: Session) -> None:
        """Remove everything of the tenant, then return."""
        map, store, name = self._context.map, self._context.store, self._name
        events = map.locks.events
        async with (
            # A scheduler that has not seen the new tenant file may still run the tenant under these locks. It takes
            # them in the same order, so there is no deadlock.
            lock(store, session, events.management(name).lock.path).hold() as management,
            lock(store, session, events.trigger(name).lock.path).hold() as trigger,
            write_lock(store, session, map.locks.tenant(name).lock.path).hold() as own,
        ):
            await self._empty()
            await self._forget_projects(session)
            await self._tell()
            tenant_log.info("tenant %s: it was removed from the tenant file; only its history remains", name)
            places = (map.events.tenant(name), map.layout(name), map.semaphores(name), map.nodes.providers(name))
            pieces = leftover(self._context, *places)
            await removed(self._context, [*self._holds(), *pieces, *self._aside()], [management, trigger, own])

    async def _empty(self) -> None:
        """Wait until the tenant's pipelines are gone."""
        mirror, map = self._context.mirror, self._context.map
        places = (map.tenant(self._name).path, map.events.tenant(self._name).pipelines.path)
        with mirror.part(*places) as stirs:
            while any(mirror.names(place) for place in places):
                await stirs.moved(stirs.moves)

    async def _tell(self) -> None:
        """Answer the requests to the tenant whose callers still wait."""
        stream = self._context.map.events.tenant(self._name).management.stream
        why = f"the tenant {self._name} was removed from the tenant file"
        # Any further callers wait until their own timeout (`orders.ask`).
        for waiting in stream.waiting(self._context.mirror, limit=ANSWERED_MAX):
            if isinstance(waiting.event, ForPipeline | Reread) and waiting.event.result:
                await tell(self._context, waiting.event.result, ManagementResult(False, why))

    def _aside(self) -> list[TurnPart]:
        """Return operations that delete the tenant's entries in the quarantine, which can no longer be retried."""
        place = self._context.map.quarantine
        pieces = list[TurnPart]()
        for entry in self._context.mirror.under(place.records.path):
            record = readable(entry, Quarantined)
            if record is not None and record.tenant == self._name:
                id = entry.path.rpartition("/")[2]
                pieces.append(TurnPart([Delete(entry.path), Delete(place.bodies.inside(id))]))
        return pieces

    def _holds(self) -> list[TurnPart]:
        """Return operations that delete requests to hold its builds; their machines are released once the requests are
        gone."""
        map, mirror = self._context.map, self._context.mirror
        own = [one for one in hold_requests(map, mirror) if one.tenant == self._name]
        return [TurnPart([map.hold_requests(one.id).record.delete()]) for one in own]

    async def _forget_projects(self, session: Session) -> None:
        """Delete the stored configuration of projects that no tenant has any longer."""
        place, had = self._context.map.config, set[str]()
        for tenant in self._tenants.tenants().values():
            had.update(project.project for project in tenant.projects)
        for project in map(unescape, self._context.mirror.names(place.cache.path)):
            if project not in had:
                # Another tenant may be writing these texts.
                async with write_lock(self._context.store, session, place.lock(project).lock.path).hold() as guard:
                    await removed(self._context, leftover(self._context, place.cache(project)), [guard])
