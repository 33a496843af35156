"""Turn the observations of one connection into events, and forward these to the tenants that they concern."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived, fresh
from headgate.base.tasks import run_until
from headgate.gate.state.change import HEADS, ChangeState, EventKind, TriggerEvent, whose
from headgate.gate.state.management import Dequeue
from headgate.map.records import BranchCache, ForPipeline, Reconfigure, RepositoryProblem, RepositoryProblems
from headgate.ports.forge import ButtonOrder, ForgeWatch, Sighting
from headgate.recipes import blob
from headgate.recipes.lock import lock, write_lock
from headgate.recipes.stream import Stream, StreamConsumer, Unread
from headgate.services.context import Context
from headgate.services.forgework import Hints
from headgate.services.quarantine import Quarantine
from headgate.services.scheduler.changestates import ChangeStates, Needed, forgotten, remember, shown
from headgate.services.scheduler.refs import Protections, Refs
from headgate.services.scheduler.turn import TurnPart, packed, together
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Delete, Op

log = logging.getLogger("headgate.connection")

EVENTS_MAX = 15
"""Limit on the events forwarded in one commit."""
PART_OPS_MAX, PART_MAX_BYTES = 40, 250_000
"""Limits on the operations and bytes in one commit for events on one change, which may have many long comments."""
LOOK_UP_EVERY_S = 60.0
"""Greatest age of the state of a change that others need and no pipeline watches."""
ATTEMPTS_MAX = 10
CLOSED_MAX = 5_000
"""Limit on the remembered closed changes; nothing can depend on older ones."""

Guards = tuple[At, At]
"""Guards of the election, and of the lock of the branches."""


class ConnectionRunner:
    """Run one connection. One process at a time calls `run`: the one that leads the connection's election."""

    def __init__(
        self,
        context: Context,
        forge: ForgeWatch,
        tenants: Mapping[str, frozenset[str]],
        closed_max: int = CLOSED_MAX,
        beside: tuple[str, ...] = (),
    ) -> None:
        """Create a runner. `tenants`: name -> canonical names of its projects; `closed_max`: number of closed changes
        that are remembered; `beside`: names of all connections that have changes."""
        self._context, self._forge, self._tenants, self._closed_max = context, forge, tenants, closed_max
        self._change_states = ChangeStates(context.map, context.mirror, (forge.name,))
        self._events = context.map.events.connection(forge.name).events
        self._heads: dict[str, dict[str, str]] = {}
        self._refs = Refs(context, forge.name)
        self._protections = Protections(context, forge.name, tenants)
        self._lingering: dict[str, frozenset[str]] = {}
        self._problems: dict[str, RepositoryProblem] = {}
        self._storing = asyncio.Lock()
        projects = frozenset[str]().union(*tenants.values())
        self._needed = Needed(context, forge.name, projects, beside or (forge.name,))
        self._hints = Hints(context, forge)

    async def run(self, session: Session) -> None:
        """Run while leading the election, and hold the write lock of the branches, so that no other process writes or
        sweeps them."""
        store, branches = self._context.store, self._context.map.cache.connection(self._forge.name).branches
        async with (
            lock(store, session, self._events.election.path).hold() as leading,
            write_lock(store, session, branches.lock.path).hold() as writing,
        ):
            guards = (leading, writing)
            await self._recall(guards)
            await run_until(
                asyncio.Event(), self._watch(guards), self._forward(guards), self._hints.follow(), self._look_up(guards)
            )

    async def _recall(self, guards: Guards) -> None:
        """Read the branch heads and other refs as the last leader saw them, so that a comparison finds changes since
        then. Clear the recorded problems, which will be found again."""
        self._heads = {}
        try:
            value = await blob.read(self._context.store, self._branches)
            if value is not None:
                branches = self._context.map.cache.connection(self._forge.name).branches.data
                self._heads = branches.decode(value).projects
        except ValueError as damaged:
            await self._forget_heads(damaged, guards)
        await self._refs.recall(guards[0])
        self._problems = {}
        place = self._context.map.cache.connection(self._forge.name).problems
        # A problem that ended while there was no leader would otherwise stay recorded forever.
        if await self._context.store.get(place.path) is not None:
            await self._context.store.commit([], [place.put(RepositoryProblems({}))], guards=guards)

    async def _forget_heads(self, damaged: ValueError, guards: Guards) -> None:
        """Move unreadable branch heads to the quarantine. Pushes in the meantime are unknown: they trigger nothing, but
        every tenant reads its entire configuration again."""
        context, path = self._context, self._branches
        entry = await context.store.get(path)
        value = entry.value if entry is not None else b""
        pieces = [TurnPart(Quarantine(context).put(derived(path), "record", path, damaged, value=value, tries=1))]
        # The deletion comes last: after a crash before it, the next leader repeats everything with the same id, and
        # tenants only read once more than necessary.
        for tenant, projects in self._tenants.items():
            again = Reconfigure(dict.fromkeys(projects, ()))
            pieces.append(TurnPart(context.map.events.tenant(tenant).management.stream.append(again)))
        pieces.append(TurnPart([Delete(path)]))
        for commit in packed(pieces):
            await context.store.commit([], commit.ops, guards=guards)

    @property
    def _branches(self) -> str:
        return self._context.map.cache.connection(self._forge.name).branches.data.path

    async def _watch(self, guards: Guards) -> None:
        known = _Known(self._change_states)
        async for sighting in self._forge.sightings(known, self._heads, self._refs.seen):
            await self._store(await self._completed(sighting), guards)
            self._lingering.update(sighting.lingering)
            await self._forget(guards)

    async def _completed(self, sighting: Sighting) -> Sighting:
        """Return the sighting with the needs that footers name, and with looked-up changes that no tenant has. Add
        events that enqueue again the changes that were tested before such a change was known."""
        change_states = [self._needed.completed(one) for one in sighting.change_states]
        of = {one.change.key: one.change for one in change_states}
        events = tuple(replace(one, change=of.get(one.change.key, one.change)) for one in sighting.events)
        if found := await self._needed.looked_up(change_states):
            now = {one.change.key: one for one in change_states}
            proposed = {one.change.key for one in events if one.kind is EventKind.PROPOSED}
            # Changes that this sighting itself proposes are reported anyway, now with their needs.
            before = {key: one for key, one in self._change_states.now().items() if key not in proposed}
            events += tuple(self._needed.retold(found, before, now))
        return replace(sighting, change_states=(*found, *change_states), events=events)

    async def _look_up(self, guards: Guards) -> None:
        """Look up, every LOOK_UP_EVERY_S, the needed changes whose projects no tenant has.  Run until cancelled."""
        while self._context.forges:
            await asyncio.sleep(LOOK_UP_EVERY_S)
            own = {key: self._needed.completed(one) for key, one in self._change_states.now().items() if one.open}
            if found := await self._needed.looked_up(own.values()):
                await self._store(Sighting(tuple(found), tuple(self._needed.retold(found, own, own))), guards)
        await asyncio.Event().wait()

    async def _forget(self, guards: Guards) -> None:
        """Forget changes that closed long ago, once they exceed the limit by a tenth."""
        known = self._change_states.now()
        # The total number is cheaper to check, and nearly always sufficient.
        if len(known) <= self._closed_max * 1.1 or sum(not s.open for s in known.values()) <= self._closed_max * 1.1:
            return
        map, mirror = self._context.map, self._context.mirror
        found = forgotten(map, mirror, self._forge.name, known, self._lingering, self._closed_max)
        for commit in packed(TurnPart(ops, [check]) for check, ops in found):
            try:
                await self._context.store.commit(commit.checks, commit.ops, guards=guards)
            except GuardLost:
                raise
            except Conflict as moved:
                log.info("%s; old closed changes will be forgotten after the next change", moved)
                return

    async def _store(self, sighting: Sighting, guards: Guards) -> None:
        """Store a sighting in as few commits as possible, each change together with its events.  Forward no event in
        the meantime, so that the needs of a change are known before its event is handled."""
        async with self._storing:
            for attempt in range(ATTEMPTS_MAX):
                seen = self._context.mirror.moves
                try:
                    await self._try(sighting, guards, again=attempt > 0)
                    self._refs.saw(sighting.refs)
                    return
                except GuardLost:
                    raise
                except Conflict:
                    if attempt == ATTEMPTS_MAX - 1:
                        raise
                    await self._context.mirror.moved(seen)  # wait until the mirror shows the landing that conflicted

    async def _try(self, sighting: Sighting, guards: Guards, *, again: bool) -> None:
        context, known = self._context, self._change_states.now()
        of_refs = [event for event in sighting.events if _is_of_refs(event)]
        events = _by_change(event for event in sighting.events if not _is_of_refs(event))
        pieces = list(self._protections.pieces(sighting.protections))
        for change_state in needed_first(sighting.change_states):
            own = events.pop(change_state.change.key, ())
            old = shown(context.map, context.mirror, change_state.change)
            # A change that was only looked up is not new: changes that need it were already tested with it.
            if old is not None and old.looked_up:
                own = [replace(event, fresh=False) for event in own]
            if old is not None and old.landed and change_state.open and self._to_be_shown(old, change_state):
                continue  # its forge has not detected yet that a push has landed it
            if old is not None and old.change.commit == change_state.change.commit:
                change_state = _with_what_was_known(change_state, old)
            if (again or not own) and known.get(change_state.change.key) == change_state:
                continue  # it is unchanged, or an earlier commit of this sighting has stored it
            check, ops = remember(context.map, context.mirror, change_state, fresh())
            *flood, last = self._in_parts(own)
            # The state comes last: while the store has the old state, the next check finds the same difference and
            # repeats the events with the same ids.
            pieces += [TurnPart(part, [check]) for part in flood]
            pieces.append(TurnPart([*ops, *last], [check]))
        news = [TurnPart(self._announced([event])) for rest in events.values() for event in rest]
        if sighting.heads:
            self._heads.update(sighting.heads)
            heads = BranchCache({project: refs for project, refs in self._heads.items() if refs})
            news += [TurnPart([op]) for op in blob.ops(self._branches, msgspec.json.encode(heads))]
        pieces += [*together(news), *self._refs.pieces(sighting.refs, of_refs, self._announced)]
        pieces += map(TurnPart, self._ordered(sighting.orders))
        pieces += map(TurnPart, self._hints.answered(sighting.answered))
        if sighting.problems:
            pieces.append(TurnPart([self._record_problems(sighting.problems)]))
        cached = context.map.cache.connection(self._forge.name).cache.inside("")
        for commit in packed(pieces):
            written = await context.store.commit(commit.checks, commit.ops, guards=guards)
            entries = [entry for entry in written if entry is not None and entry.path.startswith(cached)]
            # The next check compares with the mirror, so wait until it shows the last entry. Bodies and events may be
            # deleted before the mirror shows them, so they cannot be waited for.
            for entry in entries[-1:]:
                await context.mirror.reached(entry.path, entry.version)

    def _to_be_shown(self, old: ChangeState, now: ChangeState) -> bool:
        """Return whether a report that still waits will make the forge show that a push landed this commit."""
        if not now.change.number or old.change.commit != now.change.commit:
            return False
        stream = self._context.map.reports(self._forge.name).stream
        waiting = stream.waiting(self._context.mirror, limit=self._context.settings.waiting_max)
        messages = (one for event in waiting for one in event.event.messages if one.pushed is not None)
        return any(one.change is not None and one.change.key == now.change.key for one in messages)

    def _in_parts(self, events: Iterable[TriggerEvent]) -> list[list[Op]]:
        """Return the operations that record a change's events, in parts that each fit into a commit; the change's state
        is written with the last part.

        If another leader takes over in between, it records the events again, with the same ids.
        """
        parts, size_bytes = list[list[Op]]([[]]), 0
        for event in events:
            ops = self._announced([event])
            more_bytes = sum(len(op.value) for op in ops if not isinstance(op, Delete))
            if parts[-1] and (len(parts[-1]) + len(ops) > PART_OPS_MAX or size_bytes + more_bytes > PART_MAX_BYTES):
                parts.append([])
                size_bytes = 0
            parts[-1] += ops
            size_bytes += more_bytes
        return parts

    def _announced(self, events: Iterable[TriggerEvent]) -> list[Op]:
        return [op for event in events for op in self._events.stream.append(event)]

    def _ordered(self, orders: Iterable[tuple[str, ButtonOrder]]) -> Iterator[list[Op]]:
        """Yield the operations that pass each order on to its tenant, if the tenant has the project; the tenant itself
        checks the pipeline."""
        for key, one in orders:
            # The tenant's name comes from outside, so it is used only if that tenant exists and has the project.
            if key.rpartition("#")[0] in self._tenants.get(one.tenant, ()):
                log.info("%s dequeues %s from %s of %s", one.who, key, one.pipeline, one.tenant)
                wanted = Dequeue(key, f"dequeued at the forge by {one.who}", event=one.event)
                stream = self._context.map.events.tenant(one.tenant).management.stream
                yield stream.append(ForPipeline(one.pipeline, wanted))

    def _record_problems(self, problems: Mapping[str, str]) -> Op:
        now_ms = self._context.now_ms()
        for project, text in problems.items():
            known = self._problems.pop(project, None)
            if text:
                self._problems[project] = RepositoryProblem(known.since_ms if known else now_ms, text)
        return self._context.map.cache.connection(self._forge.name).problems.put(
            RepositoryProblems(dict(self._problems))
        )

    async def _forward(self, guards: Guards) -> None:
        """Forward each event to every tenant that has its project, taking projects in turn.  Run until cancelled."""
        mirror, reader = self._context.mirror, StreamConsumer(self._events.stream, self._context.mirror, whose)
        with mirror.part(self._events.path) as stirs:
            while True:
                seen = stirs.moves
                waiting = reader.waiting(EVENTS_MAX)
                if not waiting:
                    await stirs.moved(seen)
                    continue
                pieces = [piece for event in waiting for piece in self._move(event)]
                async with self._storing:
                    for commit in packed(pieces):
                        await self._context.store.commit([], commit.ops, guards=guards)
                # Events are removed in order, so once the mirror lacks the last one, none of them is handled again.
                await mirror.gone(waiting[-1].entry)

    def _move(self, event: Unread[TriggerEvent]) -> list[TurnPart]:
        """Return operations that forward an event, and remove it once all its tenants have it. If these are too many
        for one commit, a leader that takes over in between sends the event to some of them again."""
        streams = list(self._concerned(event.event))
        news = replace(event.event, shared=True) if len(streams) > 1 else event.event
        sent = [TurnPart(stream.append(news)) for stream in streams]
        return together([*sent, TurnPart(event.consume())])

    def _concerned(self, event: TriggerEvent) -> Iterator[Stream[TriggerEvent]]:
        for tenant, projects in self._tenants.items():
            if event.change.project in projects:
                yield self._context.map.events.tenant(tenant).trigger.stream


