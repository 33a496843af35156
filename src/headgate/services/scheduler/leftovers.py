"""Find data in the store whose owners no longer exist, and remove it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

from msgspec.structs import replace

from headgate.gate.state.world import Waiter
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address, Dir, unescape
from headgate.recipes.codec import readable
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open
from headgate.recipes.requests import Requests
from headgate.services.configuration import Tenancy
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.store import GuardLost, Session
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, Op

log = logging.getLogger("headgate.leftovers")
sweep_log = logging.getLogger("headgate.sweep")

PAUSE_S = 0.2
"""Interval between two checks while builds are being cancelled."""
LOOK_AGAIN_S = 60.0
"""Time after a change at which everything is checked again."""
CONNECTION_LOOKS = 60
"""Number of checks, over about an hour, before a connection's data is deleted, so that a mistake in the settings can be
fixed in time."""
INTERVAL_S = 60.0
"""Interval between two checks of a sweeper; entries that both of them find unchanged are deleted."""
COUNT_MAX = OPS_MAX - 4
"""Limit on the checks in one commit: of the entries that it removes and of the locks that their users hold."""


class Leftovers:
    """Find leftovers of all tenants in the mirror. Turns stop the work of a removed pipeline, and this class finds what
    remains after that; the next check finds anything that appears later."""

    def __init__(self, context: Context, tenants: Tenancy) -> None:
        self._context, self._tenants = context, tenants

    def pipelines(self) -> set[tuple[str, str]]:
        """Return (tenant, pipeline) of pipelines that no longer exist."""
        map = self._context.map
        found = set[tuple[str, str]]()
        for tenant in self._named(map.tenant.path, map.events.tenant.path):
            own = self._tenants.get(tenant)
            # A rejected entry of the tenant file does not mean that the tenant was removed, and a tenant that is not
            # loaded may have any pipeline.
            if tenant in self._tenants.file.refused or (own is not None and not own.loaded.is_set()):
                continue
            places = (map.tenant(tenant).pipeline.path, map.events.tenant(tenant).pipelines.path)
            known = own.layouts.landed.pipelines if own is not None else ()
            missing = (name for name in self._named(*places) if name not in known)
            # `without` is empty while a config-project has errors, because a typo there must not remove pipelines.
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
        """Call `found` a while after a change if there may be leftovers, until cancelled."""
        map = self._context.map
        with self._context.mirror.part(map.tenant.path, map.events.tenant.path) as moves:
            while True:
                seen = moves.moves
                await asyncio.sleep(LOOK_AGAIN_S)
                if self.pipelines() or self.tenants():
                    found()
                else:
                    await moves.moved(seen)


async def ended(context: Context, tenant: str, pipeline: str, guard: At) -> bool:
    """Return whether no worker processes requests of the pipeline any longer. If one does, wait a little first."""
    mirror, seen = context.mirror, context.mirror.moves
    requests = [one for queue in (*context.zones(), context.merges) for one in queue.open(mirror)]
    # Only requests that name an item count, because reports do not depend on the pipeline.
    ours = [one for one in requests if _is_of_item(one, tenant, pipeline)]
    if not ours:
        return True
    # Cancelled requests of dead workers are ended here, because their zone may have no other worker to claim them.
    for one in ours:
        if one.request.wanted == "cancel" and not one.locked:
            with suppress(Conflict):
                await context.store.commit(*Requests.cancel(one), guards=[guard])
    await mirror.moved(seen)
    # The pause limits the rate: any change of the mirror ends the wait, and each round checks all requests.
    await asyncio.sleep(PAUSE_S)
    return False


def _is_of_item(found: Open, tenant: str, pipeline: str) -> bool:
    meta = found.request.meta
    return "item" in meta and (meta.get("tenant"), meta.get("pipeline")) == (tenant, pipeline)


def leftover(context: Context, *places: Dir) -> list[TurnPart]:
    """Return operations that delete everything visible at and below these paths."""
    return [TurnPart([Delete(entry.path)]) for place in places for entry in context.mirror.under(place.path)]


async def removed(context: Context, pieces: Iterable[TurnPart], guards: Sequence[At]) -> None:
    """Commit the parts, and wait until the mirror shows the deletions. Raise Conflict."""
    for commit in packed(pieces):
        await context.store.commit(commit.checks, commit.ops, guards=guards)
        for op in commit.ops:
            if isinstance(op, Delete):
                await context.mirror.gone(op.path)


async def disowned(context: Context, tenant: str, pipeline: str, wanted: Collection[str], guard: At) -> bool:
    """Cancel the unwanted requests of a pipeline's items.  Return False if one has changed in the meantime."""
    for queue in (*context.zones(), context.merges):
        # Read from the store, because the mirror may not show the last requests of the previous holder of the lock yet.
        for found in await queue.listed():
            if not _is_of_item(found, tenant, pipeline) or found.request.id in wanted:
                continue
            if found.request.wanted == "cancel" and found.locked:
                continue
            try:
                await context.store.commit(*Requests.cancel(found), guards=[guard])
            except GuardLost:
                raise
            # A worker claimed or ended it between the listing and the commit, so the caller lists again.
            except Conflict:
                return False
    return True


