"""Run the scheduler: connections, tenants, pipelines and sweeps, divided among the running schedulers.

Every scheduler computes the same division from the same registry.  Their views may differ for a moment.  That does no
harm: each task runs under its lock, so the division only decides which schedulers wait for that lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from headgate.base.tasks import end, run_until
from headgate.config.operator.model import Connection, Tenant, TenantFile, TenantProject
from headgate.config.parse import ParseCache
from headgate.gate.state.works import BuildEnded, BuildPaused
from headgate.map.records import RepositoryProblem
from headgate.map.tree import unescape
from headgate.ports.forge import ForgeWatch
from headgate.ports.occasions import OccasionSource
from headgate.recipes.mirrorpart import MirrorPart
from headgate.services.autohold import Expiring
from headgate.services.configuration import Configuration, Tenancy, conf_of, readers
from headgate.services.context import Context
from headgate.services.quarantine import tended
from headgate.services.scheduler import leftovers
from headgate.services.scheduler.changestates import ChangeStates
from headgate.services.scheduler.connection import ConnectionRunner
from headgate.services.scheduler.occasions.runner import OccasionRunner
from headgate.services.scheduler.pipeline import PipelineRunner
from headgate.services.scheduler.tenant import TenantRunner
from headgate.services.scheduler.tenantconfig import Reading
from headgate.services.scheduler.tenantfile import TenantFileRunner, VanishedConfiguration, VanishedTenant
from headgate.services.scheduler.timers import Timers
from headgate.store.store import Session

log = logging.getLogger("headgate.scheduler")

SWEEPS = ("builds", "merges", "connections", "nodes", "semaphores", "general")
Work = tuple[str, ...]
"""("connection", name), ("tenant", name), ("pipeline", tenant, name), ("sweep", one of SWEEPS), ("timers",),
("holds",), or ("file",), the tenant file. Removed tenants and pipelines that have left something behind are
included."""


class _RunningWork(NamedTuple):
    """Hold a running task of this process."""

    rests_on: object
    """The part of the tenant file that the task depends on; when it changes, the task is restarted."""
    task: asyncio.Task[None]


class _Rights:
    """Determine which tenant reads which projects. This is computed only once per tenant file, which may have thousands
    of projects."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self.tenants = tenants
        self.followed = {name: frozenset(p.project for p in one.projects) for name, one in tenants.items()}
        """Tenant -> its projects."""
        self._read_by = readers(tenants.values())
        # Selective projects come last, because in `sources` the last of several tenants' entries of a project wins.
        self._every = sorted((p for one in tenants.values() for p in one.projects), key=_is_selective)
        self._sources: dict[str, dict[str, TenantProject]] = {}
        self._readings: dict[str, dict[str, Reading]] = {}

    def sources(self, connection: str) -> dict[str, TenantProject]:
        """Return the projects of a connection that any tenant has. If a tenant selects branches of a project, return
        that tenant's entry."""
        if connection not in self._sources:
            self._sources[connection] = {p.project: p for p in self._every if p.connection == connection}
        return self._sources[connection]

    def readings(self, tenant: str) -> dict[str, Reading]:
        """Return the settings for reading each of a tenant's projects, combined from all tenants that have it."""
        if tenant not in self._readings:
            projects = self.tenants[tenant].projects
            self._readings[tenant] = {p.project: Reading(tuple(self._read_by[p.project])) for p in projects}
        return self._readings[tenant]


