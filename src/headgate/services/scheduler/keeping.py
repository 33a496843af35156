"""A pipeline's state as records in the store, and back.

The state is written as the difference of two frozen values: what did not change is the same object and costs
nothing.  Order makes every prefix of a long write harmless: what is new first, then the records that point to it,
then what nobody points to any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.config.model import FrozenGraph, FrozenJob
from headgate.gate.model import Build, BuildSet, Item, Queue, State
from headgate.gate.work import RepoState
from headgate.map.places import Pipeline as PipelinePlace
from headgate.map.places import Tenant
from headgate.map.records import BuildSetRecord, ItemRecord, PipelineRecord, Proposed, QueueRecord
from headgate.map.tree import Undecodable
from headgate.recipes import blob
from headgate.store.types import Delete, Entry, Op, Put


@dataclass(slots=True)
class Writes:
    """The operations that turn one state into another, in the order they must be made."""

    fresh: list[Op] = field(default_factory=list)
    pointers: list[Op] = field(default_factory=list)
    stale: list[Op] = field(default_factory=list)

    def ordered(self) -> list[Op]:
        return [*self.fresh, *self.pointers, *self.stale]


def pipeline_record(state: State, layout: str) -> PipelineRecord:
    return PipelineRecord(
        queues=tuple(q.id for q in state.queues), layout=layout, failures=state.failures, disabled=state.disabled
    )


def writes(place: PipelinePlace, before: State, after: State) -> Writes:
    """What to write so that the records under `place` say `after` instead of `before`."""
    out = Writes()
    if [q.id for q in before.queues] != [q.id for q in after.queues] or before.failures != after.failures:
        out.pointers.append(place.record.put(pipeline_record(after, "")))
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
    out.stale.extend(Delete(place.queue(q.id).path) for q in before.queues if q.id not in {x.id for x in after.queues})
    return out


def _queue(place: PipelinePlace, before: Queue | None, queue: Queue, out: Writes) -> None:
    record = _queue_record(queue)
    if before is None or _queue_record(before) != record:
        out.pointers.append(place.queue(queue.id).put(record))


def _queue_record(queue: Queue) -> QueueRecord:
    return QueueRecord(
        name=queue.name,
        items=tuple(item.id for item in queue.items),
        window=queue.window,
        landed=queue.landed,
        dynamic=queue.dynamic,
    )


def _item(place: PipelinePlace, before: Item | None, item: Item, out: Writes) -> None:
    here = place.item(item.id)
    old, new = before.buildset if before else None, item.buildset
    if before is None or _item_record(before) != _item_record(item):
        out.pointers.append(here.record.put(_item_record(item)))
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
        trouble=item.trouble,
        buildset=item.buildset.id if item.buildset else "",
    )


def _buildset(place: PipelinePlace, item: str, before: BuildSet | None, new: BuildSet, out: Writes) -> None:
    here = place.item(item).buildset(new.id)
    if new.state is not None and (before is None or before.state is not new.state):
        out.fresh.append(here.repo_state.put(new.state))
    if new.proposed and (before is None or before.proposed is not new.proposed):
        out.fresh.extend(blob.write_ops(here.proposed.path, here.proposed.encode(Proposed(new.proposed))))
    known = {job.name for job in before.jobs} if before else set()
    for job in new.jobs:
        if job.name not in known:
            out.fresh.append(here.job(job.name).record.put(job))
    for name, build in new.builds.items():
        was = before.builds.get(name) if before else None
        if was is build:
            continue
        out.fresh.append(here.job(name).build(build.id).record.put(build))
        if was is not None and was.id != build.id:
            out.stale.extend(_build_ops(here, was))
    if before is None or _buildset_record(before) != _buildset_record(new):
        out.pointers.append(here.record.put(_buildset_record(new)))


def _buildset_record(buildset: BuildSet) -> BuildSetRecord:
    graph = buildset.graph
    return BuildSetRecord(
        ahead=buildset.ahead,
        merge=buildset.merge,
        error=buildset.error,
        jobs=None if graph is None else tuple(job.name for job in graph.jobs),
        fail_fast=graph.fail_fast if graph else False,
        in_pipeline=graph.in_pipeline if graph else True,
        config_errors=buildset.config_errors,
        warnings=buildset.warnings,
        landing=buildset.landing,
        landing_error=buildset.landing_error,
        has_state=buildset.state is not None,
        has_proposed=bool(buildset.proposed),
    )


def _drop_item(place: PipelinePlace, item: Item, out: Writes) -> None:
    if item.buildset is not None:
        _drop_buildset(place, item.id, item.buildset, out)
    out.stale.append(Delete(place.item(item.id).record.path))


def _drop_buildset(place: PipelinePlace, item: str, buildset: BuildSet, out: Writes) -> None:
    here = place.item(item).buildset(buildset.id)
    for build in buildset.builds.values():
        out.stale.extend(_build_ops(here, build))
    out.stale.extend(Delete(here.job(job.name).record.path) for job in buildset.jobs)
    if buildset.state is not None:
        out.stale.append(Delete(here.repo_state.path))
    if buildset.proposed:
        out.stale.append(Delete(here.proposed.path))
    out.stale.append(Delete(here.record.path))
