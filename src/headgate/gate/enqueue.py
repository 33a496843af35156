"""Bringing a change into the pipeline, with what it needs ahead of it and what needs it behind."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import FrozenGraph, Pipeline, TriggerFilter
from headgate.config.patterns import may_match
from headgate.config.reading.check import as_list
from headgate.gate.change import Change, EventKind, Tell, TriggerEvent
from headgate.gate.leave import leave
from headgate.gate.model import (
    Action,
    BuildSet,
    Deferred,
    Item,
    Phase,
    Queue,
    Record,
    Report,
    State,
    Successor,
    Supersede,
    World,
    with_item,
    with_queue,
)
from headgate.gate.readiness import guarded, needed_by, needs, refused, unfit
from headgate.gate.report import announces, filled, refusal
from headgate.gate.work import ReportRequest

DEFERRED_MAX = 500
"""Changes that a pipeline remembers to let in once what they need has landed."""


def enqueue(
    state: State, change: Change, event: str, world: World, asked: list[Action], *, exempt: bool = False
) -> State:
    """`change` in the queue it belongs to; refused with a report when it cannot be tested at all.  `exempt`: this
    patchset need not meet the pipeline's requirements, now or later."""
    if foreign(world.pipeline, change) or not _takes_part(change, world):
        return state
    if unfit(change, world) and not exempt:
        return state
    found = _here(state, change, world)
    if found is not None:
        return _succeed(state, *found, Successor(change, event, exempt))
    own = replace(_item(change, event, world), exempt=exempt and guarded(world.pipeline))
    if world.pipeline.manager in ("serial", "supercedent"):
        return _in_line(state, own, world, asked)
    ahead: tuple[Change, ...] = ()
    if change.is_change and not world.pipeline.ignore_dependencies:
        ahead, problems = needs(change, world)
        if world.dependencies_max is not None and len(ahead) > world.dependencies_max:
            return state
        problems += tuple(filter(None, [too_many(state, ahead, world)]))
        apart = _not_together(state, change, ahead, world) if world.dependent else ()
        if apart and not problems:
            state = _deferring(state, Deferred(change.key, change.commit, event))
        if problems or apart:
            return _refuse(state, change, event, problems + apart, world, asked)
    if not world.dependent:
        return _alone(state, own, ahead, world)
    for needed in ahead:
        if state.find(needed.key) is None:
            state = _append(state, _item(needed, event, world), world)
    state = _append(state, own, world)
    return _those_behind(state, change, event, world, asked)


def _here(state: State, change: Change, world: World) -> tuple[Queue, Item] | None:
    """Its item: of a change whichever patchset, unless each is tested by itself; of a branch this update of it."""
    known = ((q, i) for q, i in state.items() if i.live and i.change.key == change.key)
    whichever = change.is_change and (world.dependent or world.pipeline.dequeue_on_new_patchset)
    return next(((q, i) for q, i in known if whichever or i.change.commit == change.commit), None)


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


def _not_together(state: State, change: Change, ahead: tuple[Change, ...], world: World) -> tuple[str, ...]:
    """Why the changes of `ahead` cannot land before `change` in one queue.  They meet the requirements themselves,
    whatever `change` is exempt from."""
    problems = []
    for needed in ahead:
        if state.find(needed.key) is not None and _queue_name(needed, world) == _queue_name(change, world):
            continue
        why = refused(world.pipeline, world.standings.get(needed.key))
        if not _takes_part(needed, world):
            problems.append(
                f"Depends-On: {needed.key}: its project has no {world.pipeline.name} jobs; it must land first, and "
                "then this change will be enqueued"
            )
        elif _queue_name(needed, world) != _queue_name(change, world):
            problems.append(
                f"Depends-On: {needed.key}: it is in another queue ({_queue_name(needed, world)}); "
                f"it must land first, and then this change will be enqueued; or the two projects must share a queue"
            )
        elif why:
            problems.append(f"Depends-On: {why}; this change will be enqueued once it is")
    return tuple(problems)


def _deferring(state: State, refused: Deferred) -> State:
    others = (one for one in state.deferred if one.key != refused.key)
    return replace(state, deferred=(*others, refused)[-DEFERRED_MAX:])


def readmitted(state: State, world: World, asked: list[Action]) -> State:
    """With those that were refused because of what they need, once that has landed, wherever it did."""
    for one in state.deferred:
        standing = world.standings.get(one.key)
        gone = standing is None or not standing.open or standing.change.commit != one.commit
        if gone or standing is None or state.find(one.key) is not None:
            state = replace(state, deferred=tuple(other for other in state.deferred if other != one))
        elif not needs(standing.change, world).changes and not refused(world.pipeline, standing):
            state = replace(state, deferred=tuple(other for other in state.deferred if other != one))
            state = enqueue(state, standing.change, derived(one.event, "readmitted"), world, asked)
    return state


def _item(change: Change, event: str, world: World, *, live: bool = True) -> Item:
    id = derived("item", world.tenant, world.pipeline.name, change.key, change.commit, event, str(live))
    return Item(id=id, change=change, live=live, event=event, enqueued_ms=world.now_ms)


def _append(state: State, item: Item, world: World) -> State:
    queue = _queue(state, _queue_name(item.change, world), world, world.pipeline.window.size)
    return with_queue(state, replace(queue, items=(*queue.items, item)))


def _queue(state: State, name: str, world: World, window: int) -> Queue:
    id = derived("queue", world.tenant, world.pipeline.name, name)
    return next((q for q in state.queues if q.name == name), Queue(id=id, name=name, window=window))