class _Known(Mapping[str, ChangeState]):
    """Show the change states about which the connection has reported events; changes that were only looked up count as
    new."""

    def __init__(self, change_states: ChangeStates) -> None:
        self._change_states = change_states

    def __getitem__(self, key: str) -> ChangeState:
        found = self._change_states.now()[key]
        if found.looked_up:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return (key for key, one in self._change_states.now().items() if not one.looked_up)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of_project(self, project: str) -> dict[str, ChangeState]:
        """Return key -> change state, of the changes of a project."""
        return {key: one for key, one in self._change_states.of_project(project).items() if not one.looked_up}


def needed_first(change_states: Iterable[ChangeState]) -> Iterator[ChangeState]:
    """Yield each change state after those that its change needs; in a cycle, in the given order."""
    left = {change_state.change.key: change_state for change_state in change_states}
    while left:
        free = [
            change_state
            for change_state in left.values()
            if not any(need in left for need in change_state.change.needs)
        ]
        for change_state in free or list(left.values()):
            del left[change_state.change.key]
            yield change_state


def _is_of_refs(event: TriggerEvent) -> bool:
    """Return whether the event concerns a tag or another ref that is not a branch."""
    return not event.change.is_change and not event.change.ref.startswith(HEADS)


def _by_change(events: Iterable[TriggerEvent]) -> dict[str, list[TriggerEvent]]:
    """Return key of a change -> its events in order; those of refs come last, together under the empty key."""
    found: dict[str, list[TriggerEvent]] = {}
    refs = []
    for event in events:
        if event.change.is_change:
            found.setdefault(event.change.key, []).append(event)
        else:
            refs.append(event)
    return {**found, "": refs}


def _with_what_was_known(now: ChangeState, old: ChangeState) -> ChangeState:
    """Return the forge's report on a commit, completed with earlier facts that it lacks."""
    now = replace(now, checks=old.checks)
    # A landed change stays landed, even if its forge does not show it as merged, or somebody reopens it.
    if old.landed and now.change.number:
        now = replace(now, landed=True)
    if now.landed and not now.approvals:  # the landing has removed the approvals
        now = replace(now, approvals=old.approvals, proposers=old.proposers)
    return now
