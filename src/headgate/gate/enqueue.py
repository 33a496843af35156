"""Bringing a change into the pipeline, with what it needs ahead of it and what needs it behind."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import Pipeline, TriggerFilter
from headgate.config.patterns import any_matches
from headgate.gate.change import Change, Standing, TriggerEvent
from headgate.gate.model import (
    Action,
    Item,
    Queue,
    Record,
    Report,
    State,
    Successor,
    World,
    with_item,
    with_queue,
)
from headgate.gate.needs import needed_by, needs
from headgate.gate.report import refusal
from headgate.gate.work import ReportRequest


def enqueue(
    state: State, change: Change, event: str, world: World, asked: list[Action], *, by_hand: bool = False
) -> State:
    """`change` in the queue it belongs to; refused with a report when it cannot be tested at all."""
    if not _takes_part(change, world):
        return state
    if not by_hand and refused(world.pipeline, world.standings.get(change.key)) and change.is_change:
        return state
    found = state.find(change.key)
    if found is not None:
        return _succeed(state, *found, Successor(change, event, by_hand))
    ahead: tuple[Change, ...] = ()
    if change.is_change and not world.pipeline.ignore_dependencies:
        ahead, problems = needs(change, world)
        if world.dependent:
            problems += _not_together(state, change, ahead, world, by_hand=by_hand)
        if problems:
            return _refuse(state, change, event, problems, world, asked)
    if not world.dependent:
        return _alone(state, change, ahead, event, world)
    for needed in ahead:
        if state.find(needed.key) is None:
            state = _append(state, needed, event, world)
    state = _append(state, change, event, world)
    return _those_behind(state, change, event, world, asked)


def _succeed(state: State, queue: Queue, item: Item, successor: Successor) -> State:
    """The change is here already; what replaces a patchset that is being landed waits for the answer to that."""
    landing = item.buildset is not None and item.buildset.landing
    if not landing or item.change.commit == successor.change.commit:
        return state
    return with_queue(state, with_item(queue, replace(item, successor=successor)))


def _takes_part(change: Change, world: World) -> bool:
    return world.layouts.landed.takes_part(world.pipeline.name, change.project, change.branch)


def _queue_name(change: Change, world: World) -> str:
    return world.layouts.landed.queue_of(change.project, change.branch, world.pipeline.name)


def _not_together(
    state: State, change: Change, ahead: tuple[Change, ...], world: World, *, by_hand: bool
) -> tuple[str, ...]:
    """Why the changes of `ahead` cannot land before `change` in one queue."""
    problems = []
    for needed in ahead:
        if state.find(needed.key) is not None and _queue_name(needed, world) == _queue_name(change, world):
            continue
        why = "" if by_hand else refused(world.pipeline, world.standings.get(needed.key))
        if not _takes_part(needed, world):
            problems.append(f"Depends-On: {needed.key}: its project has no {world.pipeline.name} jobs")
        elif _queue_name(needed, world) != _queue_name(change, world):
            problems.append(
                f"Depends-On: {needed.key}: it is in another queue ({_queue_name(needed, world)}); "
                f"it must land first, or the two projects must share a queue"
            )
        elif why:
            problems.append(f"Depends-On: {why}; this change will be enqueued once it is")
    return tuple(problems)


def _item(change: Change, event: str, world: World, *, live: bool = True) -> Item:
    id = derived("item", world.tenant, world.pipeline.name, change.key, change.commit, event, str(live))
    return Item(id=id, change=change, live=live, event=event, enqueued_ms=world.now_ms)


def _append(state: State, change: Change, event: str, world: World) -> State:
    name = _queue_name(change, world)
    queue = next((q for q in state.queues if q.name == name), None)
    if queue is None:
        id = derived("queue", world.tenant, world.pipeline.name, name)
        queue = Queue(id=id, name=name, window=world.pipeline.window.size)
    return with_queue(state, replace(queue, items=(*queue.items, _item(change, event, world))))


def _alone(state: State, change: Change, ahead: tuple[Change, ...], event: str, world: World) -> State:
    """A queue of its own; what it needs is ahead of it, tested with it, but not reported."""
    item = _item(change, event, world)
    unreported = (replace(_item(needed, event, world, live=False), id=derived(item.id, needed.key)) for needed in ahead)
    queue = Queue(id=derived("queue", item.id), name=change.project, items=(*unreported, item), window=0, dynamic=True)
    return with_queue(state, queue)


def _those_behind(state: State, change: Change, event: str, world: World, asked: list[Action]) -> State:
    """Changes that were only waiting for this one."""
    for other in needed_by(change.key, world):
        same_queue = _takes_part(other, world) and _queue_name(other, world) == _queue_name(change, world)
        if (
            same_queue
            and not refused(world.pipeline, world.standings.get(other.key))
            and _all_present(state, other, world)
        ):
            state = enqueue(state, other, event, world, asked)
    return state


def _all_present(state: State, change: Change, world: World) -> bool:
    found = needs(change, world)
    return not found.problems and all(state.find(n.key) is not None for n in found.changes)


def _refuse(
    state: State, change: Change, event: str, problems: tuple[str, ...], world: World, asked: list[Action]
) -> State:
    item = _item(change, event, world)
    note = refusal(change, problems, world)
    if change.connection in world.pipeline.reporters.get("failure", ()):
        work = ReportRequest(change=change, pipeline=world.pipeline.name, note=note)
        asked.append(Report(derived(item.id, "refused"), work, world.pipeline.precedence))
    asked.append(Record(item, "FAILURE", note))
    return state


ZEROS = "0" * 40


def triggers(pipeline: Pipeline, event: TriggerEvent) -> bool:
    return any(_matches(f, event) for f in pipeline.triggers)


def _matches(filter: TriggerFilter, event: TriggerEvent) -> bool:
    change = event.change
    if filter.connection != change.connection or event.kind not in filter.events:
        return False
    if filter.ignore_deletes and not change.is_change and change.commit == ZEROS:
        return False
    if filter.branches and not any_matches(filter.branches, change.branch):
        return False
    return not filter.refs or any_matches(filter.refs, change.ref)


def refused(pipeline: Pipeline, standing: Standing | None) -> str:
    """Why the pipeline's requirements keep a change out; empty when they do not."""
    if standing is None:
        return "it is not known at its connection"
    change = standing.change
    if change.connection not in pipeline.require_approved or not change.is_change:
        return ""
    return "" if standing.is_approved else f"{change.key} is not approved"