def _in_line(state: State, item: Item, world: World, asked: list[Action]) -> State:
    """One after the other; supercedent: of a branch only the first, which runs, and the last."""
    change = item.change
    if world.pipeline.manager == "serial":
        queue = _queue(state, _queue_name(change, world), world, 1)
    else:
        queue = _queue(state, f"{change.project} {change.branch or change.ref}", world, 1)
        for waiting in queue.items[1:]:
            queue = leave(queue, waiting, "DEQUEUED", world, asked, told=False)
    return with_queue(state, replace(queue, items=(*queue.items, item)))


def _alone(state: State, item: Item, ahead: tuple[Change, ...], world: World) -> State:
    """A queue of its own; what it needs is ahead of it, tested with it, but not reported."""
    items = (*(needed_item(item, change, world) for change in ahead), item)
    queue = Queue(id=derived("queue", item.id), name=item.change.project, items=items, window=0, dynamic=True)
    return with_queue(state, queue)


def needed_item(item: Item, change: Change, world: World) -> Item:
    """What stands for `change` ahead of `item`, which is tested on it."""
    id = derived(item.id, change.key, change.commit)
    return replace(_item(change, item.event, world, live=False), id=id)


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
    asked.append(Record(item, "FAILURE", note, tested=False))
    return state


ZEROS = "0" * 40
ZUUL = "zuul"
"""The connection of what happens in pipelines."""


def triggers(pipeline: Pipeline, event: TriggerEvent) -> bool:
    return any(_matches(f, event) for f in pipeline.triggers)


def _matches(filter: TriggerFilter, event: TriggerEvent) -> bool:
    change = event.change
    if event.kind.ripples:
        named = as_list(filter.more.get("pipeline")) if event.kind is EventKind.PARENT_ENQUEUED else []
        return filter.connection == ZUUL and event.kind in filter.events and (not named or event.pipeline in named)
    if filter.connection != change.connection or event.kind not in filter.events:
        return False
    if filter.ignore_deletes and not change.is_change and change.commit == ZEROS:
        return False
    if filter.branches and not may_match(filter.branches, change.branch):
        return False
    return not filter.refs or may_match(filter.refs, change.ref)


def heard(kind: EventKind, item: Item, world: World) -> Iterator[Action]:
    """Tell the pipelines that are triggered by it of what happened to the item here."""
    if item.change.is_change:
        id = derived(item.id, kind, world.pipeline.name)
        event = TriggerEvent(kind, item.change, id, world.now_ms, pipeline=world.pipeline.name)
        yield from (Tell(name, event) for name, other in world.beside.pipelines.items() if triggers(other, event))


def foreign(pipeline: Pipeline, change: Change) -> bool:
    """Is it of a connection that the pipeline does not name, and does that matter?"""
    return not pipeline.allow_other_connections and change.connection not in pipeline.connections


def too_many(state: State, ahead: tuple[Change, ...], world: World) -> str:
    """Why the pipeline has no room for a change and what it needs `ahead`; empty when it has."""
    most = world.changes_max
    missing = sum(state.find(needed.key) is None for needed in ahead)
    if most is not None and sum(1 for _ in state.items()) + missing + 1 > most:
        return f"the pipeline {world.pipeline.name} is full: the tenant allows {most} changes in it"
    return ""


def concluded(before: State, after: State, asked: list[Action], world: World) -> State:
    """At the end of a turn, to be settled once more: who came in is told so and leaves the pipelines this one
    supersedes; who succeeded has its reporter jobs run; failures in a row are counted, and may be the last."""
    for action in list(asked):
        if isinstance(action, Record) and action.result == "SUCCESS":
            after = _with_epilogue(after, action.item)
            landed = action.item.buildset is not None and action.item.buildset.landing
            asked.extend(heard(EventKind.PROJECT_MERGED, action.item, world) if landed else ())
    after = readmitted(after, world, asked)
    known = {(item.change.key, item.change.commit) for _, item in before.items() if item.live}
    for _, item in list(after.items()):
        if item.live and not item.epilogue and (item.change.key, item.change.commit) not in known:
            asked.extend(_entered(item, world))
    most = world.pipeline.disable_after
    if most is None:
        return replace(after, failures=0, disabled=False) if after.failures or after.disabled else after
    failures = after.failures
    for action in asked:
        if isinstance(action, Record) and action.tested:
            failures = {"SUCCESS": 0, "FAILURE": failures + 1}.get(action.result, failures)
    disabled = after.disabled or failures >= most
    if (failures, disabled) == (after.failures, after.disabled):
        return after
    return replace(after, failures=failures, disabled=disabled)


def _with_epilogue(state: State, item: Item) -> State:
    """With the jobs that run once the success is reported, by themselves."""
    buildset = item.buildset
    if buildset is None or buildset.graph is None or not buildset.graph.reporters:
        return state
    graph = FrozenGraph(jobs=buildset.graph.reporters)
    own = BuildSet(id=derived(buildset.id, "reporters"), merge=Phase.MERGED, state=buildset.state, graph=graph)
    id = derived(item.id, "reporters")
    more = Item(id, item.change, event=item.event, enqueued_ms=item.enqueued_ms, epilogue=True, buildset=own)
    queue = Queue(id=derived("queue", id), name=item.change.project, items=(more,), window=0, dynamic=True)
    return with_queue(state, queue)


def _entered(item: Item, world: World) -> Iterator[Action]:
    change, pipeline = item.change, world.pipeline
    yield from heard(EventKind.PARENT_ENQUEUED, item, world)
    if announces(change, world):
        note = filled(pipeline.enqueue_message, item, world) or f"Enqueued in {pipeline.name}."
        work = ReportRequest(change=change, pipeline=pipeline.name, note=note)
        yield Report(derived(item.id, "enqueue"), work, pipeline.precedence)
    for name in pipeline.supercedes:
        if name != pipeline.name:
            yield Supersede(name, change.key)
