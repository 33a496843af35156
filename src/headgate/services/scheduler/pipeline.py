"""Run the turns of one pipeline, as the holder of its lock."""

from __future__ import annotations

import asyncio
import logging
import time

from msgspec.structs import replace

from headgate.base.errors import HeadgateError
from headgate.base.ids import derived, fresh
from headgate.base.tasks import about
from headgate.config.dynamic import TenantLayouts
from headgate.gate.absorb import absorb
from headgate.gate.builds.advance import taken_by
from headgate.gate.builds.carry import is_due, left_ms
from headgate.gate.builds.start import awaited
from headgate.gate.decide import settle
from headgate.gate.items.enqueue import concluded
from headgate.gate.items.gestures import unmoved
from headgate.gate.items.leave import set_aside
from headgate.gate.items.renewal import as_it_was, dissolved, remembered
from headgate.gate.items.trial import idle_since, never_idle, unfinished
from headgate.gate.rules.requirements import triggers
from headgate.gate.state.actions import Action, Faulty
from headgate.gate.state.change import EventKind, TriggerEvent, whose
from headgate.gate.state.management import LayoutChanged
from headgate.gate.state.model import State
from headgate.gate.state.works import Answer, BuildEnded
from headgate.gate.state.world import World
from headgate.map.places import PipelineEvents
from headgate.map.records import ForPipeline, ManagementResult
from headgate.map.state import Damaged, garbage, load
from headgate.recipes.lock import lock
from headgate.recipes.mirrorpart import MirrorPart
from headgate.recipes.stream import StreamConsumer, Unread
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.nodes.requester import zone_of
from headgate.services.orders import state_of, tell
from headgate.services.quarantine import TRY_AGAIN_S, Quarantine, Tries, error_text
from headgate.services.scheduler.bygone import image_ops
from headgate.services.scheduler.changestates import ChangeStates
from headgate.services.scheduler.events import Event, complete
from headgate.services.scheduler.leftovers import disowned, ended, leftover, removed
from headgate.services.scheduler.proposals import Proposals
from headgate.services.scheduler.semaphores import Semaphores
from headgate.services.scheduler.turn import PipelineTurn, TurnPart, packed
from headgate.services.scheduler.turnoutput import batched, notified, outboxes, reports, tell_of, turn_events
from headgate.services.scheduler.verdicts import PipelinePast
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Op, Put, SessionLost, TooLarge, Unavailable

log = logging.getLogger("headgate.pipeline")

DISOWN_ATTEMPTS_MAX = 10
Events = list[Unread[Event]]
EVENTS_MAX = 20
"""Limit on the events absorbed in one turn."""
FRESH_MIN = 5
"""Number of events of a turn that are reserved for triggers, however many results wait."""


class FaultyEvent(HeadgateError):
    """Report an event whose handling raises an error, which is the cause."""

    def __init__(self, waiting: Unread[Event]) -> None:
        super().__init__(waiting.entry)
        self.waiting = waiting