class Scheduler:
    """Divide and run the tasks; `run` is the body of the component."""

    def __init__(
        self,
        context: Context,
        tenants: Tenancy,
        forges: Mapping[str, ForgeWatch],
        file: TenantFileRunner,
        watched: Mapping[str, OccasionSource] | None = None,
    ) -> None:
        """Create a scheduler. `forges` and `watched` map names to connections."""
        self._context, self._forges, self.tenants, self.file = context, forges, tenants, file
        self._watched = watched or {}
        self._change_states: dict[tuple[str, ...], ChangeStates] = {}
        self._running: dict[Work, _RunningWork] = {}
        self._known_rights: _Rights | None = None
        self._left, self._gone = leftovers.Leftovers(context, tenants), dict[str, VanishedConfiguration]()

    @classmethod
    def of(
        cls,
        context: Context,
        text: str,
        tenants: dict[str, Tenant] | TenantFile,
        path: str,
        forges: Mapping[str, ForgeWatch],
        cache: ParseCache | None = None,
        connections: Mapping[str, Connection] | None = None,
        read: Callable[[], str] | None = None,
        watched: Mapping[str, OccasionSource] | None = None,
        refused: RepositoryProblem | None = None,
    ) -> Scheduler:
        """Create a scheduler. `text` is the tenant file at `path` from which `tenants` were read, and `read` reads it
        again, with the names of these `connections`. `refused` is the reason why the current file was rejected."""
        conf, file = conf_of(text, path), tenants if isinstance(tenants, TenantFile) else TenantFile(tenants)
        if refused is not None:
            conf = replace(conf, refused=refused.text, refused_ms=refused.since_ms)
        tenancy = Tenancy(context, connections or {}, cache=cache, read=(conf, file))
        return cls(context, tenancy, forges, TenantFileRunner(context, tenancy, conf, read), watched)

    async def run(self, session: Session) -> None:
        await self.file.publish(session)
        map = self._context.map
        prefixes = (map.components.scheduler.path, map.layout.path, map.config.path, map.system.conf.path)
        try:
            with self._context.mirror.part(*prefixes) as stirs:
                works, looks = self._works_on(session, stirs), self._left.look(stirs.nudge)
                await run_until(asyncio.Event(), works, looks, self.file.obeys(session))
        finally:
            await self._stop(list(self._running))

    async def _works_on(self, session: Session, stirs: MirrorPart) -> None:
        while True:
            seen = stirs.moves
            await self._keep(divided(self._works(), self._members()).get(session.name, ()), session, stirs)
            await stirs.moved(seen)

    async def _keep(self, mine: Collection[Work], session: Session, stirs: MirrorPart) -> None:
        """Run exactly the tasks that are ours. A task ends only if the session or a lock is lost, or if there is
        nothing more to do for it."""
        rests_on = {work: self._rests_on(work) for work in mine}
        await self._stop([work for work, running in self._running.items() if rests_on.get(work) != running.rests_on])
        for work in mine:
            running = self._running.get(work)
            if running is not None and running.task.done():
                # This raises errors that a restart does not fix, such as the loss of the session or of a lock.
                await running.task
                del self._running[work]  # the task had finished, but there is more to do
                running = None
            if running is None:
                task = asyncio.ensure_future(self._tended(work, session))
                self._running[work] = _RunningWork(rests_on[work], task)
                # The end of a task changes nothing in the store, so the loop must be woken.
                task.add_done_callback(lambda _: stirs.nudge())

    def _rests_on(self, work: Work) -> object:
        """Return the part of the tenant file that is fixed when the task starts; never None."""
        match work:
            case ("connection", name) if name in self._forges:
                return self._rights().followed, self._rights().sources(name)
            case ("tenant", name):
                return (self.tenants[name].tenant, self._rights().readings(name)) if name in self.tenants else ()
            case ("pipeline", tenant, _):
                return _connections(self._of(tenant).tenant), tenant in self.tenants
            case _:
                return ()

    def _rights(self) -> _Rights:
        """Return the assignment of projects to the tenants that read them, computed again only if the tenant file has
        changed."""
        # Comparing all tenants is cheaper than computing everything, and most calls are about layouts and members.
        tenants = self.tenants.tenants()
        if self._known_rights is None or self._known_rights.tenants != tenants:
            self._known_rights = _Rights(tenants)
        return self._known_rights

    def _of(self, tenant: str) -> Configuration:
        """Return the tenant's configuration; for a removed tenant, an empty one."""
        known = self.tenants.get(tenant)
        if known is None and tenant not in self._gone:
            self._gone[tenant] = VanishedConfiguration(self._context, tenant)
        return known or self._gone[tenant]

    def _known(self, tenant: str) -> ChangeStates:
        """Return the change states known to the tenant's connections; tenants with the same connections share one
        view."""
        names = _connections(self._of(tenant).tenant)
        found = self._change_states.get(names)
        if found is None:
            found = self._change_states[names] = ChangeStates(self._context.map, self._context.mirror, names)
        return found

    async def _tended(self, work: Work, session: Session) -> None:
        tenant = work[1] if work[0] in ("tenant", "pipeline") else ""
        await tended(
            self._context, " ".join((work[0], "/".join(work[1:]))).strip(), self._runner(work), session, tenant
        )

    def _sweeper(self, kind: str) -> leftovers.ResultSweeper:
        context, cleanup = self._context, self._context.map.cleanup
        match kind:
            case "builds":
                return leftovers.ResultSweeper(context, context.zones, cleanup.build_requests.path, self._apart)
            case "merges":
                return leftovers.ResultSweeper(context, lambda: [context.merges], cleanup.merge_requests.path)
            case "connections":
                gone = leftovers.Disconnected(context, {*self._forges, *self._watched})
                place, looks = cleanup.connection.path, leftovers.CONNECTION_LOOKS
                return leftovers.ResultSweeper(context, lambda: [gone], place, looks=looks, locks=gone.locks)
            case "nodes":
                return leftovers.ResultSweeper(context, lambda: [leftovers.Unasked(context)], cleanup.node_request.path)
            case "semaphores":
                forsaken = leftovers.Forsaken(context)
                return leftovers.ResultSweeper(
                    context, lambda: [forsaken], cleanup.sempahores.path, mended=forsaken.mended
                )
            case _:
                return leftovers.ResultSweeper(context, lambda: [leftovers.Unwanted(context)], cleanup.general.path)

    def _runner(self, work: Work) -> Callable[[Session], Coroutine[Any, Any, None]]:
        match work:
            case ("connection", name) if name in self._watched:
                return OccasionRunner(self._context, self._watched[name], self.tenants).run
            case ("connection", name):
                # The projects are set before the first check. When they change, `_rests_on` also changes, which
                # restarts the task.
                forge = self._forges[name]
                forge.look_at(self._rights().sources(name))
                return ConnectionRunner(self._context, forge, self._rights().followed, beside=tuple(self._forges)).run
            case ("tenant", name) if name not in self.tenants:
                return VanishedTenant(self._context, name, self.tenants).run
            case ("tenant", name):
                return TenantRunner(self._context, self.tenants[name], self._rights().readings(name)).run
            case ("file",):
                return self.file.run
            case ("sweep", _):
                return self._sweeper(work[1]).run
            case ("pipeline", tenant, name):
                return PipelineRunner(self._context, self._of(tenant), name, self._known(tenant)).run
            case ("timers",):
                return Timers(self._context, self.tenants).run
            case ("holds",):
                return Expiring(self._context).run
            case _:
                raise AssertionError(f"no such work: {work}")

    async def _stop(self, works: list[Work]) -> None:
        await end(*[self._running.pop(work).task for work in works])

    def _works(self) -> list[Work]:
        works: list[Work] = [*(("sweep", kind) for kind in SWEEPS), ("timers",), ("holds",), ("file",)]
        works += [("connection", name) for name in (*self._forges, *self._watched)]
        for name, configuration in self.tenants.items():
            works.append(("tenant", name))
            works += [("pipeline", name, pipeline) for pipeline in configuration.layouts.landed.pipelines]
        works += [("tenant", name) for name in self._left.tenants()]
        works += [("pipeline", *of) for of in self._left.pipelines()]
        return works

    def _apart(self) -> set[str]:
        """Return the paths of results to which unhandled events refer."""
        found, mirror, events = set[str](), self._context.mirror, self._context.map.events
        for name in map(unescape, mirror.names(events.tenant.path)):
            for pipeline in map(unescape, mirror.names(events.tenant(name).pipelines.path)):
                stream = events.tenant(name).pipelines(pipeline).result.stream
                for waiting in stream.waiting(mirror, limit=stream.length(mirror)):
                    if isinstance(waiting.event, BuildEnded | BuildPaused):
                        found.add(waiting.event.apart)
        return found

    def _members(self) -> list[str]:
        """Return the paths of the entries of all running schedulers."""
        found = self._context.members(self._context.map.components.scheduler.path)
        return [path for path, record in found.items() if record.state == "running"]