class Leaving(Protocol):
    """Declare a place that may contain leftovers."""

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return name -> entries that seem to be leftovers and are removed together."""
        ...


class Unasked:
    """Find answers to requests for machines that no longer exist. Claims stay for a launcher, which cleans the
    machines."""

    def __init__(self, context: Context) -> None:
        self._nodes = context.map.nodes

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return the answers, each by its path."""
        requested = set(mirror.names(self._nodes.requests.path))
        answers = mirror.under(self._nodes.answers.path)
        return {entry.path: [entry] for entry in answers if entry.path.rpartition("/")[2] not in requested}


class Disconnected:
    """Find the data and unhandled events of connections that the settings no longer have."""

    def __init__(self, context: Context, connections: Collection[str]) -> None:
        """Create the sweep. `connections` holds the names of the connections in the settings."""
        self._cache, self._events, self._known = context.map.cache, context.map.events, connections

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return name -> all entries of each connection that no process watches, without the entries of its locks."""
        found: dict[str, list[Entry]] = {}
        for above in (self._cache.connection.path, self._events.connection.path):
            for name in mirror.names(above):
                if unescape(name) not in self._known and not self._watched(mirror, unescape(name)):
                    # An entry with a lease belongs to a process that waits for a lock, whose session removes it.
                    entries = (entry for entry in mirror.under(f"{above}/{name}") if entry.lease is None)
                    found.setdefault(name, []).extend(entries)
        return {name: entries for name, entries in found.items() if entries}

    def _watched(self, mirror: Mirror, connection: str) -> bool:
        # Schedulers may have different settings during an upgrade: if a process leads the election, it still uses the
        # connection.
        return bool(mirror.under(self._events.connection(connection).events.election.path))

    def locks(self, entry: Entry) -> tuple[str, str]:
        """Return the locks held by processes that watch the connection, possibly with other settings than ours."""
        above = (self._cache.connection.path, self._events.connection.path)
        name = next(entry.path.removeprefix(f"{p}/") for p in above if entry.path.startswith(f"{p}/"))
        connection = unescape(name.partition("/")[0])
        return (
            self._events.connection(connection).events.election.path,
            self._cache.connection(connection).branches.lock.path,
        )


class Forsaken:
    """Find holders of semaphores whose buildsets are gone, and waiters whose pipelines are gone."""

    def __init__(self, context: Context) -> None:
        self._context, self._map, self._mirror = context, context.map, context.mirror

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return the records that name missing holders or waiters, by their paths."""
        every = (*mirror.under(self._map.semaphores.path), *mirror.under(self._map.global_semaphores.path))
        return {entry.path: [entry] for entry in every if self._remaining(entry) not in (None, _read(entry))}

    def mended(self, entry: Entry) -> Op:
        """Return the operation that writes the record with only the remaining holders and waiters."""
        record = self._remaining(entry) or SemaphoreRecord(())
        empty = not record.holders and not record.waiters
        return Delete(entry.path) if empty else Address(entry.path, SemaphoreRecord).put(record)

    def _remaining(self, entry: Entry) -> SemaphoreRecord | None:
        """Return the record without holders and waiters that are gone; None if it is unreadable: turns then rewrite
        it."""
        record = _read(entry)
        if record is None:
            return None
        # The path of a tenant's own semaphore contains the tenant; only holders of a global one name their tenant.
        own = unescape(self._map.semaphores.relative(entry.path).partition("/")[0])
        tenant = own if self._map.semaphores.holds(entry.path) else ""
        holders = tuple(holder for holder in record.holders if self._holds(holder, tenant))
        return replace(record, holders=holders, waiters=tuple(filter(self._waits, record.waiters)))

    def _holds(self, holder: SemaphoreHolder, tenant: str) -> bool:
        # A cancelled build may outlive its buildset.
        request = self._context.build_request(holder.build) if holder.build else None
        if request is not None and request.locked:
            return True
        items = self._map.tenant(holder.tenant or tenant).pipeline(holder.pipeline).item
        names = map(unescape, self._mirror.names(items.path))
        held_for = (items(name).buildset(holder.buildset) for name in names)
        paths = (path for one in held_for for path in (one.record.path, one.repo_state.path))  # builds continue with it
        return any(self._mirror.get(path) is not None for path in paths)

    def _waits(self, waiter: Waiter) -> bool:
        return self._mirror.get(self._map.tenant(waiter.tenant).pipeline(waiter.pipeline).record.path) is not None


