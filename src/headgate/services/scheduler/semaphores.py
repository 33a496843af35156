"""Semaphores as one pipeline holds them: records that its turns write, and that others hold places in, too."""

from __future__ import annotations

from collections import Counter

from headgate.config.dynamic import Layouts
from headgate.gate.advance import holders
from headgate.gate.model import State
from headgate.map.places import semaphore_of
from headgate.map.records import Holder, SemaphoreRecord
from headgate.map.tree import Address
from headgate.recipes.codec import readable
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.turn import Piece
from headgate.store.types import At, Entry


class Semaphores:
    """Of one pipeline.  A record that is damaged is made anew of what each pipeline holds."""

    def __init__(self, context: Context, configuration: Configuration, pipeline: str) -> None:
        self._context, self._configuration, self._pipeline = context, configuration, pipeline
        self._tenant = configuration.tenant.name
        map = context.map
        self.places = (map.semaphores(self._tenant).path, map.global_semaphores.path)
        """Prefixes of all their records."""

    def versions(self) -> tuple[int, ...]:
        return tuple(entry.version for place in self.places for entry in self._context.mirror.under(place))

    def held(self, layouts: Layouts, state: State) -> Counter[str]:
        """Semaphore -> holders in other pipelines, and playbooks."""
        held: Counter[str] = Counter()
        graphs = (item.buildset.graph for _, item in state.items() if item.buildset is not None)
        names = set(layouts.landed.semaphores).union(*(graph.semaphores for graph in graphs if graph is not None))
        for name in names:
            held[name] = sum(not self._is_ours(h) or h.build != "" for h in self._record(name).holders)
        return held

    def holding(self, before: State, after: State, *, settled: bool, cut: bool = False) -> list[Piece]:
        """The semaphores as this pipeline holds them after the turn; others' holders stay, and playbooks of builds
        that run.  `settled`: they are known to be as `before` says.  Of a turn that is `cut` none is given up but to
        another holder of ours: what it was held for is still there until the end."""
        pieces = list[Piece]()
        before_of, after_of = _by_name(before), _by_name(after)
        names = {*before_of, *after_of, *self._configuration.layouts.landed.semaphores}
        running = _running(after) if names else set()

        def left(holder: Holder) -> bool:
            return self._is_ours(holder) and holder.build != "" and holder.build not in running

        for name in sorted(names):
            address, entry, holders = self._place_of(name), self._entry(name), self._record(name).holders
            damaged = entry is not None and readable(entry, SemaphoreRecord) is None
            same = settled and before_of.get(name) == after_of.get(name)
            if same and not damaged and not any(map(left, holders)):
                continue
            others = tuple(h for h in holders if not self._is_ours(h) or (h.build and not left(h)))
            tenant = self._tenant if name in self._configuration.tenant.semaphores else ""
            ours = tuple(Holder(self._pipeline, buildset, job, "", tenant) for buildset, job in after_of.get(name, ()))
            if cut:
                given_up = [holder for holder in holders if holder not in others + ours]
                others += tuple(given_up[sum(holder not in holders for holder in ours) :])
            if set(others + ours) == set(holders) and not damaged:
                continue
            check = At(address.path, entry.version if entry else None)
            pieces.append(Piece([address.put(SemaphoreRecord(others + ours))], [check]))
        return pieces

    def _entry(self, name: str) -> Entry | None:
        return self._context.mirror.get(self._place_of(name).path)

    def _record(self, name: str) -> SemaphoreRecord:
        entry = self._entry(name)
        return (readable(entry, SemaphoreRecord) if entry is not None else None) or SemaphoreRecord(())

    def _place_of(self, semaphore: str) -> Address[SemaphoreRecord]:
        shared = semaphore in self._configuration.tenant.semaphores
        return semaphore_of(self._context.map, self._tenant, semaphore, shared=shared)

    def _is_ours(self, holder: Holder) -> bool:
        return holder.pipeline == self._pipeline and holder.tenant in ("", self._tenant)


def _running(state: State) -> set[str]:
    """Builds that have not ended."""
    buildsets = [item.buildset for _, item in state.items() if item.buildset is not None]
    return {b.id for buildset in buildsets for b in buildset.builds.values() if b.result is None}


def _by_name(state: State) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, buildset, job in holders(state):
        found.setdefault(name, []).append((buildset, job))
    return found
