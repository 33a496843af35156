"""One pipeline, driven by whoever holds its lock."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from msgspec.structs import replace

from headgate.base.subject import about
from headgate.config.dynamic import Layouts
from headgate.gate.absorb import absorb, unmoved
from headgate.gate.advance import holders
from headgate.gate.change import TriggerEvent
from headgate.gate.decide import settle, unfinished
from headgate.gate.enqueue import concluded
from headgate.gate.model import Action, Cancel, Land, Merge, Record, Resume, Run, State, World
from headgate.gate.start import awaited
from headgate.gate.work import Answer, BuildEnded, BuildOutcome, BuildPaused, LayoutChanged
from headgate.map.places import PipelineEvents, semaphore_of
from headgate.map.records import ForPipeline, Holder, ManagementResult, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes import blob
from headgate.recipes.codec import decode
from headgate.recipes.lock import lock
from headgate.recipes.requests import Open, Requests
from headgate.recipes.stream import Waiting, consumed
from headgate.services.asking import tell
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.keeping import garbage, load
from headgate.services.scheduler.notices import notices, reports
from headgate.services.scheduler.standings import Standings
from headgate.services.scheduler.turn import Piece, Turn, by_buildset, packed
from headgate.services.scheduler.zones import zone_of
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.pipeline")

DISOWN_ATTEMPTS_MAX = 10
EVENTS_MAX = 20
"""Events absorbed in one turn."""

Event = TriggerEvent | Answer | ForPipeline


class PipelineRunner:
    """`configuration` and `standings` are asked for anew at every turn."""

    def __init__(self, context: Context, configuration: Configuration, name: str, standings: Standings) -> None:
        self._context, self.tenant, self.name = context, configuration.tenant.name, name
        self._configuration, self._standings = configuration, standings
        self._state = State()
        self._events: PipelineEvents = context.map.events.tenant(self.tenant).pipelines(name)
        self._place = context.map.tenant(self.tenant).pipeline(name)
        map = context.map
        self._looked_at = (
            self._events.path,
            map.cache.path,
            map.config.path,
            map.layout(self.tenant).path,
            map.semaphores(self.tenant).path,
            map.global_semaphores.path,
        )
        """Prefixes of all that a turn may rest on."""
        self._looked: tuple[object, ...] = ()
        self._layout: Layouts | None = None
        self._torn = False
        """Was some of the last turn recorded before the rest was refused?"""
        self._settled = False
        """Are the semaphores known to be as the state says?"""
        self._littered = False
        """Is there anything that the last holder may have left half-written?"""

    async def run(self, session: Session) -> None:
        """Until cancelled, or until the lock is lost."""
        path = self._context.map.locks.pipeline(self.tenant).pipeline(self.name).lock.path
        async with lock(self._context.store, session, path).hold() as guard:
            await self._take_over()
            with self._context.mirror.part(*self._looked_at) as stirs:
                while True:
                    seen = stirs.moves
                    if not await self._turn(guard):
                        await stirs.moved(seen)

    async def _take_over(self) -> None:
        """The state as the last holder left it."""
        entries = await self._context.store.list(self._place.path)
        self._state = load(self._place, entries)
        self._looked, self._settled, self._littered = (), False, bool(entries)

    async def _tidy(self, guard: At) -> None:
        """What a turn cut short left half-written goes, once the next has taken up of it what it wants, too."""
        for _ in range(DISOWN_ATTEMPTS_MAX):
            if await self._disown(guard):
                break
        entries = await self._context.store.list(self._place.path)
        for commit in packed(Piece([op]) for op in garbage(self._place, entries, self._state)):
            await self._context.store.commit([], commit.ops, guards=[guard])
        self._littered = False

    async def _disown(self, guard: At) -> bool:
        """Cancels requests that a turn cut short left to nobody.  False: one moved meanwhile."""
        wanted = awaited(self._state)
        for queue in (*self._context.zones(), self._context.merges):
            for found in await queue.listed():
                meta = found.request.meta
                ours = (meta.get("tenant"), meta.get("pipeline")) == (self.tenant, self.name) and "item" in meta
                if not ours or found.request.id in wanted or found.request.wanted == "cancel":
                    continue
                try:
                    await self._context.store.commit(*Requests.cancel(found), guards=[guard])
                except GuardLost:
                    raise
                except Conflict:
                    return False
        return True

    async def _turn(self, guard: At) -> bool:
        """One turn; False when there is nothing to do until the mirror moves."""
        if not self._configuration.current():
            return False  # an event that is seen may rest on a layout that is not taken up yet
        events, facts, layouts = self._waiting(), self._facts(), self._configuration.layouts
        if (not events and facts == self._looked) or self.name not in layouts.landed.pipelines:
            return False
        with about(tenant=self.tenant, pipeline=self.name):
            began = time.perf_counter()
            await self._decide(events, facts, layouts, guard)
            self._context.observer.turn(self.tenant, self.name, len(events), time.perf_counter() - began)
        return True

    async def _decide(
        self, events: list[Waiting[Event]], facts: tuple[object, ...], layouts: Layouts, guard: At
    ) -> None:
        seen = self._context.mirror.moves
        events = [await self._whole(event) for event in events]
        world = self._world(layouts)
        after, asked = self._state, list[Action]()
        if layouts is not self._layout:
            after = absorb(after, LayoutChanged(layout=""), world, asked)
        outcomes: dict[str, ManagementResult] = {}
        for event in events:
            after = self._absorb(after, event.event, world, asked, outcomes)
        settled = concluded(self._state, settle(after, world, asked), asked, world)
        after = settled if settled is after else settle(settled, world, asked)
        try:
            await self._record(after, asked, events, world, guard)
        except GuardLost:
            raise
        except Conflict as conflict:
            log.info("%s/%s: %s; deciding again", self.tenant, self.name, conflict)
            if self._torn:
                await self._take_over()
            await self._context.mirror.moved(seen)  # what it did not show stood against it
            return
        looked_at_all = self._settled and not unfinished(asked)
        self._state, self._looked, self._layout = after, facts if looked_at_all else (), layouts
        if self._littered:
            await self._tidy(guard)
        for path, outcome in outcomes.items():
            await tell(self._context, path, outcome)
        tell_of(asked, after)
        for event in events[-1:]:
            await self._context.mirror.gone(event.entry)

    def _absorb(
        self, state: State, event: Event, world: World, asked: list[Action], outcomes: dict[str, ManagementResult]
    ) -> State:
        """`outcomes`: what to tell whoever waits, by place."""
        if not isinstance(event, ForPipeline):
            return absorb(state, event, world, asked)
        after = absorb(state, event.work, world, asked)
        if event.result:
            why = unmoved(event.work, state, after, world)
            outcomes[event.result] = ManagementResult(not why, why)
        return after

    def _waiting(self) -> list[Waiting[Event]]:
        """Management first, as people are waiting; then results, which free resources; then what is new."""
        mirror, found = self._context.mirror, list[Waiting[Event]]()
        for queue in (self._events.management, self._events.result, self._events.trigger):
            found += queue.stream.waiting(mirror, limit=EVENTS_MAX - len(found))  # type: ignore[arg-type]  # of a union
        return found

    async def _whole(self, waiting: Waiting[Event]) -> Waiting[Event]:
        """With what lies apart from it, which goes when it goes."""
        event = waiting.event
        if not isinstance(event, BuildEnded | BuildPaused) or not event.apart:
            return waiting
        try:
            found = await blob.taken(self._context.store, event.apart)
        except ValueError as damaged:
            log.error("%s/%s: %s", self.tenant, self.name, damaged)
            found = None
        if found is None:
            return replace(waiting, event=_lost(event))
        data, besides = decode(found[0], dict[str, Any]), tuple(found[1])
        if isinstance(event, BuildEnded):
            outcome = replace(event.outcome, data=data)
            return replace(waiting, event=replace(event, outcome=outcome), besides=besides)
        return replace(waiting, event=replace(event, data=data), besides=besides)

    def _world(self, layouts: Layouts) -> World:
        pipelines = layouts.landed.pipelines
        known = tuple(name for name in pipelines[self.name].supercedes if name in pipelines)
        return World(
            tenant=self.tenant,
            pipeline=replace(pipelines[self.name], supercedes=known),
            layouts=layouts,
            standings=self._standings.now(),
            now_ms=self._context.now_ms(),
            root_url=self._context.root_url,
            held=self._held(layouts),
            disabled=self._state.disabled,
            dependencies_max=layouts.tenant.max_dependencies,
            changes_max=layouts.tenant.max_changes_per_pipeline,
        )

    def _held(self, layouts: Layouts) -> Counter[str]:
        """Semaphore -> holders in other pipelines, and playbooks."""
        held: Counter[str] = Counter()
        for name in self._semaphore_names(layouts, self._state):
            held[name] = sum(not self._is_ours(h) or h.build != "" for h in self._semaphore(name).holders)
        return held

    def _semaphore_names(self, layouts: Layouts, state: State) -> set[str]:
        graphs = (item.buildset.graph for _, item in state.items() if item.buildset is not None)
        return set(layouts.landed.semaphores).union(*(graph.semaphores for graph in graphs if graph is not None))

    def _semaphore(self, name: str) -> SemaphoreRecord:
        address = self._place_of(name)
        entry = self._context.mirror.get(address.path)
        return address.decode(entry.value) if entry else SemaphoreRecord(())

    def _place_of(self, semaphore: str) -> Address[SemaphoreRecord]:
        shared = semaphore in self._configuration.tenant.semaphores
        return semaphore_of(self._context.map, self.tenant, semaphore, shared=shared)

    def _is_ours(self, holder: Holder) -> bool:
        return holder.pipeline == self.name and holder.tenant in ("", self.tenant)

    def _facts(self) -> tuple[object, ...]:
        """Changes whenever anything outside our own state that a decision may rest on has changed."""
        mirror, map = self._context.mirror, self._context.map
        semaphores = (*mirror.under(map.semaphores(self.tenant).path), *mirror.under(map.global_semaphores.path))
        return self._standings.counted(), id(self._configuration.layouts), *(e.version for e in semaphores)

    def _holding(self, after: State, *, cut: bool = False) -> Piece:
        """The semaphores as this pipeline holds them after the turn; others' holders stay, and playbooks of builds
        that run.  Of a turn that is `cut` none is given up but to another holder of ours: what it was held for is
        still there until the end."""
        piece = Piece()
        before_of, after_of = _by_name(self._state), _by_name(after)
        names = {*before_of, *after_of, *self._configuration.layouts.landed.semaphores}
        running = _running(after) if names else set()

        def left(holder: Holder) -> bool:
            return self._is_ours(holder) and holder.build != "" and holder.build not in running

        for name in sorted(names):
            settled = self._settled and before_of.get(name) == after_of.get(name)
            if settled and not any(map(left, self._semaphore(name).holders)):
                continue
            address = self._place_of(name)
            entry = self._context.mirror.get(address.path)
            holders = self._semaphore(name).holders
            others = tuple(h for h in holders if not self._is_ours(h) or (h.build and not left(h)))
            tenant = self.tenant if name in self._configuration.tenant.semaphores else ""
            ours = tuple(Holder(self.name, buildset, job, "", tenant) for buildset, job in after_of.get(name, ()))
            if cut:
                given_up = [holder for holder in holders if holder not in others + ours]
                others += tuple(given_up[sum(holder not in holders for holder in ours) :])
            if set(others + ours) == set(holders):
                continue
            piece.checks.append(At(address.path, entry.version if entry else None))
            piece.ops.append(address.put(SemaphoreRecord(others + ours)))
        return piece

    async def _to_tell(self, asked: list[Action]) -> dict[str, Open]:
        """The requests whose workers are to be told something: also one of a turn that the mirror does not show yet."""
        context, found = self._context, dict[str, Open]()
        fresh = {action.id for action in asked if isinstance(action, Run)}
        for action in asked:
            if not isinstance(action, Cancel | Resume) or action.id in fresh:
                continue
            merge = isinstance(action, Cancel) and not action.build
            for queue in [context.merges] if merge else context.zones():
                shown = queue.find(action.id, context.mirror)
                found |= {one.request.id: one for one in ([shown] if shown else await queue.listed(action.id))}
        return found

    async def _record(
        self, after: State, asked: list[Action], events: list[Waiting[Event]], world: World, guard: At
    ) -> None:
        context = self._context
        mirror = context.mirror

        told = await self._to_tell(asked)
        turn = Turn(
            map=context.map,
            tenant=self.tenant,
            pipeline=self.name,
            builds=lambda job: context.zone(zone_of(job, context)),
            merges=context.merges,
            told=told,
            mirror=mirror,
            now_ms=context.now_ms(),
        )
        end: list[Op] = consumed(events)
        if context.publishing:
            end += context.published(*notices(self.tenant, self.name, self._state, after, asked, context.now_ms()))
        for connection, postings in reports(self._state, after, asked, world).items():
            end += context.reported(connection, *postings)
        holding, pieces = self._holding(after), turn.pieces(self._state, after, asked, end)
        commits = packed([holding, *pieces], context.ops_max)
        if cut := len(commits) > 1:
            holding = self._holding(after, cut=True)
            commits = packed([holding, *pieces], context.ops_max)
        self._torn = False
        for commit in commits:
            written = await context.store.commit(commit.checks, commit.ops, guards=[guard])
            if not self._torn and cut and holding.ops:
                for entry in written[: len(holding.ops)]:
                    assert entry is not None, "semaphores are put"
                    await mirror.reached(entry.path, entry.version)
            self._torn = True
        self._settled = not cut


def tell_of(asked: list[Action], after: State) -> None:
    """What people look for in the log: what is tested, and tested anew; what lands; what came of every item."""
    of = by_buildset(after) if any(isinstance(action, Merge | Land) for action in asked) else {}
    for action in asked:
        match action:
            case Merge(work=work) | Land(work=work) if (item := of.get(work.buildset)) is not None:
                with about(change=item.change.id, item=item.id, buildset=work.buildset):
                    what = "passed; it is to land" if isinstance(action, Land) else "is to be tested"
                    log.info("%s %s", item.change.id, what)
            case Record(item=item, result=result):
                buildset = item.buildset.id if item.buildset else ""
                with about(change=item.change.id, item=item.id, buildset=buildset):
                    log.info("%s leaves: %s", item.change.id, result)
            case _:
                pass


def _lost(event: BuildEnded | BuildPaused) -> BuildEnded:
    """What a build returned is gone: it is tried again."""
    build = event.outcome.build if isinstance(event, BuildEnded) else event.build
    outcome = BuildOutcome(build=build, error="what it returned was lost")
    return BuildEnded(event.buildset, event.job, outcome)


def _running(state: State) -> set[str]:
    """Builds that have not ended."""
    buildsets = [item.buildset for _, item in state.items() if item.buildset is not None]
    return {b.id for buildset in buildsets for b in buildset.builds.values() if b.result is None}


def _by_name(state: State) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, buildset, job in holders(state):
        found.setdefault(name, []).append((buildset, job))
    return found