def _read(entry: Entry) -> SemaphoreRecord | None:
    return readable(entry, SemaphoreRecord)


class Unwanted:
    """Find uncollected answers, and desired states of components that are gone."""

    def __init__(self, context: Context) -> None:
        self._map = context.map

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        answers = (entry for entry in mirror.under(self._map.results.management.path) if entry.lease is None)
        # An answer with a lease has a waiting process, and disappears with that process's session.
        return {entry.path: [entry] for entry in (*answers, *self._desired_states(mirror))}

    def _desired_states(self, mirror: Mirror) -> Iterator[Entry]:
        for entry in mirror.under(self._map.desired_states.path):
            kind, _, name = self._map.desired_states.relative(entry.path).partition(".")
            if mirror.get(self._map.components.inside(kind, name)) is None:
                yield entry


class ResultSweeper:
    """Sweep places of one kind. `named` are the paths of results that unhandled events refer to.

    A caller that died after its result was ready, or a worker that died between the pieces of a large one, leaves
    parameters and results of requests. A caller that died before it took its answer leaves the answer, and a component
    that died leaves its desired state.
    """

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
        """Make a sweeper. `looks`: number of checks that must find an entry unchanged before it is deleted; `mended`:
        returns the operation that writes the rest of an entry of which only a part is removed; `locks`: returns the
        paths of the locks that a user of the entry holds."""
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
                # Only unchanged entries are counted, because a new version shows that the entry is in use.
                found = {e.path: known[e.path][1] + 1 if known[e.path][0] == e.version else 1 for e in left}
                # Entries that exceed one commit are found again at the next check.
                due = self._first(entry for entry in left if found[entry.path] > self._looks)
                if due:
                    await self._remove(due, session, guard)
                suspects = {entry.path: (entry.version, found[entry.path]) for entry in left}
                # The interval follows in any case: a busy store changes all the time, and a check reads entire places.
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
            # A process that holds one of the locks is using the entry; waiting for the lock would block the sweep.
            held = [await stack.enter_async_context(lock(store, session, path).try_hold()) for path in wanted]
            free = {path: at for path, at in zip(wanted, held, strict=True) if at is not None}
            due = [entry for entry in due if all(path in free for path in self._locks(entry))]
            if not due:
                return
            sweep_log.warning("removing leftover entries: %s", ", ".join(entry.path for entry in due))
            ops = [self._mended(entry) if self._mended else Delete(entry.path) for entry in due]
            try:
                checks = [At(entry.path, entry.version) for entry in due]
                await store.commit(checks, ops, guards=[guard, *free.values()])
            except GuardLost:
                raise
            except Conflict as moved:
                sweep_log.info("%s; checking again", moved)

    def _left(self) -> list[Entry]:
        left = {path: e for p in self._places() for path, e in p.left(self._context.mirror).items()}
        named = self._named() if left else ()
        return [entry for path, entries in left.items() if path not in named for entry in entries]