def _is_selective(project: TenantProject) -> bool:
    return project.is_selective


def _connections(tenant: Tenant) -> tuple[str, ...]:
    """Return the connections of the tenant's projects."""
    return tuple(dict.fromkeys(project.connection for project in tenant.projects))


def divided(works: Sequence[Work], members: Sequence[str]) -> dict[str, tuple[Work, ...]]:
    """Map each member to its tasks. Every task has a member, no member has more of a kind than the rounded-up equal
    share, and a member that joins or leaves moves few tasks. The order of the input does not matter."""
    shares: dict[str, list[Work]] = {member: [] for member in members}
    # Each kind is divided separately, so that no member gets all the connections and another all the sweeps.
    for kind in sorted({work[0] for work in works}) if members else ():
        mine = sorted(work for work in works if work[0] == kind)
        most = -(-len(mine) // len(members))
        given = dict.fromkeys(members, 0)
        for work in mine:
            # This is rendezvous hashing with a limit: a member that leaves gives away its own tasks, and almost no
            # others move. The tasks are sorted because the limit makes the result depend on their order.
            taker = max((m for m in members if given[m] < most), key=lambda m: _affinity(m, work))
            given[taker] += 1
            shares[taker].append(work)
    return {member: tuple(share) for member, share in shares.items()}


# Python's `hash` differs from process to process, but all must compute the same value.
def _affinity(member: str, work: Work) -> bytes:
    return hashlib.sha256("\0".join((member, *work)).encode()).digest()
