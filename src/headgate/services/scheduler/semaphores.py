"""Semaphores as one pipeline holds them: their records are written by its turns, and have places of others, too."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.config.dynamic import TenantLayouts
from headgate.gate.builds.advance import holders, waiting
from headgate.gate.state.model import State
from headgate.gate.state.surroundings import PATIENCE_MS, Waiter
from headgate.map.places import semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.codec import readable
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart
from headgate.store.types import At, Entry


class Semaphores:
    """Manage the semaphores of one pipeline. A damaged record is rebuilt from what each pipeline holds."""

    def __init__(self, context: Context, configuration: Configuration, pipeline: str) -> None:
        self._context, self._configuration, self._pipeline = context, configuration, pipeline
        self._tenant = configuration.tenant.name
        map = context.map
        self.places = (map.semaphores(self._tenant).path, map.global_semaphores.path)
        """Prefixes of the records of all its semaphores."""
        self._since_ms: dict[str, tuple[int, int]] = {}
        """Semaphore with a free place and a waiter -> its version, and when that was first seen."""

    def versions(self) -> tuple[object, ...]:
        """Return a value that changes when a record, or how it is to be rewritten, changes."""
        versions = (entry.version for entry in self._entries())
        # The end of the patience changes no record, but it has to bring about a turn.
        return (*versions, *(name for name in sorted(self._since_ms) if self._is_passed_over(name)))

    @contextmanager
    def patience(self, over: Callable[[], None], other_ms: int | None = None) -> Iterator[None]:
        """Call `over` once a free place need no longer be kept for a waiter, or after `other_ms`."""
        left = [since + PATIENCE_MS - self._context.now_ms() for _, since in self._since_ms.values()]
        # An overdue time is 0 or less, which the filter below takes for none.
        others = [] if other_ms is None else [max(other_ms, 1)]
        delay_ms = min((ms for ms in (*left, *others) if ms > 0), default=None)
        timer = None if delay_ms is None else asyncio.get_running_loop().call_later(delay_ms / 1000, over)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def _is_passed_over(self, name: str) -> bool:
        return name in self._since_ms and self._context.now_ms() >= self._since_ms[name][1] + PATIENCE_MS

    def waiters(self, layouts: TenantLayouts, state: State) -> dict[str, tuple[Waiter, ...]]:
        """Return semaphore -> its waiters, without those that have left a free place unused."""
        found = dict[str, tuple[Waiter, ...]]()
        for name in self._names(layouts, state):
            entry, record = self._entry(name), self._record(name)
            # A semaphore that the layout does not define, such as one that was removed, has one place.
            free = len(record.holders) < layouts.landed.semaphores.get(name, 1)
            if entry is None or not record.waiters or not free:
                self._since_ms.pop(name, None)
            # Any write of the record shows that somebody is at work on it, so the patience begins again.
            elif self._since_ms.get(name, (0, 0))[0] != entry.version:
                self._since_ms[name] = entry.version, self._context.now_ms()
            if not self._is_passed_over(name):
                found[name] = record.waiters
        return found

    def of_others(self) -> bool:
        """Return whether this pipeline holds none and waits for none, as all of their records say."""
        return all(self._is_of_others(readable(entry, SemaphoreRecord)) for entry in self._entries())

    def _is_of_others(self, record: SemaphoreRecord | None) -> bool:
        """Return whether a record has nothing of this pipeline; one that cannot be read is everybody's to mend."""
        if record is None:
            return False
        return not any(map(self._is_ours, record.holders)) and not any(map(self._is_own, record.waiters))

    def held(self, layouts: TenantLayouts, state: State) -> Counter[str]:
        """Return semaphore -> number of places that other pipelines and playbooks hold."""
        held: Counter[str] = Counter()
        for name in self._names(layouts, state):
            # A holder with a build is a playbook, which an executor enters and removes: it takes a place even if the
            # build is ours.
            held[name] = sum(not self._is_ours(h) or h.build != "" for h in self._record(name).holders)
        return held

    def _names(self, layouts: TenantLayouts, state: State) -> set[str]:
        graphs = (item.buildset.graph for _, item in state.items() if item.buildset is not None)
        return set(layouts.landed.semaphores).union(*(graph.semaphores for graph in graphs if graph is not None))

    def holding(self, before: State, after: State, *, settled: bool, cut: bool = False) -> list[TurnPart]:
        """Return the writes that make the semaphores what this pipeline holds after the turn; others' holders stay, and
        playbooks of builds that run.  `settled`: they are known to be as `before` says.  Of a turn that is `cut` none
        is given up but to another holder of ours: what it was held for is still there until the end."""
        pieces = list[TurnPart]()
        before_of, after_of = _by_name(before), _by_name(after)
        waiters = self._waiting(before, after)
        names = {*before_of, *after_of, *waiters, *self._configuration.layouts.landed.semaphores}
        running = _running(after) if names else set()

        def left(holder: SemaphoreHolder) -> bool:
            # An executor that died could not remove its playbook's place; once the build has ended, the turn does.
            return self._is_ours(holder) and holder.build != "" and holder.build not in running

        for name in sorted(names):
            address, entry, record = self._place_of(name), self._entry(name), self._record(name)
            holders, line = record.holders, self._line(name, waiters.get(name, ()))
            damaged = entry is not None and readable(entry, SemaphoreRecord) is None
            same = settled and before_of.get(name) == after_of.get(name) and line == record.waiters
            if same and not damaged and not any(map(left, holders)):
                continue
            others = tuple(h for h in holders if not self._is_ours(h) or (h.build and not left(h)))
            tenant = self._tenant if name in self._configuration.tenant.semaphores else ""
            ours = tuple(
                SemaphoreHolder(self._pipeline, buildset, job, "", tenant) for buildset, job in after_of.get(name, ())
            )
            # A cut turn may stop after any of its commits. Each new holder of ours takes the place of one that is given
            # up, so the number of holders neither exceeds the limit nor falls while builds of earlier holders may still
            # run.
            if cut:
                given_up = [holder for holder in holders if holder not in others + ours]
                others += tuple(given_up[sum(holder not in holders for holder in ours) :])
            if set(others + ours) == set(holders) and line == record.waiters and not damaged:
                continue
            # Other pipelines and executors write the same record, so the turn fails and decides again if it has moved.
            check = At(address.path, entry.version if entry else None)
            pieces.append(TurnPart([address.put(SemaphoreRecord(others + ours, line))], [check]))
        return pieces

    def given_up(self) -> list[TurnPart]:
        """Return the writes that give up all that the pipeline holds or waits for, whatever the layout says: nobody has
        the pipeline any more."""
        pieces = list[TurnPart]()
        for entry in self._entries():
            # The same pipeline name in another tenant holds places of global semaphores, too.
            record, own = self._read(entry), entry.path.startswith(f"{self.places[0]}/")
            holders = tuple(h for h in record.holders if not (self._is_ours(h) and (own or h.tenant)))
            waiters = tuple(waiter for waiter in record.waiters if not self._is_own(waiter))
            if (holders, waiters) != (record.holders, record.waiters):
                place = Address(entry.path, SemaphoreRecord)
                pieces.append(TurnPart([place.put(SemaphoreRecord(holders, waiters))], [At(entry.path, entry.version)]))
        return pieces

    def _line(self, name: str, ours: tuple[Waiter, ...]) -> tuple[Waiter, ...]:
        """Return other waiters, and ours, in order; others that leave a free place unused have to come again."""
        others = () if self._is_passed_over(name) else self._record(name).waiters
        return tuple(sorted([*ours, *(waiter for waiter in others if not self._is_own(waiter))]))

    def _waiting(self, before: State, after: State) -> dict[str, tuple[Waiter, ...]]:
        """Return semaphore -> our waiters after the turn.  A project that has taken a place goes behind all others."""
        waits = defaultdict[str, set[str]](set)
        for name, project in waiting(after):
            waits[name].add(project)
        if not waits:
            return {}
        line = [waiter for entry in self._entries() for waiter in self._read(entry).waiters]
        newest = max((waiter.ticket for waiter in line), default=0) + 1
        tickets = {waiter.project: waiter.ticket for waiter in line if self._is_own(waiter)}
        held = set(holders(before))
        buildsets = [(item.change.project, item.buildset) for _, item in after.items() if item.buildset is not None]
        took = {project for project, b in buildsets if any(one not in held for one in b.semaphores)}

        def one(project: str) -> Waiter:
            # Whoever has taken a place takes a new ticket, so that a busy project goes behind those that have none.
            ticket = newest if project in took else tickets.get(project, newest)
            return Waiter(ticket, self._tenant, self._pipeline, project)

        return {name: tuple(sorted(map(one, projects))) for name, projects in waits.items()}

    def _entries(self) -> list[Entry]:
        return [entry for place in self.places for entry in self._context.mirror.under(place)]

    def _entry(self, name: str) -> Entry | None:
        return self._context.mirror.get(self._place_of(name).path)

    def _record(self, name: str) -> SemaphoreRecord:
        return self._read(self._entry(name))

    def _read(self, entry: Entry | None) -> SemaphoreRecord:
        return (readable(entry, SemaphoreRecord) if entry is not None else None) or SemaphoreRecord(())

    def _place_of(self, semaphore: str) -> Address[SemaphoreRecord]:
        shared = semaphore in self._configuration.tenant.semaphores
        return semaphore_of(self._context.map, self._tenant, semaphore, shared=shared)

    def _is_own(self, waiter: Waiter) -> bool:
        return (waiter.tenant, waiter.pipeline) == (self._tenant, self._pipeline)

    def _is_ours(self, holder: SemaphoreHolder) -> bool:
        return holder.pipeline == self._pipeline and holder.tenant in ("", self._tenant)


def _running(state: State) -> set[str]:
    """Return the ids of the builds that have not ended."""
    return {build.id for _, item in state.items() for build in item.under_way}


def _by_name(state: State) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, buildset, job in holders(state):
        found.setdefault(name, []).append((buildset, job))
    return found
