"""Convert a pipeline's state to records in the store, and back.

Only the difference between two states is written: states are frozen, so an unchanged part is the same object and costs
nothing. `forms` defines the content of each record; this module defines its place, and which entries must exist with
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet, Item, Phase, Queue, State
from headgate.gate.state.works import RepoState
from headgate.map.entries import Entries
from headgate.map.forms import BUILDSET, GRAPH, ITEM, PIPELINE, QUEUE, Form
from headgate.map.places import BuildSetPlace, JobPlace, PipelineDir
from headgate.map.records import ProposedFiles
from headgate.map.tree import Undecodable, encode_plain
from headgate.recipes import blob
from headgate.store.types import Delete, Entry, Op, Put

V = TypeVar("V", bound=msgspec.Struct)

MANY = 5_000
"""Number of queues that are certain to fit into one entry with the rest of a pipeline's record."""


@dataclass(slots=True)
class Writes:
    """Collect the operations that change the records of one state into those of another."""

    fresh: list[Op] = field(default_factory=list)
    """New entries that nothing refers to until an item's record does."""
    builds: dict[str, list[Op]] = field(default_factory=dict)
    """Build -> its record, which is written in the same commit as the request for the build."""
    items: dict[str, list[Op]] = field(default_factory=dict)
    """Item -> its record and its buildset's, which are written in the same commit as the request to merge the item."""
    made: list[Op] = field(default_factory=list)
    """New queues, which nothing refers to until the pipeline's record does."""
    pipeline: list[Op] = field(default_factory=list)
    """The pipeline's record."""
    queues: list[Op] = field(default_factory=list)
    """Existing queues that have changed."""
    stale: list[Op] = field(default_factory=list)
    """Deletions of entries that nothing refers to any more."""

    def __iter__(self) -> Iterator[Op]:
        """Yield all operations in the order in which they must be written."""
        # A turn that is too large is written in several commits. After each of them, the records must be complete: an
        # entry precedes those that refer to it, and deletions come last.
        yield from self.fresh
        for ops in (*self.items.values(), *self.builds.values()):
            yield from ops
        yield from (*self.made, *self.pipeline, *self.queues, *self.stale)


def writes(place: PipelineDir, before: State, after: State) -> Writes:
    """Return the writes that change the records under `place` from `before` to `after`."""
    out = Writes()
    if (record := _changed(PIPELINE, before, after)) is not None:
        _pipeline(place, before, record, out)
    old = {queue.id: queue for queue in before.queues}
    old_items = {item.id: item for _, item in before.items()}
    for queue in after.queues:
        # States are frozen: the same object needs no comparison, so the cost of a turn depends on what it changes.
        if queue is (was_queue := old.get(queue.id)):
            continue
        if (record := _changed(QUEUE, was_queue, queue)) is not None:
            (out.queues if was_queue else out.made).append(place.queue(queue.id).record.put(record))
        for item in queue.items:
            if item is not (was := old_items.get(item.id)):
                _item(place, was, item, out)
    remaining = {item.id for _, item in after.items()}
    for id, item in old_items.items():
        if id not in remaining:
            _drop_item(place, item, out)
    left = {queue.id for queue in after.queues}
    out.stale.extend(place.queue(id).record.delete() for id in old if id not in left)
    return out


def _pipeline(place: PipelineDir, before: State, record: Any, out: Writes) -> None:  # `record`: form PIPELINE
    """Add to `out` the writes of the pipeline's record, which is stored in pieces if it has very many queues."""
    *pieces, pointer = place.record.blob(record)
    out.fresh.extend(pieces)
    out.pipeline.append(pointer)
    # A smaller record has no pieces; encoding the old record to find that out would be a cost of every turn.
    if len(before.queues) >= MANY:
        written = {place.record.path, *(op.path for op in pieces if isinstance(op, Put))}
        old = blob.delete_ops(place.record.path, encode_plain(PIPELINE.record(before)))
        out.stale.extend(op for op in old if isinstance(op, Delete) and op.path not in written)


def _changed(form: Form[V], before: V | None, after: V) -> Any:  # returns a record of the form
    """Return the record to write; None: the existing one has the same content."""
    record = form.record(after)
    return None if before is not None and form.record(before) == record else record


def _item(place: PipelineDir, before: Item | None, item: Item, out: Writes) -> None:
    here = place.item(item.id)
    old, new = before.buildset if before else None, item.buildset
    if (record := _changed(ITEM, before, item)) is not None:
        out.items.setdefault(item.id, []).append(here.record.put(record))
    origins = item.origins
    for id in before.origins - origins if before is not None else ():
        out.stale.extend(_drop_state(here.buildset(id), before.earlier.get(id) if before is not None else None))
    out.fresh.extend(
        op for id in origins if before is None for op in here.buildset(id).repo_state.blob(item.earlier[id])
    )
    if old is not None and (new is None or new.id != old.id):
        _drop_buildset(place, item.id, old, out, origins)
        old = None
    if new is not None and new is not old:
        _buildset(place, item.id, old, new, out)


