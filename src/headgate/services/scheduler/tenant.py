"""One tenant: its configuration, its events, and the pipelines that come of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from headgate.base.ids import fresh
from headgate.config.branches import included
from headgate.config.dynamic import Layouts
from headgate.config.parse import ParseCache, ParsedBranch
from headgate.config.tenants import Tenant, TenantProject
from headgate.gate.change import EventKind, TriggerEvent
from headgate.gate.enqueue import triggers
from headgate.gate.work import CatAnswer, CatRequest
from headgate.map.records import ConfigBranch, ForPipeline, LayoutRecord, ManagementResult, Reconfigure
from headgate.recipes.lock import lock, write_lock
from headgate.recipes.stream import Waiting, consumed
from headgate.services.context import Context
from headgate.services.scheduler.configfiles import ConfigFiles
from headgate.services.scheduler.pipeline import PipelineRunner
from headgate.services.scheduler.standings import Standings
from headgate.store.store import Session
from headgate.store.types import At, Op, Put

log = logging.getLogger("headgate.tenant")

EVENTS_MAX = 15
UNREAD_RETRY_S = 30.0
"""When a project whose configuration could not be read is asked for again."""


class TenantRunner:
    """`run` drives the tenant for as long as its locks are held; the pipelines run as tasks of it."""

    def __init__(self, context: Context, tenant: Tenant, cache: ParseCache) -> None:
        self._context, self.tenant = context, tenant
        self._cache = cache
        self._files = ConfigFiles(context)
        self._branches: dict[str, dict[str, ParsedBranch]] = {}
        self._commits: dict[str, dict[str, str]] = {}
        self._layouts = Layouts.of(tenant, {}, cache)
        self._events = context.map.events.tenant(tenant.name)
        connections = tuple(dict.fromkeys(p.connection for p in tenant.projects))
        self._standings = Standings(context.map, context.mirror, connections)
        self._pipelines: dict[str, asyncio.Task[None]] = {}
        self._unread: set[str] = set()
        self.loaded = asyncio.Event()

    @property
    def layouts(self) -> Layouts:
        return self._layouts

    async def run(self, session: Session) -> None:
        locks, store, name = self._context.map.locks, self._context.store, self.tenant.name
        async with (
            lock(store, session, locks.events.management(name).lock.path).hold() as management,
            lock(store, session, locks.events.trigger(name).lock.path).hold() as trigger,
        ):
            await self._reconfigure({p.project: () for p in self.tenant.projects}, session)
            self.loaded.set()
            try:
                await self._loop(session, management, trigger)
            finally:
                await self._stop_pipelines(list(self._pipelines))

    async def _loop(self, session: Session, management: At, trigger: At) -> None:
        mirror = self._context.mirror
        while True:
            seen = mirror.moves
            await self._keep_pipelines(session)
            if await self._manage(session, management) or await self._trigger(trigger):
                continue
            moved = asyncio.ensure_future(mirror.moved(seen))
            try:
                done, _ = await asyncio.wait(
                    {moved, *self._pipelines.values()},
                    timeout=UNREAD_RETRY_S if self._unread else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                moved.cancel()
            if not done:
                await self._reconfigure({project: () for project in self._unread}, session)

    # --- pipelines

    async def _keep_pipelines(self, session: Session) -> None:
        """A task for each pipeline of the layout, none for others; a failure of one is ours."""
        wanted = self._layouts.landed.pipelines
        await self._stop_pipelines([name for name in self._pipelines if name not in wanted])
        for name in wanted:
            task = self._pipelines.get(name)
            if task is not None and task.done():
                await task
            if task is None:
                runner = PipelineRunner(
                    self._context,
                    self.tenant.name,
                    name,
                    lambda: self._layouts,
                    self._standings.now,
                    self._facts,
                )
                self._pipelines[name] = asyncio.ensure_future(runner.run(session))

    def _facts(self) -> int:
        return hash((self._standings.counted(), id(self._layouts)))

    async def _stop_pipelines(self, names: list[str]) -> None:
        tasks = [self._pipelines.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- events

    async def _trigger(self, guard: At) -> bool:
        """Moves trigger events on to the pipelines they may concern; stops behind one that changes configuration."""
        waiting = self._events.trigger.stream.waiting(self._context.mirror, limit=EVENTS_MAX)
        if not waiting:
            return False
        ops: list[Op] = []
        done: list[Waiting[TriggerEvent]] = []
        for event in waiting:
            done.append(event)
            ops += self._forward(event.event)
            if changed := self._configuration_in(event.event):
                ops += self._events.management.stream.append(changed)
                break
        await self._context.store.commit([], [*ops, *consumed(done)], guards=[guard])
        await self._context.mirror.gone(done[-1].entry)
        return True

    def _forward(self, event: TriggerEvent) -> Iterable[Op]:
        """To pipelines it triggers; news of a change's patchsets to all, as any may hold an older one."""
        news = event.kind in (EventKind.PROPOSED, EventKind.ABANDONED)
        for name, pipeline in self._layouts.landed.pipelines.items():
            if news or triggers(pipeline, event):
                yield from self._events.pipelines(name).trigger.stream.append(event)

    def _configuration_in(self, event: TriggerEvent) -> Reconfigure | None:
        change = event.change
        if event.kind is not EventKind.REF_UPDATED or self.tenant.find(change.project) is None:
            return None
        if not change.ref.startswith("refs/heads/"):
            return None
        created_or_deleted = "0" * 40 in (change.old_commit, change.commit)
        if created_or_deleted or self._layouts.landed.touches_config(change.project, change.files):
            return Reconfigure({change.project: ()})
        return None

    async def _manage(self, session: Session, guard: At) -> bool:
        """Acts on what people and reconfigurations ask."""
        waiting = self._events.management.stream.waiting(self._context.mirror, limit=EVENTS_MAX)
        if not waiting:
            return False
        ops: list[Op] = consumed(waiting)
        projects: dict[str, tuple[str, ...]] = {}
        for event in waiting:
            match event.event:
                case Reconfigure(projects=named):
                    projects |= named
                case ForPipeline(pipeline=name, work=work, result=result):
                    known = name in self._layouts.landed.pipelines
                    if known:
                        ops += self._events.pipelines(name).management.stream.append(work)
                    if result and self._context.mirror.get(result) is not None:
                        text = "" if known else f"tenant {self.tenant.name} has no pipeline {name}"
                        ops.append(self._outcome(result, known, text))
        if projects:
            await self._reconfigure(projects, session)
        await self._context.store.commit([], ops, guards=[guard])
        await self._context.mirror.gone(waiting[-1].entry)
        return True

    def _outcome(self, path: str, done: bool, text: str) -> Op:
        entry = self._context.mirror.get(path)
        place = self._context.map.results.management
        return Put(path, place.encode(ManagementResult(done, text)), entry.lease if entry else None)

    # --- configuration

    async def _reconfigure(self, projects: dict[str, tuple[str, ...]], session: Session) -> None:
        """Reads the configuration of these projects anew and puts the layout that follows into effect."""
        ltime = await self._files.ltime()
        sources = [p for p in self.tenant.projects if p.project in projects]
        answers = await asyncio.gather(*(self._read(source, session) for source in sources))
        path = self._context.map.locks.tenant(self.tenant.name).lock.path
        async with write_lock(self._context.store, session, path).hold() as guard:
            for source, answer in zip(sources, answers, strict=True):
                await self._take(source, answer, guard)
            layouts = Layouts.of(self.tenant, self._branches, self._cache)
            record = LayoutRecord(
                uuid=fresh(),
                tenant=self.tenant.name,
                at_ms=self._context.now_ms(),
                ltime=ltime,
                branches=self._commits,
                errors=len(layouts.landed.errors),
            )
            address = self._context.map.layout(self.tenant.name).record
            await self._context.store.commit([], [address.put(record)], guards=[guard])
        for error in layouts.landed.errors:
            log.warning("tenant %s: %s", self.tenant.name, error.render())
        self._layouts = layouts

    async def _read(self, source: TenantProject, session: Session) -> CatAnswer:
        branches = (source.load_branch,) if source.trusted else ()
        work = CatRequest(source.project, source.connection, branches, source.config_paths)
        meta = {"tenant": self.tenant.name, "project": source.project}
        answer = await self._context.merges.call(session, msgspec.json.encode(work), precedence=100, meta=meta)
        return msgspec.json.decode(answer, type=CatAnswer)

    async def _take(self, source: TenantProject, answer: CatAnswer, guard: At) -> None:
        """Into the cache and into use; a project that cannot be read keeps what was read of it last."""
        self._unread.discard(source.project)
        if not answer.ok:
            self._unread.add(source.project)
            log.error(
                "tenant %s: %s: %s; going on with what was read last", self.tenant.name, source.name, answer.error
            )
            cached = await self._files.recall(source)
            if source.project not in self._branches:
                self._use(source, cached)
            return
        wanted = {
            branch: (ConfigBranch(commit, source.config_paths), answer.files.get(branch, {}))
            for branch, commit in answer.branches.items()
            if included(source, branch)
        }
        await self._files.remember(source, wanted, guard)
        self._use(source, wanted)

    def _use(self, source: TenantProject, found: dict[str, tuple[ConfigBranch, dict[str, str]]]) -> None:
        parsed = {branch: self._cache.parse(source, branch, files) for branch, (_, files) in found.items()}
        self._branches[source.project] = parsed
        self._commits[source.project] = {branch: record.commit for branch, (record, _) in found.items()}
