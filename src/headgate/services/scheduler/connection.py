"""Turn the observations of one connection into events, and move these on to the tenants they concern."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived, fresh
from headgate.base.tasks import run_until
from headgate.gate.state.change import HEADS, ChangeState, EventKind, TriggerEvent, whose
from headgate.gate.state.works import Dequeue
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
"""Limit of events moved on in one commit."""
PART_OPS_MAX, PART_MAX_BYTES = 40, 250_000
"""Limits of operations and bytes in one commit for events of one change: anybody may comment on it, at any length."""
LOOK_UP_EVERY_S = 60.0
"""Greatest age of the state of a change that others need and no pipeline watches."""
ATTEMPTS_MAX = 10
CLOSED_MAX = 5_000
"""Limit of closed changes that are remembered; nothing can depend on older ones."""

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
        """Take `tenants`, name -> canonical names of its projects; `closed_max`, how many closed changes are
        remembered; and `beside`, the names of all connections that have changes."""
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
        """Hold the write side of the branches for as long as it leads: nobody else writes them, or sweeps them."""
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
        """Read the branch heads and other refs as the last leader saw them, so that changes since then are found by
        comparison. Clear the recorded problems, which are found again."""
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
        # A problem that ended while nobody led would otherwise stay recorded for ever.
        if await self._context.store.get(place.path) is not None:
            await self._context.store.commit([], [place.put(RepositoryProblems({}))], guards=guards)

    async def _forget_heads(self, damaged: ValueError, guards: Guards) -> None:
        """Put unreadable branch heads into quarantine. Pushes made meanwhile are unknown: they trigger nothing, but
        every tenant reads all its configuration again."""
        context, path = self._context, self._branches
        entry = await context.store.get(path)
        value = entry.value if entry is not None else b""
        pieces = [TurnPart(Quarantine(context).put(derived(path), "record", path, damaged, value=value, tries=1))]
        # The deletion comes last: if a crash cuts this, the next leader repeats it under the same id, and tenants only
        # read once more than necessary.
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
        """Return the sighting with what footers mean, and with the changes that they name and that nobody watches; what
        was tested before one of those was there comes in again."""
        change_states = [self._needed.completed(one) for one in sighting.change_states]
        of = {one.change.key: one.change for one in change_states}
        events = tuple(replace(one, change=of.get(one.change.key, one.change)) for one in sighting.events)
        if found := await self._needed.looked_up(change_states):
            now = {one.change.key: one for one in change_states}
            proposed = {one.change.key for one in events if one.kind is EventKind.PROPOSED}
            # What this sighting itself proposes is reported anyway, and now with what it needs.
            before = {key: one for key, one in self._change_states.now().items() if key not in proposed}
            events += tuple(self._needed.retold(found, before, now))
        return replace(sighting, change_states=(*found, *change_states), events=events)

    async def _look_up(self, guards: Guards) -> None:
        """Look up, every LOOK_UP_EVERY_S, the changes that ours need and that nobody watches.  Run until cancelled."""
        while self._context.forges:
            await asyncio.sleep(LOOK_UP_EVERY_S)
            own = {key: self._needed.completed(one) for key, one in self._change_states.now().items() if one.open}
            if found := await self._needed.looked_up(own.values()):
                await self._store(Sighting(tuple(found), tuple(self._needed.retold(found, own, own))), guards)
        await asyncio.Event().wait()

    async def _forget(self, guards: Guards) -> None:
        """Forget changes that closed long ago, once there are a tenth more than the limit."""
        known = self._change_states.now()
        # The length is the cheaper question, and answers it nearly always.
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
                log.info("%s; what closed long ago is forgotten after the next change", moved)
                return

    async def _store(self, sighting: Sighting, guards: Guards) -> None:
        """Store everything seen in as few commits as possible, each change together with what happened to it.  Move no
        event on meanwhile: what a change needs is known before its event is acted on."""
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
                    await self._context.mirror.moved(seen)  # another process recorded a landing: wait for it

    async def _try(self, sighting: Sighting, guards: Guards, *, again: bool) -> None:
        context, known = self._context, self._change_states.now()
        of_refs = [event for event in sighting.events if _is_of_refs(event)]
        events = _by_change(event for event in sighting.events if not _is_of_refs(event))
        pieces = list(self._protections.pieces(sighting.protections))
        for change_state in needed_first(sighting.change_states):
            own = events.pop(change_state.change.key, ())
            old = shown(context.map, context.mirror, change_state.change)
            if old is not None and old.looked_up:  # changes that need it were tested with it
                own = [replace(event, fresh=False) for event in own]
            if old is not None and old.landed and change_state.open and self._to_be_shown(old, change_state):
                continue  # its forge has not noticed yet that a push has landed it
            if old is not None and old.change.commit == change_state.change.commit:
                change_state = _with_what_was_known(change_state, old)
            if (again or not own) and known.get(change_state.change.key) == change_state:
                continue  # it says nothing new, or is in a commit before the one that was refused
            check, ops = remember(context.map, context.mirror, change_state, fresh())
            *flood, last = self._in_parts(own)
            # The state goes last: as long as the store has the old state, the next look finds the same difference, and
            # repeats the events under the same ids.
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
            # The next look compares with the mirror. Only this entry can be waited for: bodies and events may be gone
            # before the mirror shows them.
            for entry in entries[-1:]:
                await context.mirror.reached(entry.path, entry.version)

    def _to_be_shown(self, old: ChangeState, now: ChangeState) -> bool:
        """Return whether a waiting report will make the forge show that a push landed this commit."""
        if not now.change.number or old.change.commit != now.change.commit:
            return False
        stream = self._context.map.reports(self._forge.name).stream
        waiting = stream.waiting(self._context.mirror, limit=self._context.settings.waiting_max)
        messages = (one for event in waiting for one in event.event.messages if one.pushed is not None)
        return any(one.change is not None and one.change.key == now.change.key for one in messages)

    def _in_parts(self, events: Iterable[TriggerEvent]) -> list[list[Op]]:
        """Return the operations that record a change's events, in parts that each fit into a commit; the change's state
        goes with the last part.

        If another leader takes over in between, it records the others again, with the same ids.
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
        """Yield the operations that pass each order on to its tenant, if that has the project; whether it has the
        pipeline, the tenant knows."""
        for key, one in orders:
            # The tenant's name comes from outside, and is passed on only where the order can concern something.
            if key.rpartition("#")[0] in self._tenants.get(one.tenant, ()):
                log.info("%s takes %s out of %s of %s", one.who, key, one.pipeline, one.tenant)
                wanted = Dequeue(key, f"taken out at the forge by {one.who}", event=one.event)
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
        """Move each event on to every tenant that has its project, taking projects in turn.  Run until cancelled."""
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
                # Events end in this order, so once the last is gone from the mirror, none of these is taken up again.
                await mirror.gone(waiting[-1].entry)

    def _move(self, event: Unread[TriggerEvent]) -> list[TurnPart]:
        """Return operations that move an event on, and remove it once all its tenants have it. If these are too many
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
    """Show the change states for which the connection has made events; changes that were only looked up count as
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
    if old.landed and now.change.number:  # even if its forge merged nothing, or somebody opens it again
        now = replace(now, landed=True)
    if now.landed and not now.approvals:  # the landing has removed the approvals
        now = replace(now, approvals=old.approvals, proposers=old.proposers)
    return now