def _buildset(place: PipelineDir, item: str, before: BuildSet | None, new: BuildSet, out: Writes) -> None:
    here = place.item(item).buildset(new.id)
    if new.state is not None and (before is None or before.state is not new.state):
        out.fresh.extend(here.repo_state.blob(new.state))
    if new.proposed and (before is None or before.proposed is not new.proposed):
        out.fresh.extend(here.proposed.blob(ProposedFiles(new.proposed)))
    known = {job.id for job in _every_job(before)} if before else set()
    out.fresh.extend(here.job(job.id).record.put(job) for job in _every_job(new) if job.id not in known)
    for name, gone in before.builds.items() if before else ():
        if name not in new.builds:
            out.builds[gone.id] = _drop_build(here, gone)
    for name, build in new.builds.items():
        was = before.builds.get(name) if before else None
        if was is build:
            continue
        put = here.job(name).build(build.id).record.put(build)
        # A carried build is written before its former item drops it: otherwise a crash in between would lose it.
        if was is None and build.origin:
            out.fresh.append(put)
        else:
            out.builds[build.id] = [put]
        if was is not None and was.id != build.id:
            out.stale.extend(_drop_build(here, was))
    if (record := _changed(BUILDSET, before, new)) is not None:
        out.items.setdefault(item, []).append(here.record.put(record))


def _every_job(buildset: BuildSet) -> tuple[FrozenJob, ...]:
    """Return the jobs of a buildset, including those that run after its success."""
    return (*buildset.graph.jobs, *buildset.graph.reporters) if buildset.graph is not None else ()


def _drop_item(place: PipelineDir, item: Item, out: Writes) -> None:
    for id in item.origins:
        out.stale.extend(_drop_state(place.item(item.id).buildset(id), item.earlier.get(id)))
    if item.buildset is not None:
        _drop_buildset(place, item.id, item.buildset, out)
    out.stale.append(Delete(place.item(item.id).record.path))


def _drop_buildset(
    place: PipelineDir, item: str, buildset: BuildSet, out: Writes, needed: Collection[str] = ()
) -> None:
    """Add to `out` the deletion of a buildset. Its repository state stays if its id is in `needed`, as builds still use
    it."""
    here = place.item(item).buildset(buildset.id)
    for build in buildset.builds.values():
        out.stale.extend(_drop_build(here, build))
    out.stale.extend(here.job(job.id).record.delete() for job in _every_job(buildset))
    if buildset.id not in needed:
        out.stale.extend(_drop_state(here, buildset.state))
    if buildset.proposed:
        out.stale.extend(blob.delete_ops(here.proposed.path, encode_plain(ProposedFiles(buildset.proposed))))
    out.stale.append(here.record.delete())


def _drop_state(here: BuildSetPlace, state: RepoState | None) -> list[Op]:
    return blob.delete_ops(here.repo_state.path, encode_plain(state)) if state is not None else []


def _drop_build(here: BuildSetPlace, build: Build) -> list[Op]:
    place = here.job(build.job).build(build.id)
    return [place.record.delete(), place.parameters.delete()]


# --- reading


class Damaged(NamedTuple):
    """Name a record that cannot be decoded, or that refers to a missing record. The gate decides nothing from it."""

    path: str
    why: str
    item: str = ""
    """The item of the state to quarantine; empty if the damaged entry belongs to no item of the state."""
    change: Change | None = None
    """The change of an item that is no longer in a queue."""


class LoadedState(NamedTuple):
    state: State
    damaged: tuple[Damaged, ...]


class KnownItem(NamedTuple):
    """Cache a decoded item with the versions of its records."""

    versions: tuple[int, ...]
    item: Item | None
    damaged: tuple[Damaged, ...]


def load(place: PipelineDir, entries: Iterable[Entry], known: dict[str, KnownItem] | None = None) -> LoadedState:
    """Decode the state whose records are under `place`, and report damaged records.

    A record that no other record refers to is not part of the state; but if the damaged record may have referred to an
    item, that item is reported, too. `known` caches items by id: only items whose records have changed are decoded
    again.
    """
    loading = _StateLoader(place, Entries(entries), known if known is not None else {})
    return LoadedState(loading.state(), tuple(loading.damaged))


