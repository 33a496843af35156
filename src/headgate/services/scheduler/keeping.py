"""A pipeline's state as records in the store, and back.

The state is written as the difference of two frozen values: what did not change is the same object and costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.change import Change
from headgate.gate.model import Build, BuildSet, Item, Queue, State
from headgate.map.places import BuildSetPlace, JobPlace
from headgate.map.places import Pipeline as PipelinePlace
from headgate.map.records import BuildSetRecord, ItemRecord, PipelineRecord, Proposed, QueueRecord
from headgate.map.tree import Address, Undecodable, encode_plain, unescape
from headgate.recipes import blob
from headgate.store.types import Delete, Entry, Op, Put

R = TypeVar("R")


@dataclass(slots=True)
class Writes:
    """The operations that turn one state into another."""

    fresh: list[Op] = field(default_factory=list)
    """What nothing points to until an item's record does."""
    builds: dict[str, list[Op]] = field(default_factory=dict)
    """Build -> its record; goes together with the request for it."""
    items: dict[str, list[Op]] = field(default_factory=dict)
    """Item -> its record and its buildset's; goes together with the request to merge it."""
    queues: list[Op] = field(default_factory=list)
    stale: list[Op] = field(default_factory=list)
    """Deletions of what nothing points to any more."""


def _pipeline_record(state: State) -> PipelineRecord:
    return PipelineRecord(
        queues=tuple(queue.id for queue in state.queues), failures=state.failures, disabled=state.disabled
    )


def writes(place: PipelinePlace, before: State, after: State) -> Writes:
    """What to write so that the records under `place` say `after` instead of `before`."""
    out = Writes()
    if _pipeline_record(before) != _pipeline_record(after):
        out.queues.append(place.record.put(_pipeline_record(after)))
    old = {queue.id: queue for queue in before.queues}
    old_items = {item.id: item for _, item in before.items()}
    for queue in after.queues:
        if queue is not old.get(queue.id):
            _queue(place, old.get(queue.id), queue, out)
            for item in queue.items:
                if item is not (was := old_items.get(item.id)):
                    _item(place, was, item, out)
    kept = {item.id for _, item in after.items()}
    for id, item in old_items.items():
        if id not in kept:
            _drop_item(place, item, out)
    left = {queue.id for queue in after.queues}
    out.stale.extend(place.queue(id).record.delete() for id in old if id not in left)
    return out


def _queue(place: PipelinePlace, before: Queue | None, queue: Queue, out: Writes) -> None:
    record = _queue_record(queue)
    if before is None or _queue_record(before) != record:
        out.queues.append(place.queue(queue.id).record.put(record))


def _queue_record(queue: Queue) -> QueueRecord:
    return QueueRecord(
        name=queue.name,
        items=tuple(item.id for item in queue.items),
        window=queue.window,
        landed=queue.landed,
        landed_keys=queue.landed_keys,
        unfollowed=queue.unfollowed,
        dynamic=queue.dynamic,
    )


def _item(place: PipelinePlace, before: Item | None, item: Item, out: Writes) -> None:
    here = place.item(item.id)
    old, new = before.buildset if before else None, item.buildset
    if before is None or _item_record(before) != _item_record(item):
        out.items.setdefault(item.id, []).append(here.record.put(_item_record(item)))
    if old is not None and (new is None or new.id != old.id):
        _drop_buildset(place, item.id, old, out)
        old = None
    if new is not None and new is not old:
        _buildset(place, item.id, old, new, out)


def _item_record(item: Item) -> ItemRecord:
    return ItemRecord(
        change=item.change,
        live=item.live,
        event=item.event,
        enqueued_ms=item.enqueued_ms,
        resets=item.resets,
        started=item.started,
        exempt=item.exempt,
        trouble=item.trouble,
        successor=item.successor,
        buildset=item.buildset.id if item.buildset else "",
    )


def _buildset(place: PipelinePlace, item: str, before: BuildSet | None, new: BuildSet, out: Writes) -> None:
    here = place.item(item).buildset(new.id)
    if new.state is not None and (before is None or before.state is not new.state):
        out.fresh.extend(here.repo_state.blob(new.state))
    if new.proposed and (before is None or before.proposed is not new.proposed):
        out.fresh.extend(here.proposed.blob(Proposed(new.proposed)))
    known = {job.name for job in before.jobs} if before else set()
    for job in new.jobs:
        if job.name not in known:
            out.fresh.append(here.job(job.name).record.put(job))
    for name, gone in before.builds.items() if before else ():
        if name not in new.builds:
            out.builds[gone.id] = _drop_build(here, gone)
    for name, build in new.builds.items():
        was = before.builds.get(name) if before else None
        if was is build:
            continue
        out.builds[build.id] = [here.job(name).build(build.id).record.put(build)]
        if was is not None and was.id != build.id:
            out.stale.extend(_drop_build(here, was))
    if before is None or _buildset_record(before) != _buildset_record(new):
        out.items.setdefault(item, []).append(here.record.put(_buildset_record(new)))


