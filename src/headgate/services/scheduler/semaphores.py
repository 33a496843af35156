"""Hold semaphores for one pipeline: its turns write their records, which also contain other holders."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from headgate.config.dynamic import TenantLayouts
from headgate.gate.builds.advance import holders, taken_by, waiting
from headgate.gate.state.model import State
from headgate.gate.state.world import PATIENCE_MS, Waiter
from headgate.map.places import semaphore_of
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address, unescape
from headgate.recipes.codec import readable
from headgate.recipes.requestforms import Open
from headgate.recipes.requests import Requests
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.turn import TurnPart
from headgate.store.types import At, Entry

ENDED_CHECK_MS = 1_000
"""Interval of checks whether cancelled builds of dead executors have ended."""


class Semaphores:
    """Manage the semaphores of one pipeline. Each pipeline adds its own holders to rebuild a damaged record."""

    def __init__(self, context: Context, configuration: Configuration, pipeline: str) -> None:
        self._context, self._configuration, self._pipeline = context, configuration, pipeline
        self._tenant = configuration.tenant.name
        map = context.map
        self.places = (map.semaphores(self._tenant).path, map.global_semaphores.path)
        """Prefixes of the records of all its semaphores."""
        self._since_ms: dict[str, tuple[int, int]] = {}
        """Semaphore with a free place and a waiter -> its version, and when that was first seen."""
        self._ending = frozenset[str]()
        """Cancelled builds that keep their places until their executors have stopped them."""

    def versions(self) -> tuple[object, ...]:
        """Return a value that changes when a record changes or must be rewritten."""
        versions = (entry.version for entry in self._entries())
        # A waiter's timeout, or the end of a build whose executor died, changes no record but must cause a turn.
        passed_over = (name for name in sorted(self._since_ms) if self._is_passed_over(name))
        runs = self._runs() if self._ending else None
        return (*versions, *passed_over, *sorted(id for id in self._ending if runs is None or not runs(id)))

    @contextmanager
    def patience(self, over: Callable[[], None], other_ms: int | None = None) -> Iterator[None]:
        """Call `over` once a free place is no longer reserved for a waiter, or after `other_ms`."""
        left = [since + PATIENCE_MS - self._context.now_ms() for _, since in self._since_ms.values()]
        # The filter below ignores times of 0 or less, so an overdue time is raised to 1.
        others = [] if other_ms is None else [max(other_ms, 1)]
        others += [ENDED_CHECK_MS] if self._ending else []
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
            free = len(record.holders) + len(self._former(name)) < layouts.landed.semaphores.get(name, 1)
            if entry is None or not record.waiters or not free:
                self._since_ms.pop(name, None)
            # Any write of the record shows that a process is active on it, so the waiting time starts again.
            elif self._since_ms.get(name, (0, 0))[0] != entry.version:
                self._since_ms[name] = entry.version, self._context.now_ms()
            if not self._is_passed_over(name):
                found[name] = record.waiters
        return found

    def of_others(self) -> bool:
        """Return whether, according to all records, this pipeline holds no semaphore and waits for none."""
        return all(self._is_of_others(readable(entry, SemaphoreRecord)) for entry in self._entries())

    def _is_of_others(self, record: SemaphoreRecord | None) -> bool:
        """Return whether a record has no holder and no waiter of this pipeline; False for an unreadable record, which
        every pipeline must repair."""
        if record is None:
            return False
        return not any(map(self._is_ours, record.holders)) and not any(map(self._is_own, record.waiters))

    def held(self, layouts: TenantLayouts, state: State) -> Counter[str]:
        """Return semaphore -> number of places that other pipelines, playbooks and cancelled builds hold."""
        held: Counter[str] = Counter()
        for name in self._names(layouts, state):
            # A holder with a build is a playbook, which an executor adds and removes, or a cancelled build that has not
            # ended. It takes a place even if it is ours, because the state does not count it.
            holders = (*self._record(name).holders, *self._former(name))
            held[name] = sum(not self._is_ours(h) or h.build != "" for h in holders)
        return held

    def _names(self, layouts: TenantLayouts, state: State) -> set[str]:
        graphs = (item.buildset.graph for _, item in state.items() if item.buildset is not None)
        return set(layouts.landed.semaphores).union(*(graph.semaphores for graph in graphs if graph is not None))

    def holding(
        self,
        before: State,
        after: State,
        notified: Mapping[str, Open],
        ended: Collection[str],
        *,
        settled: bool = False,
        cut: bool = False,
    ) -> list[TurnPart]:
        """Return the writes that record the semaphores that this pipeline holds after the turn. Other holders stay, and
        so do playbooks of running builds. A cancelled build keeps its places until its executor has stopped it.

        `notified`: requests whose workers are notified; `ended`: builds whose end the turn absorbs; `settled`: the
        semaphores are known to agree with `before`; `cut`: the turn takes several commits. Such a turn only passes
        places to other holders of ours, because their earlier holders still exist until its last commit.
        """
        pieces, before_of, after_of = list[TurnPart](), _by_name(before), _by_name(after)
        waiters, landed = self._waiting(before, after), self._configuration.layouts.landed
        runs, deleted = self._runs(), set[str]()
        stops = _Stops(before, after, notified, lambda build: build not in ended and runs(build))
        for name in sorted({*before_of, *after_of, *waiters, *landed.semaphores, *self._ours()}):
            address, entry, record = self._place_of(name), self._entry(name), self._record(name)
            move, moved = self._move(name, stops)
            holders, line = (*record.holders, *moved), self._line(name, waiters.get(name, ()))
            damaged = entry is not None and readable(entry, SemaphoreRecord) is None
            same = settled and before_of.get(name) == after_of.get(name) and line == record.waiters
            own = [holder for holder in holders if self._is_ours(holder)]
            gone = [holder for holder in own if holder.build and not stops.stays(name, holder)]
            if same and not damaged and not gone and not move.ops:
                continue
            replaced = stops.replaced(name, own)
            others = tuple(h for h in holders if h not in own or (h.build and h not in gone)) + tuple(replaced.values())
            tenant = self._tenant if self._is_shared(name) else ""
            ours = tuple(
                SemaphoreHolder(self._pipeline, buildset, job, "", tenant) for buildset, job in after_of.get(name, ())
            )
            # A cut turn may stop after any of its commits. Each new holder of ours replaces one that is given up, so
            # the number of holders neither exceeds the limit nor falls while builds of earlier holders may still run.
            # What the last turn has given up is free, or a turn that only frees places, but too many for one commit,
            # would free none.
            if cut:
                stayed, had = set(holders) - replaced.keys(), before_of.get(name, ())
                given_up = [h for h in holders if h in stayed and h not in others + ours and (h.buildset, h.job) in had]
                others += tuple(given_up[sum(holder not in stayed for holder in ours) :])
            if set(others + ours) == set(record.holders) and line == record.waiters and not damaged and not move.ops:
                continue
            # Other pipelines and executors write the same record; if it has changed, the turn fails and decides again.
            check = At(address.path, entry.version if entry else None)
            for found in self._lost({holder.build for holder in gone} - deleted):
                deleted.add(found.request.id)
                checks, ops = Requests.cancel(found)
                # Separate parts, because there may be many; before the record, so that no place becomes free too early.
                pieces.append(TurnPart(ops, checks))
            ops = [address.put(SemaphoreRecord(others + ours, line)), *move.ops]
            pieces.append(TurnPart(ops, [check, *move.checks]))
        self._ending = frozenset(stops.ending)
        return pieces

    def _move(self, name: str, stops: _Stops) -> tuple[TurnPart, list[SemaphoreHolder]]:
        """Return the writes that remove us from the former record of a semaphore that became global or ceased to be,
        and our holders there in the form of its present record. Playbooks stay where their executors remove them."""
        former = self._address(name, shared=not self._is_shared(name))
        entry = self._context.mirror.get(former.path)
        if entry is None:
            return TurnPart(), []
        record = self._read(entry)
        own = [h for h in self._of_tenant(entry, record) if self._is_ours(h) and not stops.plays(name, h)]
        line = tuple(waiter for waiter in record.waiters if not self._is_own(waiter))
        rest = SemaphoreRecord(tuple(h for h in record.holders if h not in own), line)
        if rest == record:
            return TurnPart(), []
        part = TurnPart([former.put(rest)], [At(entry.path, entry.version)])
        return part, [replace(holder, tenant=self._tenant if self._is_shared(name) else "") for holder in own]

    def _former(self, name: str) -> list[SemaphoreHolder]:
        """Return the tenant's holders in the former record of a semaphore that became global or ceased to be."""
        former = self._address(name, shared=not self._is_shared(name))
        entry = self._context.mirror.get(former.path)
        return self._of_tenant(entry, self._read(entry)) if entry is not None else []

    def _of_tenant(self, entry: Entry, record: SemaphoreRecord) -> list[SemaphoreHolder]:
        """Return the tenant's holders in a record, of which all are if the semaphore is not global."""
        own = entry.path.startswith(f"{self.places[0]}/")
        return [holder for holder in record.holders if own or holder.tenant == self._tenant]

    def _ours(self) -> set[str]:
        """Return the semaphores in whose records we have a place."""
        records = ((entry, self._read(entry)) for entry in self._entries())
        return {
            unescape(entry.path.rpartition("/")[2])
            for entry, record in records
            if any(map(self._is_ours, self._of_tenant(entry, record)))
        }

    def _runs(self) -> Callable[[str], bool]:
        """Return a function that determines whether an executor runs a build."""
        zones, mirror = self._context.zones(), self._context.mirror
        return lambda build: any((found := queue.find(build, mirror)) is not None and found.locked for queue in zones)

    def _lost(self, builds: Collection[str]) -> list[Open]:
        """Return the requests of cancelled builds whose executors died; no executor may claim them again."""
        found = map(self._context.build_request, sorted(builds))
        return [one for one in found if one is not None and one.request.wanted == "cancel" and not one.locked]

    def given_up(self) -> list[TurnPart]:
        """Return the writes that release everything that the removed pipeline holds or waits for, independent of the
        layout."""
        pieces = list[TurnPart]()
        for entry in self._entries():
            # A pipeline of the same name in another tenant may also hold places of global semaphores.
            own = list(filter(self._is_ours, self._of_tenant(entry, record := self._read(entry))))
            holders = tuple(holder for holder in record.holders if holder not in own)
            waiters = tuple(waiter for waiter in record.waiters if not self._is_own(waiter))
            if (holders, waiters) != (record.holders, record.waiters):
                place = Address(entry.path, SemaphoreRecord)
                pieces.append(TurnPart([place.put(SemaphoreRecord(holders, waiters))], [At(entry.path, entry.version)]))
        return pieces

    def _line(self, name: str, ours: tuple[Waiter, ...]) -> tuple[Waiter, ...]:
        """Return other waiters and ours, in order; others that leave a free place unused must join again."""
        others = () if self._is_passed_over(name) else self._record(name).waiters
        return tuple(sorted([*ours, *(waiter for waiter in others if not self._is_own(waiter))]))

    def _waiting(self, before: State, after: State) -> dict[str, tuple[Waiter, ...]]:
        """Return semaphore -> our waiters after the turn.  A project that has taken a place moves behind all others."""
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
            # A project that has taken a place gets a new ticket, so that a busy project moves behind the others.
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
        return self._address(semaphore, shared=self._is_shared(semaphore))

    def _address(self, semaphore: str, *, shared: bool) -> Address[SemaphoreRecord]:
        return semaphore_of(self._context.map, self._tenant, semaphore, shared=shared)

    def _is_shared(self, semaphore: str) -> bool:
        return semaphore in self._configuration.tenant.semaphores

    def _is_own(self, waiter: Waiter) -> bool:
        return (waiter.tenant, waiter.pipeline) == (self._tenant, self._pipeline)

    def _is_ours(self, holder: SemaphoreHolder) -> bool:
        return holder.pipeline == self._pipeline and holder.tenant in ("", self._tenant)


