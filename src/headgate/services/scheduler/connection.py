"""One connection: what is seen there becomes events, and events are moved on to the tenants they concern."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

import msgspec

from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.gate.change import Standing
from headgate.map.records import BranchCache
from headgate.ports.git import Forge, Sighting
from headgate.recipes import blob
from headgate.recipes.lock import lock
from headgate.recipes.stream import consumed
from headgate.services.context import Context
from headgate.services.scheduler.standings import Standings, remember
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.connection")

EVENTS_MAX = 15
"""Events moved on in one commit."""
ATTEMPTS_MAX = 10
SIGHTED_MAX = 10
"""Changes and events recorded in one commit."""


class ConnectionRunner:
    """`run` is driven by one process at a time: whoever leads the connection's election."""

    def __init__(self, context: Context, forge: Forge, tenants: Mapping[str, frozenset[str]]) -> None:
        """`tenants`: name -> canonical names of its projects."""
        self._context, self._forge, self._tenants = context, forge, tenants
        self._standings = Standings(context.map, context.mirror, (forge.name,))
        self._events = context.map.events.connection(forge.name).events
        self._heads: dict[str, dict[str, str]] = {}

    async def run(self, session: Session) -> None:
        async with lock(self._context.store, session, self._events.election.path).hold() as guard:
            await self._recall()
            await run_until(asyncio.Event(), self._watch(guard), self._forward(guard))

    async def _recall(self) -> None:
        """The branch heads as the last leader saw them: what moved since is found by comparing."""
        value = await blob.read(self._context.store, self._branches)
        if value is not None:
            self._heads = msgspec.json.decode(value, type=BranchCache).projects

    @property
    def _branches(self) -> str:
        return self._context.map.cache.connection(self._forge.name).branches.data.path

    async def _watch(self, guard: At) -> None:
        known = _Known(self._standings)
        async for sighting in self._forge.sightings(known, self._heads):
            await self._store(sighting, guard)

    async def _store(self, sighting: Sighting, guard: At) -> None:
        """Standings, heads and events in one commit; a very large sighting in several, heads last."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._try(sighting, guard)
                return
            except GuardLost:
                raise
            except Conflict:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                await asyncio.sleep(0)  # a landing was recorded: once the mirror shows it, again

    async def _try(self, sighting: Sighting, guard: At) -> None:
        pieces: list[tuple[list[At], list[Op]]] = []
        latest = ""
        for standing in sighting.standings:
            latest = fresh()
            check, ops = remember(self._context.map, self._context.mirror, standing, latest)
            pieces.append(([check], ops))
        pieces += [([], self._events.stream.append(event)) for event in sighting.events]
        if sighting.heads:
            self._heads.update(sighting.heads)
            heads = BranchCache({project: refs for project, refs in self._heads.items() if refs})
            pieces.append(([], blob.ops(self._branches, msgspec.json.encode(heads))))
        for start in range(0, len(pieces), SIGHTED_MAX):
            part = pieces[start : start + SIGHTED_MAX]
            checks, ops = [c for cs, _ in part for c in cs], [op for _, found in part for op in found]
            await self._context.store.commit(checks, ops, guards=[guard])
        if latest:
            data = self._context.map.cache.connection(self._forge.name).data.path
            await self._context.mirror.reached(f"{data}/{latest}")

    async def _forward(self, guard: At) -> None:
        """Each event to every tenant that has its project; the move is one commit."""
        mirror = self._context.mirror
        while True:
            seen = mirror.moves
            waiting = self._events.stream.waiting(mirror, limit=EVENTS_MAX)
            if not waiting:
                await mirror.moved(seen)
                continue
            ops = consumed(waiting)
            for event in waiting:
                for tenant, projects in self._tenants.items():
                    if event.event.change.project in projects:
                        ops += self._context.map.events.tenant(tenant).trigger.stream.append(event.event)
            await self._context.store.commit([], ops, guards=[guard])
            await mirror.gone(waiting[-1].entry)


class _Known(Mapping[str, Standing]):
    """The standings, always as they are now."""

    def __init__(self, standings: Standings) -> None:
        self._standings = standings

    def __getitem__(self, key: str) -> Standing:
        return self._standings.now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._standings.now())

    def __len__(self) -> int:
        return len(self._standings.now())