class PipelineRunner:
    """Run one pipeline. `configuration` and `change_states` are read again at every turn."""

    def __init__(self, context: Context, configuration: Configuration, name: str, change_states: ChangeStates) -> None:
        self._context, self.tenant, self.name = context, configuration.tenant.name, name
        self._configuration, self._change_states, map = configuration, change_states, context.map
        self._state, self._proposals = State(), Proposals(None, lambda: None)
        self._past = PipelinePast(context, self.tenant, name, lambda: None)
        self._events: PipelineEvents = context.map.events.tenant(self.tenant).pipelines(name)
        self._place = context.map.tenant(self.tenant).pipeline(name)
        self._semaphores = Semaphores(context, configuration, name)
        self._triggers = StreamConsumer(self._events.trigger.stream, context.mirror, whose)
        self._quarantine, self._tries = Quarantine(context), Tries()
        self._most = EVENTS_MAX
        """Limit on the events in the next turn; it shrinks while turns raise errors, to find the event that causes
        them."""
        self._aside: dict[str, str] = {}
        """Item that the next turn moves to the quarantine -> reason."""
        self._damaged: tuple[Damaged, ...] = ()
        """Damaged entries that the last holder of the lock left, and that belong to no item of the state."""
        self._looked_at = (
            self._events.path,
            map.cache.path,
            map.config.path,
            map.layout(self.tenant).path,
            map.events.tenant(self.tenant).state.path,
            *self._semaphores.places,
        )
        """Prefixes of everything that a turn may depend on."""
        self._looked: tuple[object, ...] = ()
        self._layout: TenantLayouts | None = None
        self._torn = False
        """Whether only a part of the last turn was recorded before the rest was refused."""
        self._settled = False
        """Whether the semaphores are known to agree with the state."""
        self._littered = False
        """Whether there may be entries that the last holder of the lock left half-written."""

    async def run(self, session: Session) -> None:
        """Run until cancelled, until the lock is lost, or until a removed pipeline is empty and deleted."""
        path = self._context.map.locks.pipeline(self.tenant).pipeline(self.name).lock.path
        async with lock(self._context.store, session, path).hold() as guard:
            await self._take_over()  # Another process may have written until this process got the lock.
            with self._context.mirror.part(*self._looked_at) as stirs:
                async with (
                    Proposals(self._context.judging, stirs.nudge) as self._proposals,
                    PipelinePast(self._context, self.tenant, self.name, stirs.nudge) as self._past,
                ):
                    await self._turns(stirs, guard)

    async def _turns(self, stirs: MirrorPart, guard: At) -> None:
        """Take turns; once a removed pipeline is empty, delete its data and return."""
        while True:
            seen = stirs.moves
            if not await self._turn(guard):
                if not self._state.queues and self._configuration.current() and self._without:
                    if not await ended(self._context, self.tenant, self.name, guard):
                        continue
                    log.info("%s/%s is empty and is being deleted: %s", self.tenant, self.name, self._without)
                    pieces = [*self._semaphores.given_up(), *leftover(self._context, self._place, self._events)]
                    return await removed(self._context, pieces, [guard])
                with self._semaphores.patience(stirs.nudge, left_ms(self._state, self._context.now_ms())):
                    await stirs.moved(seen)

    @property
    def _without(self) -> str:
        """Return why the pipeline no longer exists; empty while it does."""
        return self._configuration.without(self.name)

    async def _take_over(self) -> None:
        """Load the state that the last holder of the lock left, and note its unreadable entries."""
        entries = await self._context.store.list(self._place.path)
        self._state, damaged = load(self._place, entries)
        self._aside = {one.item: f"{one.path} cannot be read: {one.why}" for one in damaged if one.item}
        self._damaged = tuple(one for one in damaged if not one.item)
        self._looked, self._settled, self._littered = (), False, bool(entries)

    async def _tidy(self, guard: At) -> None:
        """Remove half-written entries and requests of an interrupted turn, once a later turn is recorded."""
        if not self._littered:
            return
        for _ in range(DISOWN_ATTEMPTS_MAX):
            if await disowned(self._context, self.tenant, self.name, awaited(self._state), guard):
                break
        entries = await self._context.store.list(self._place.path)
        for commit in packed(TurnPart([op]) for op in garbage(self._place, entries, self._state)):
            await self._context.store.commit([], commit.ops, guards=[guard])
        self._littered = False

    async def _turn(self, guard: At) -> bool:
        """Take one turn; return False if there is nothing to do until the mirror changes."""
        if not self._configuration.current():
            return False  # a visible event may depend on a layout that is not loaded yet
        events, facts, layouts = self._waiting(), self._facts(), self._configuration.layouts
        if (not events and facts == self._looked) or (self.name not in layouts.landed.pipelines and not self._without):
            return False
        idle = not events and self._state.is_idle and not self._aside and self._semaphores.of_others()
        # Only changes or semaphores have changed, and an idle pipeline has neither.
        if idle and facts[1:2] == self._looked[1:2]:
            return False
        with about(tenant=self.tenant, pipeline=self.name):
            began = time.perf_counter()
            try:
                await self._decide(events, facts, layouts, guard)
                self._most = min(2 * self._most, EVENTS_MAX)
            except (GuardLost, SessionLost, Unavailable):
                raise
            except Exception as error:
                await self._blame(error, events, facts, layouts, guard)
            self._past.look()
            self._context.observer.turn(self.tenant, self.name, len(events), time.perf_counter() - began)
        return True

    async def _blame(
        self, error: Exception, events: Events, facts: tuple[object, ...], layouts: TenantLayouts, guard: At
    ) -> None:
        """Find the event or item that caused the error of a turn, and move it to the quarantine after a few attempts.
        Raise the error if neither caused it."""
        log.warning("%s/%s: a turn with %d events failed", self.tenant, self.name, len(events), exc_info=error)
        if self._torn:
            await self._take_over()  # The store has a prefix of the turn.
        if isinstance(error, Faulty) and error.item:
            if self._tries.spent(error.item):
                self._aside[error.item] = error_text(error.__cause__ or error)
        elif isinstance(error, FaultyEvent):
            await self._event_aside(error.waiting, error.__cause__ or error, guard)
        elif len(events) > 1:
            self._most = len(events) // 2  # Halve the turn until the culprit is alone.
            return
        elif events:
            await self._decide([], facts, layouts, guard)  # If this also raises, the event is not the cause.
            await self._event_aside(events[0], error, guard)
        else:
            raise error
        await asyncio.sleep(TRY_AGAIN_S)

    async def _event_aside(self, waiting: Unread[Event], error: BaseException, guard: At) -> None:
        if not self._tries.spent(waiting.entry):
            return
        queue = waiting.entry.rpartition("/")[0]
        ops, why = self._quarantine.event(waiting, queue, error, self.tenant), f"it was set aside: {error_text(error)}"
        await self._context.store.commit([], ops, guards=[guard])
        if isinstance(waiting.event, ForPipeline) and waiting.event.result:
            await tell(self._context, waiting.event.result, ManagementResult(False, why))
        await self._context.mirror.gone(waiting.entry)

    async def _decide(self, events: Events, facts: tuple[object, ...], layouts: TenantLayouts, guard: At) -> None:
        seen = self._context.mirror.moves
        events = [await complete(self._context, event) for event in events]
        world, why = self._world(layouts), self._without
        after, actions, outcomes = self._state, list[Action](), dict[str, ManagementResult]()
        if layouts is not self._layout and not why:
            after = absorb(after, LayoutChanged(layout="", taken_over=self._layout is None), world, actions)
        for event in events:
            try:
                after = self._absorb(after, event.event, world, actions, outcomes)
            except Exception as error:
                raise FaultyEvent(event) from error
        aside = self._leaving(world)
        for id, fault in self._aside.items():
            after = set_aside(after, id, f"Headgate cannot handle it: {fault}", world, actions)
        after = dissolved(after, why, world, actions) if why else self._settled_by(after, world, actions, facts)
        try:
            await self._record(after, actions, events, world, aside, guard)
        except GuardLost:
            raise
        except Conflict as conflict:
            # This is normal: every landing changes records that turns read.
            log.debug("%s/%s: %s; deciding again", self.tenant, self.name, conflict)
            if self._torn:  # A part of the turn is in the store.
                await self._take_over()
            await self._context.mirror.moved(seen)  # the turn conflicted with something that the mirror did not show
            return
        self._state, self._layout, self._aside, self._damaged = after, layouts, {}, ()
        self._looked = facts if self._settled and not unfinished(actions) else ()
        await self._tidy(guard)
        for path, outcome in outcomes.items():  # Only after the record: a failed turn is decided again.
            await tell(self._context, path, outcome)
        tell_of(actions, after)
        # Events are removed in order: once the mirror lacks the last one, no turn reads any of them again.
        for event in events[-1:]:
            await self._context.mirror.gone(event.entry)

    def _settled_by(self, after: State, world: World, actions: list[Action], facts: tuple[object, ...]) -> State:
        idle = idle_since(self._state) if facts == self._looked else never_idle
        settled = concluded(self._state, settle(after, world, actions, idle), actions, world)
        after = settled if settled is after else settle(settled, world, actions, idle)
        return remembered(after, world.pipeline)

    def _absorb(
        self, state: State, event: Event, world: World, actions: list[Action], outcomes: dict[str, ManagementResult]
    ) -> State:
        """Return the state with the event absorbed; add answers for waiting callers to `outcomes`, by path."""
        waits = isinstance(event, Answer) or (isinstance(event, TriggerEvent) and event.change.occasion is not None)
        if (why := self._without) and not waits:
            outcomes |= {event.result: ManagementResult(False, why)} if isinstance(event, ForPipeline) else {}
            return state
        if not isinstance(event, ForPipeline):
            return absorb(state, event, world, actions)
        after = absorb(state, event.work, world, actions)
        if event.result:
            why = unmoved(event.work, state, after, world)
            outcomes[event.result] = ManagementResult(not why, why)
        return after

    def _leaving(self, world: World) -> list[TurnPart]:
        """Return operations that write the items and records that this turn sets aside to the quarantine."""
        pieces, of = list[TurnPart](), {item.id: item for _, item in self._state.items()}
        gone = [(of[id].change, why, id) for id, why in self._aside.items() if id in of and of[id].live]
        gone += [(one.change, f"{one.path}: {one.why}", one.path) for one in self._damaged if one.change is not None]
        for change, why, id in gone:
            again = (TriggerEvent(kind, change, fresh(), world.now_ms) for kind in EventKind)
            event = next((event for event in again if triggers(world.pipeline, event)), None)
            subject = f"{change.id} of {change.project} in {self.name}"
            pieces.append(TurnPart(self._quarantine.change(id, subject, why, self.tenant, self._events, event)))
        for one in self._damaged:
            if one.change is None:
                ops = self._quarantine.put(derived(one.path), "record", one.path, one.why, self.tenant)
                pieces.append(TurnPart(ops))
        return pieces

    def _waiting(self) -> Events:
        """Return the events of the next turn: management first, because people wait; then results, which free
        resources; then triggers, some of which are always included."""
        mirror, most, found = self._context.mirror, self._most, Events()
        triggers, paused = self._triggers.waiting(most), state_of(self._context, self.tenant).result_queue_paused
        for queue in (self._events.management, *(() if paused else (self._events.result,))):
            limit = most - len(found) - min(FRESH_MIN, len(triggers), most // 2)
            found += queue.stream.waiting(mirror, limit=limit)
        found += triggers[: most - len(found)]  # type: ignore[arg-type]  # one of the union
        return found

    def _world(self, layouts: TenantLayouts) -> World:
        pipelines = layouts.landed.pipelines
        own = pipelines.get(self.name) or as_it_was(self.name, self._state.remains)
        known = tuple(name for name in own.supercedes if name in pipelines)
        return World(
            tenant=self.tenant,
            pipeline=replace(own, supercedes=known),
            layouts=self._proposals.over(layouts),
            change_states=self._change_states.under(layouts.landed),
            now_ms=self._context.now_ms(),
            root_url=self._context.pages.url,
            held=self._semaphores.held(layouts, self._state),
            taken_by=taken_by(self._state),
            waiters=self._semaphores.waiters(layouts, self._state),
            disabled=self._state.disabled,
            dependencies_max=layouts.tenant.max_dependencies,
            changes_max=layouts.tenant.max_changes_per_pipeline,
            beside=self._past.beside(pipelines, layouts.tenant.trusted),
            dependants=self._change_states.needing,
            closings=state_of(self._context, self.tenant).closings,
            merging=self._context.merging,
        )

    def _facts(self) -> tuple[object, ...]:
        """Return the facts outside our own state on which a decision may depend: changes, all others, semaphores."""
        layouts, answered = id(self._configuration.layouts), self._proposals.answered + self._past.answered
        orders, due = state_of(self._context, self.tenant), is_due(self._state, self._context.now_ms())
        rest = layouts, answered, orders, due, self._state.disabled
        return self._change_states.counted(), rest, self._semaphores.versions()

    async def _record(
        self, after: State, actions: list[Action], events: Events, world: World, aside: list[TurnPart], guard: At
    ) -> None:
        """Write the turn. Raise Faulty if part of an item is too large for any commit."""
        context, mirror, self._torn = self._context, self._context.mirror, False
        turn = PipelineTurn(
            map=context.map,
            tenant=self.tenant,
            pipeline=self.name,
            builds=lambda job: context.zone(zone_of(job, context, self.tenant)),
            merges=context.merges,
            notified=await notified(context, actions),
            mirror=mirror,
            now_ms=context.now_ms(),
            outcomes={e.event.outcome.build: e.event.outcome for e in events if isinstance(e.event, BuildEnded)},
            outboxes=outboxes(context, world),
            remembers=context.remembers(),
        )
        news, reported = self._news(after, actions, world)
        ends = [*news, *(TurnPart(event.consume()) for event in events)]
        pieces = turn.pieces(self._state, after, actions, ends, reported)
        for piece in pieces:  # Nothing is written yet, so the store has no half-written turn.
            if piece.item and not piece.fits:
                raise Faulty(piece.item) from TooLarge("its record is too large for the store")
        rest = [*aside, *pieces, *(TurnPart([op]) for event in events for op in event.besides)]
        facts = self._state, after, turn.notified, turn.outcomes
        places = self._semaphores.holding(*facts, settled=self._settled)
        commits = packed([*places, *rest], context.settings.ops_max)
        if cut := len(commits) > 1:
            places = self._semaphores.holding(*facts, settled=self._settled, cut=True)
            commits = packed([*places, *rest], context.settings.ops_max)
        held = {op.path for piece in places for op in piece.ops if isinstance(op, Put)}
        for commit in commits:
            written = await context.store.commit(commit.checks, commit.ops, guards=[guard])
            for entry in written if cut else ():
                if entry is not None and entry.path in held:
                    await mirror.reached(entry.path, entry.version)
            self._torn = True  # Set until the last commit is written.
        self._torn, self._settled = False, not cut

    def _news(self, after: State, actions: list[Action], world: World) -> tuple[list[TurnPart], list[TurnPart]]:
        """Return the published events and the reports of the turn; if they cannot be created, return none."""
        context, log_url, found, reported = self._context, self._context.log_url, list[list[Op]](), list[list[Op]]()
        try:
            if context.settings.publishing:
                events = turn_events(self.tenant, self.name, self._state, after, actions, context.now_ms(), log_url)
                found += [context.published(*some) for some in batched(events)]
            tenant, known = self._configuration.tenant, self._configuration.layouts.landed.pipelines.values()
            reported += image_ops(context.map, self._configuration, actions, world)
            reported += [context.reported(*one) for one in reports(self._state, after, actions, world, tenant, known)]
        except Exception:  # An error in reports must never stop the gate.
            log.exception("%s/%s: the events and reports of a turn cannot be created", self.tenant, self.name)
            context.observer.dropped(self.name, 1)
        return [TurnPart(ops) for ops in found], [TurnPart(ops) for ops in reported]