class _StateLoader:
    def __init__(self, place: PipelineDir, found: Entries, known: dict[str, KnownItem]) -> None:
        self._place, self._found, self._known = place, found, known
        self._of_items = found.items(place)
        self._seen: set[str] = set()
        """Items that are in a queue."""
        self.damaged: list[Damaged] = []

    def state(self) -> State:
        record, queues, torn = PIPELINE.record(State()), list[Queue](), False
        try:
            record = self._found.blob(self._place.record, needed=False) or record
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why))
            torn = True
        for id in dict.fromkeys(record.queues):
            try:
                queue = self._found.need(self._place.queue(id).record)
            except Undecodable as error:
                self.damaged.append(Damaged(error.path, error.why))
                torn = True
                continue
            items = (self._item(item) for item in queue.items)
            queues.append(QUEUE.value(queue, id=id, items=tuple(item for item in items if item is not None)))
        if torn:
            self._name_the_lost()
        # Otherwise the cache would contain every item that the pipeline ever had.
        for gone in self._known.keys() - self._seen:
            del self._known[gone]
        return PIPELINE.value(record, queues=tuple(queues))

    def _name_the_lost(self) -> None:
        """Add to `damaged` the live items whose queue is unknown."""
        for id, entries in self._of_items.items():
            there = any(entry.path == self._place.item(id).record.path for entry in entries)
            record = self._record(id, self._found) if there and id not in self._seen else None
            if record is not None and record.live:
                path = self._place.item(id).record.path
                self.damaged.append(Damaged(path, "the record of its queue is damaged", change=record.change))

    def _record(self, id: str, found: Entries) -> Any:  # returns a record of the form ITEM
        """Return the record of an item; if it is damaged, report that and return None."""
        try:
            return found.need(self._place.item(id).record)
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why))
            return None

    def _item(self, id: str) -> Item | None:
        if id in self._seen:
            self.damaged.append(Damaged(self._place.item(id).record.path, "it is in a queue twice, or in two queues"))
            return None
        self._seen.add(id)
        entries = self._of_items.get(id, [])
        # Versions are never reused, so equal versions mean equal records.
        versions = tuple(entry.version for entry in entries)
        known = self._known.get(id)
        if known is None or known.versions != versions:
            before, self.damaged = self.damaged, []
            item = self._read(id, Entries(entries))
            known = self._known[id] = KnownItem(versions, item, tuple(self.damaged))
            self.damaged = before
        self.damaged += known.damaged
        return known.item

    def _read(self, id: str, found: Entries) -> Item | None:
        """Decode the item whose records are in `found`."""
        record = self._record(id, found)
        if record is None:
            return None
        buildset, epilogue, earlier = None, record.epilogue, dict[str, RepoState]()
        try:
            if record.buildset:
                own = found.need(self._place.item(id).buildset(record.buildset).record)
                here = self._place.item(id).buildset(record.buildset)
                buildset = _buildset_of(found, here, record.buildset, own, (record.change, *record.others)[-1])
                epilogue = epilogue or (own.apart is None and _was_epilogue(record))
            item = ITEM.value(record, id=id, buildset=buildset, earlier=earlier)
            for origin in sorted(item.origins):
                state = found.blob(self._place.item(id).buildset(origin).repo_state, needed=True)
                earlier |= {origin: state} if state is not None else {}
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why, id))
        return replace(ITEM.value(record, id=id, buildset=buildset, earlier=earlier), epilogue=epilogue)


def _buildset_of(found: Entries, here: BuildSetPlace, id: str, record: Any, change: Change) -> BuildSet:  # BUILDSET
    """Decode the buildset of an item. Raise Undecodable if records are damaged, missing or belong to another item."""
    graph, builds = _graph(found, here, record), dict[str, Build]()
    for job in graph.jobs if graph is not None else ():
        if (build := found.build(here.job(job.id), job.id)) is not None:
            builds[job.id] = build
    apart = record.apart if record.apart is not None else ("state",) * (record.merge is Phase.MERGED)
    state = found.blob(here.repo_state, needed="state" in apart)
    proposed = found.blob(here.proposed, needed="proposed" in apart)
    # With the repository state of another change, the wrong commit would land.
    own = {state.landed, *(one.commit for one in state.chain[-1:])} if state is not None else {change.commit}
    if change.is_change and change.commit not in own:
        raise Undecodable(here.repo_state.path, "it belongs to another change")
    files = proposed.files if proposed is not None else {}
    return BUILDSET.value(record, id=id, state=state, proposed=files, graph=graph, builds=builds)


def _graph(found: Entries, here: BuildSetPlace, record: Any) -> FrozenGraph | None:  # of the form BUILDSET
    """Decode the job graph of a buildset; None: it is not frozen yet."""
    if record.jobs is None:
        return None
    jobs = tuple(_job(found, here.job(name), name) for name in record.jobs)
    reporters = tuple(_job(found, here.job(name), name) for name in record.reporters)
    return GRAPH.value(record, jobs=jobs, reporters=reporters)


def _job(found: Entries, here: JobPlace, name: str) -> FrozenJob:
    job = found.need(here.record)
    if job.id != name:
        raise Undecodable(here.record.path, f"it belongs to another path: job {job.id}")
    return job


def _was_epilogue(record: Any) -> bool:  # `record` is of the form ITEM
    """Return whether the item is an epilogue, for records of older versions, which do not say that: only epilogues have
    a buildset without having been started."""
    return bool(record.live) and record.resets == 0


def garbage(place: PipelineDir, entries: Iterable[Entry], state: State) -> list[Op]:
    """Return the deletions of entries under `place` that do not belong to `state`: leftovers of a writer that died."""
    entries = list(entries)
    # The entries of a state are those that would be written if there were none yet.
    included = {op.path for op in writes(place, State(), state) if isinstance(op, Put)}
    included |= {
        place.item(i.id).buildset(i.buildset.id).job(b.job).build(b.id).parameters.path
        for _, i in state.items()
        if i.buildset
        for b in i.buildset.builds.values()
    }
    return [Delete(entry.path) for entry in entries if entry.path not in included and entry.path != place.record.path]