def _buildset_record(buildset: BuildSet) -> BuildSetRecord:
    graph = buildset.graph
    return BuildSetRecord(
        ahead=buildset.ahead,
        merge=buildset.merge,
        error=buildset.error,
        blame=buildset.blame,
        jobs=None if graph is None else tuple(job.name for job in graph.jobs),
        fail_fast=graph.fail_fast if graph else False,
        in_pipeline=graph.in_pipeline if graph else True,
        config_errors=buildset.config_errors,
        warnings=buildset.warnings,
        landing=buildset.landing,
        landing_error=buildset.landing_error,
    )


def _drop_item(place: PipelinePlace, item: Item, out: Writes) -> None:
    if item.buildset is not None:
        _drop_buildset(place, item.id, item.buildset, out)
    out.stale.append(Delete(place.item(item.id).record.path))


def _drop_buildset(place: PipelinePlace, item: str, buildset: BuildSet, out: Writes) -> None:
    here = place.item(item).buildset(buildset.id)
    for build in buildset.builds.values():
        out.stale.extend(_drop_build(here, build))
    out.stale.extend(here.job(job.name).record.delete() for job in buildset.jobs)
    if buildset.state is not None:
        out.stale.extend(blob.delete_ops(here.repo_state.path, encode_plain(buildset.state)))
    if buildset.proposed:
        out.stale.extend(blob.delete_ops(here.proposed.path, encode_plain(Proposed(buildset.proposed))))
    out.stale.append(here.record.delete())


def _drop_build(here: BuildSetPlace, build: Build) -> list[Op]:
    place = here.job(build.job).build(build.id)
    return [place.record.delete(), place.parameters.delete()]


# --- and back


class _Entries:
    """A listed subtree, looked up by place."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.all = list(entries)
        self._by_path = {entry.path: entry for entry in self.all}
        parents = ((entry.path.rpartition("/")[0], entry) for entry in self.all)
        self._builds = {above: entry for above, entry in parents if above.endswith("/build")}
        """The path above a job's one build -> it."""

    def get(self, address: Address[R]) -> R | None:
        """The record there; None when there is none.  Raises Undecodable."""
        entry = self._by_path.get(address.path)
        return None if entry is None else address.decode(entry.value)

    def blob(self, address: Address[R]) -> R | None:
        entry = self._by_path.get(address.path)
        if entry is None:
            return None
        try:
            return address.decode(blob.assemble(entry, self.all))
        except ValueError as error:
            raise Undecodable(address.path, str(error)) from error

    def build(self, job: JobPlace, name: str) -> Build | None:
        """The one build of a job.  Raises Undecodable, for one of another job or name, too."""
        entry = self._builds.get(f"{job.path}/build")
        if entry is None:
            return None
        id = unescape(entry.path.rpartition("/")[2])
        build = job.build(id).record.decode(entry.value)
        if (build.id, build.job) != (id, name):
            raise Undecodable(entry.path, f"it is build {build.id} of {build.job}")
        return build

    def need(self, address: Address[R]) -> R:
        """Raises Undecodable, for what is missing, too."""
        found = self.get(address)
        if found is None:
            raise Undecodable(address.path, "it is missing, though another record names it")
        return found

    def items(self, place: PipelinePlace) -> list[str]:
        """The ids of all items that have a record."""
        prefix = f"{place.item('').path.rpartition('/')[0]}/"
        names = (entry.path.removeprefix(prefix) for entry in self.all if entry.path.startswith(prefix))
        return [unescape(name) for name in names if "/" not in name]


class Damaged(NamedTuple):
    """A record that cannot be read, or that names what is not there: nothing is decided on it."""

    path: str
    why: str
    item: str = ""
    """Whose it is: an item of the state, which is to be set aside; empty: nothing of it is in the state."""
    change: Change | None = None
    """Of an item that is in no queue any more."""


class Loaded(NamedTuple):
    state: State
    damaged: tuple[Damaged, ...]


