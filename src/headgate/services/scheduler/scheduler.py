"""The scheduler as a component: connections, tenants, pipelines and the sweep, divided among the schedulers that live.

Every scheduler computes the same division from the same registry.  Views may differ for a moment: each work is done
under its lock, so the division decides only who stands in line for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from headgate.base.tasks import end
from headgate.config.parse import ParseCache
from headgate.config.tenants import Tenant
from headgate.gate.work import BuildEnded, BuildPaused
from headgate.map.records import SystemConf
from headgate.ports.git import Forge
from headgate.recipes import blob
from headgate.recipes.lock import write_lock
from headgate.recipes.mirror import Part
from headgate.services.configuration import Configuration, readers
from headgate.services.context import Context
from headgate.services.quarantine.tended import tended
from headgate.services.scheduler.configfiles import Reading
from headgate.services.scheduler.connection import ConnectionRunner
from headgate.services.scheduler.pipeline import PipelineRunner
from headgate.services.scheduler.standings import Standings
from headgate.services.scheduler.sweeping import Sweeper, Unwanted
from headgate.services.scheduler.tenant import TenantRunner
from headgate.services.scheduler.timers import Timers
from headgate.store.store import Session

log = logging.getLogger("headgate.scheduler")

Work = tuple[str, ...]
"""("connection", name), ("tenant", name), ("pipeline", tenant, name), ("sweep", builds | merges | general),
or ("timers",)."""


class Scheduler:
    """`run` is the body of the component."""

    def __init__(
        self,
        context: Context,
        tenants: dict[str, Tenant],
        forges: dict[str, Forge],
        conf: SystemConf,
        cache: ParseCache | None = None,
    ) -> None:
        """`cache`: of what was parsed before, in this process."""
        self._context, self._forges, self._conf = context, forges, conf
        cache = cache or ParseCache()
        self.tenants = {name: Configuration(context, tenant, cache) for name, tenant in tenants.items()}
        self._readings = {project: Reading(tuple(found)) for project, found in readers(tenants.values()).items()}
        self._standings = {
            name: Standings(context.map, context.mirror, tuple(dict.fromkeys(p.connection for p in tenant.projects)))
            for name, tenant in tenants.items()
        }
        self._running: dict[Work, asyncio.Task[None]] = {}

    @classmethod
    def of(
        cls,
        context: Context,
        text: str,
        tenants: dict[str, Tenant],
        path: str,
        forges: dict[str, Forge],
        cache: ParseCache | None = None,
    ) -> Scheduler:
        """`text` is the tenant file that `tenants` were read from."""
        return cls(context, tenants, forges, SystemConf(text, path, hashlib.sha256(text.encode()).hexdigest()), cache)

    async def run(self, session: Session) -> None:
        await self._publish(session)
        map = self._context.map
        try:
            with self._context.mirror.part(map.components.scheduler.path, map.layout.path, map.config.path) as stirs:
                while True:
                    seen = stirs.moves
                    await self._keep(divided(self._works(), self._members()).get(session.name, ()), session, stirs)
                    await stirs.moved(seen)
        finally:
            await self._stop(list(self._running))

    async def _keep(self, mine: Collection[Work], session: Session, stirs: Part) -> None:
        """A task for each work that is ours, none for others.  What ends one is the loss of our session or a lock."""
        await self._stop([work for work in self._running if work not in mine])
        for work in mine:
            task = self._running.get(work)
            if task is not None and task.done():
                await task
            if task is None:
                task = self._running[work] = asyncio.ensure_future(self._tended(work, session))
                task.add_done_callback(lambda _: stirs.nudge())

    async def _tended(self, work: Work, session: Session) -> None:
        tenant = work[1] if work[0] in ("tenant", "pipeline") else ""
        await tended(
            self._context, " ".join((work[0], "/".join(work[1:]))).strip(), self._runner(work), session, tenant
        )

    def _runner(self, work: Work) -> Callable[[Session], Coroutine[Any, Any, None]]:
        cleanup = self._context.map.cleanup
        match work:
            case ("connection", name):
                projects = {n: frozenset(p.project for p in c.tenant.projects) for n, c in self.tenants.items()}
                return ConnectionRunner(self._context, self._forges[name], projects).run
            case ("tenant", name):
                return TenantRunner(self._context, self.tenants[name], self._readings).run
            case ("sweep", "builds"):
                return Sweeper(self._context, self._context.zones, cleanup.build_requests.path, self._apart).run
            case ("sweep", "merges"):
                return Sweeper(
                    self._context, lambda: [self._context.merges], cleanup.merge_requests.path, frozenset
                ).run
            case ("sweep", "general"):
                return Sweeper(self._context, lambda: [Unwanted(self._context)], cleanup.general.path, frozenset).run
            case ("pipeline", tenant, name):
                return PipelineRunner(self._context, self.tenants[tenant], name, self._standings[tenant]).run
            case ("timers",):
                return Timers(self._context, self.tenants).run
            case _:
                raise AssertionError(f"no such work: {work}")

    async def _stop(self, works: list[Work]) -> None:
        await end(*[self._running.pop(work) for work in works])

    def _works(self) -> list[Work]:
        works: list[Work] = [("sweep", "builds"), ("sweep", "merges"), ("sweep", "general"), ("timers",)]
        works += [("connection", name) for name in self._forges]
        for name, configuration in self.tenants.items():
            works.append(("tenant", name))
            works += [("pipeline", name, pipeline) for pipeline in configuration.layouts.landed.pipelines]
        return works

    def _apart(self) -> set[str]:
        """Paths of results that events not yet taken up name."""
        found: set[str] = set()
        for name, configuration in self.tenants.items():
            for pipeline in configuration.layouts.landed.pipelines:
                stream = self._context.map.events.tenant(name).pipelines(pipeline).result.stream
                for waiting in stream.waiting(self._context.mirror, limit=stream.length(self._context.mirror)):
                    if isinstance(waiting.event, BuildEnded | BuildPaused):
                        found.add(waiting.event.apart)
        return found

    def _members(self) -> list[str]:
        """Schedulers that take work, by the path of their entry."""
        found = self._context.members(self._context.map.components.scheduler.path)
        return [path for path, record in found.items() if record.state == "running"]

    async def _publish(self, session: Session) -> None:
        """The tenant file, for processes that do not have it."""
        system, store = self._context.map.system, self._context.store
        async with write_lock(store, session, system.conf_lock.path).hold() as guard:
            try:
                value = await blob.read(store, system.conf.path)
            except ValueError as damaged:
                log.error("%s; the tenant file is written anew", damaged)
                value = None
            if value is None or _digest(value) != self._conf.digest:
                await blob.write(store, system.conf.path, msgspec.json.encode(self._conf), guards=[guard])


def _digest(value: bytes) -> str:
    """Empty for what cannot be read: it is written anew."""
    try:
        return msgspec.json.decode(value, type=SystemConf).digest
    except ValueError:
        return ""


def divided(works: Sequence[Work], members: Sequence[str]) -> dict[str, tuple[Work, ...]]:
    """Member -> its works: all are given to somebody, nobody has more than one above an equal share of a kind, and
    a member that comes or goes moves few.  Same input in any order, same answer."""
    shares: dict[str, list[Work]] = {member: [] for member in members}
    for kind in sorted({work[0] for work in works}) if members else ():
        mine = sorted(work for work in works if work[0] == kind)
        most = -(-len(mine) // len(members))
        given = dict.fromkeys(members, 0)
        for work in mine:
            taker = max((m for m in members if given[m] < most), key=lambda m: _affinity(m, work))
            given[taker] += 1
            shares[taker].append(work)
    return {member: tuple(share) for member, share in shares.items()}


def _affinity(member: str, work: Work) -> bytes:
    return hashlib.sha256("\0".join((member, *work)).encode()).digest()