class _Stops:
    """Decide which places cancelled builds keep."""

    def __init__(
        self, before: State, after: State, notified: Mapping[str, Open], goes_on: Callable[[str], bool]
    ) -> None:
        """Create it from the states before and after the turn; `goes_on` returns whether a build still runs."""
        # An unclaimed request is not running, so the turn that cancels it deletes it.
        claimed = {id for id, found in notified.items() if found.locked}
        self._running, self._goes_on = _running(after), goes_on
        self._stopped = claimed - self._running
        self._before, self._after = _builds_by_name(before) if self._stopped else {}, _builds_by_name(after)
        self.ending = set[str]()
        """Cancelled builds that keep places."""

    def stays(self, name: str, holder: SemaphoreHolder) -> bool:
        """Return whether the build of a holder still has its place, for a playbook or because it was cancelled but
        still runs."""
        # An interrupted turn may have cancelled a build that the state still has and for whose job the state holds a
        # place.
        if holder.build in self._running:
            return self.plays(name, holder)
        # A dead executor cannot remove its playbook's place, so the turn does that once the build has ended.
        if going_on := self._goes_on(holder.build):
            self.ending.add(holder.build)
        return going_on

    def plays(self, name: str, holder: SemaphoreHolder) -> bool:
        """Return whether a playbook of a running build holds the place."""
        job = self._after.get(name, {}).get((holder.buildset, holder.job))
        return holder.build in self._running and holder.build != job

    def replaced(self, name: str, own: Sequence[SemaphoreHolder]) -> dict[SemaphoreHolder, SemaphoreHolder]:
        """Return holder of a job -> the holder that replaces it, with the build, for builds that the turn cancels."""
        builds = self._before.get(name, {})
        of = {h: builds.get((h.buildset, h.job), "") for h in own if not h.build}
        found = {holder: replace(holder, build=build) for holder, build in of.items() if build in self._stopped}
        self.ending |= {holder.build for holder in found.values()}
        return found


def _running(state: State) -> set[str]:
    """Return the ids of the builds that have not ended."""
    return {build.id for _, item in state.items() for build in item.under_way}


def _builds_by_name(state: State) -> dict[str, dict[tuple[str, str], str]]:
    """Return semaphore -> (buildset, job) -> the build that holds a place for it."""
    found = defaultdict[str, dict[tuple[str, str], str]](dict)
    names = taken_by(state)
    for _, item in state.items() if names else ():
        for build in item.under_way:
            buildset = build.origin or (item.buildset.id if item.buildset is not None else "")
            for name in names.get(build.id, ()):
                found[name][buildset, build.job] = build.id
    return found


def _by_name(state: State) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, buildset, job in holders(state):
        found.setdefault(name, []).append((buildset, job))
    return found