def load(place: PipelinePlace, entries: Iterable[Entry]) -> Loaded:
    """The state the records under `place` say, and what is damaged of them.  What no record points to is not part of
    it; but when the record that may have pointed to it is damaged, it is named."""
    loading = _Loading(place, _Entries(entries))
    return Loaded(loading.state(), tuple(loading.damaged))


class _Loading:
    def __init__(self, place: PipelinePlace, found: _Entries) -> None:
        self._place, self._found = place, found
        self.damaged: list[Damaged] = []

    def state(self) -> State:
        record, torn = PipelineRecord(), False
        try:
            record = self._found.get(self._place.record) or record
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why))
            torn = True
        queues = []
        for id in record.queues:
            try:
                queues.append(self._queue(id, self._found.need(self._place.queue(id).record)))
            except Undecodable as error:
                self.damaged.append(Damaged(error.path, error.why))
                torn = True
        state = State(queues=tuple(queues), failures=record.failures, disabled=record.disabled)
        if torn:
            self._name_the_lost({item.id for _, item in state.items()})
        return state

    def _name_the_lost(self, kept: set[str]) -> None:
        """Items whose queue is not known any more."""
        for id in self._found.items(self._place):
            record = self._record(id) if id not in kept else None
            if record is not None and record.live:
                path = self._place.item(id).record.path
                self.damaged.append(Damaged(path, "the record of its queue is damaged", change=record.change))

    def _queue(self, id: str, queue: QueueRecord) -> Queue:
        return Queue(
            id=id,
            name=queue.name,
            items=tuple(item for i in queue.items if (item := self._item(i)) is not None),
            window=queue.window,
            landed=queue.landed,
            landed_keys=queue.landed_keys,
            unfollowed=queue.unfollowed,
            dynamic=queue.dynamic,
        )

    def _record(self, id: str) -> ItemRecord | None:
        """None: it is damaged."""
        try:
            return self._found.need(self._place.item(id).record)
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why))
            return None

    def _item(self, id: str) -> Item | None:
        record, buildset = self._record(id), None
        if record is None:
            return None
        try:
            if record.buildset:
                buildset = self._buildset(
                    self._place.item(id).buildset(record.buildset), record.change, record.buildset
                )
        except Undecodable as error:
            self.damaged.append(Damaged(error.path, error.why, id))
        return Item(
            id=id,
            change=record.change,
            live=record.live,
            event=record.event,
            enqueued_ms=record.enqueued_ms,
            resets=record.resets,
            started=record.started,
            exempt=record.exempt,
            trouble=record.trouble,
            successor=record.successor,
            buildset=buildset,
        )

    def _buildset(self, here: BuildSetPlace, change: Change, id: str) -> BuildSet:
        """Raises Undecodable: for what is missing or another's, too."""
        found = self._found
        record = found.need(here.record)
        jobs = tuple(self._job(here.job(name), name) for name in record.jobs or ())
        builds = {job.name: build for job in jobs if (build := found.build(here.job(job.name), job.name)) is not None}
        proposed, state = found.blob(here.proposed), found.blob(here.repo_state)
        if state is not None and change.is_change and all(one.commit != change.commit for one in state.chain[-1:]):
            raise Undecodable(here.repo_state.path, "it is of another change")
        return BuildSet(
            id=id,
            ahead=record.ahead,
            merge=record.merge,
            error=record.error,
            blame=record.blame,
            state=state,
            proposed=proposed.files if proposed else {},
            graph=None if record.jobs is None else FrozenGraph(jobs, record.fail_fast, record.in_pipeline),
            builds=builds,
            config_errors=record.config_errors,
            warnings=record.warnings,
            landing=record.landing,
            landing_error=record.landing_error,
        )

    def _job(self, here: JobPlace, name: str) -> FrozenJob:
        job = self._found.need(here.record)
        if job.name != name:
            raise Undecodable(here.record.path, f"it is the job {job.name}")
        return job


def garbage(place: PipelinePlace, entries: Iterable[Entry], state: State) -> list[Op]:
    """Deletes everything under `place` that `state` does not account for: left by a writer that died half-way."""
    entries = list(entries)
    diff = writes(place, State(), state)
    every = [*diff.fresh, *diff.queues, *(op for ops in (*diff.builds.values(), *diff.items.values()) for op in ops)]
    kept = {op.path for op in every if isinstance(op, Put)}
    kept |= {
        place.item(i.id).buildset(i.buildset.id).job(b.job).build(b.id).parameters.path
        for _, i in state.items()
        if i.buildset
        for b in i.buildset.builds.values()
    }
    return [Delete(entry.path) for entry in entries if entry.path not in kept and entry.path != place.record.path]
