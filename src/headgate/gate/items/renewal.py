"""Bring queues up to date: with current needs, with a new configuration, or after their pipeline was removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import asdict, fields, replace

from headgate.config.model import Pipeline, Window
from headgate.gate.builds.carry import reset
from headgate.gate.builds.report import result_of
from headgate.gate.items.enqueue import deferring, heard, needed_item
from headgate.gate.items.landings import ask_to_land, has_landed
from headgate.gate.items.leave import leave
from headgate.gate.items.trial import unfinished
from headgate.gate.rules.needs import needs
from headgate.gate.rules.readiness import Obstacle, Unready
from headgate.gate.rules.refs import queue_id, queue_name, takes_part
from headgate.gate.state.actions import Action, Record
from headgate.gate.state.change import Change, Deferred, EventKind
from headgate.gate.state.model import Item, Queue, Remains, State, Unfollowed, with_item, with_queue
from headgate.gate.state.world import World, closing_of

ENDS = ("success", "failure", "merge-conflict", "config-error", "no-jobs", "dequeue")
"""Kinds of reports on the end of an item; their recipients are notified of the removal."""
REPORTED = ("dequeue", "failure")
"""Kinds of reports that a removed pipeline makes."""
_SAME = tuple(field.name for field in fields(Remains) if field.name not in ("reporters", "reports"))


def may_leave(item: Item) -> bool:
    """Return whether the item may still leave: it is live, runs no epilogue, and awaits no answer to a landing."""
    return item.live and not item.epilogue and not _is_landing(item)


def with_current_needs(item: Item, world: World) -> Item:
    """Return the item with the current needs of its patchsets: a change that they need may have been proposed in the
    meantime, or a branch created."""
    known = tuple(_change_with_current_needs(change, world) for change in item.changes)
    return item if known == item.changes else replace(item, change=known[0], others=known[1:])


def _change_with_current_needs(change: Change, world: World) -> Change:
    own = world.change_states.get(change.key)
    if own is None or not own.open or own.change.commit != change.commit:
        return change
    now, then = ((one.needs, one.stale, one.unresolved, one.ignored) for one in (own.change, change))
    return change if now == then else own.change


def renewed(queue: Queue, world: World, actions: list[Action]) -> tuple[Queue, Unready | None]:
    """Return the queue of a separately tested change with what it needs now ahead of it, and the obstacle to that, or
    None."""
    if not queue.dynamic or world.dependent or world.pipeline.ignore_dependencies or not queue.items:
        return queue, None
    *before, item = queue.items
    if not may_leave(item) or not item.change.is_change:
        return queue, None
    item = with_current_needs(item, world)
    if not (before or any(change.needs for change in item.changes)):
        return queue, None
    wanted = needs(item.change, world)
    left = [one for one in before if not all(has_landed(change.key, world) for change in one.changes)]
    # A landed change is on the branch, so an item that was tested on it need not start again.
    if _patchsets(wanted.ahead) == _patchsets(one.changes for one in left):
        return queue, None
    if lacking := wanted.problems + wanted.outside:
        return queue, Unready(Obstacle.LACKING, "; ".join(lacking))
    item = reset(item, world, actions)
    had = dict(zip(_patchsets(one.changes for one in before), before, strict=True))
    fresh = (
        had.get(names) or needed_item(item, group, world)
        for names, group in zip(_patchsets(wanted.ahead), wanted.ahead, strict=True)
    )
    return replace(queue, items=(*fresh, replace(item, problem=""))), None


def _patchsets(groups: Iterable[tuple[Change, ...]]) -> list[tuple[tuple[str, str], ...]]:
    """Return, for each group, the keys and commits of its changes."""
    return [tuple((change.key, change.commit) for change in group) for group in groups]


def tidied(queue: Queue, items: list[Item], world: World) -> Queue:
    """Return the queue with these items, without those at the end that were there only because another item needed
    them, and without landed buildsets on which no item is based."""
    while items and not items[-1].live:
        items.pop()
    # The lists of what has landed would otherwise grow without limit.
    used = {item.buildset.ahead for item in items if item.buildset is not None}
    landed = tuple(id for id in queue.landed if id in used)
    needed = {key for item in items for change in item.changes for key in change.needs}
    keys = tuple(key for key in queue.landed_keys if key in needed)
    stale = unfollowed(queue, world)
    # In an empty queue no item is based on any head.
    landed_as = queue.landed_as if items else ()
    same = len(items) == len(queue.items) and all(a is b for a, b in zip(items, queue.items, strict=True))
    now = landed, keys, landed_as, stale
    if same and now == (queue.landed, queue.landed_keys, queue.landed_as, queue.unfollowed):
        return queue
    return replace(queue, items=tuple(items), landed=landed, landed_keys=keys, landed_as=landed_as, unfollowed=stale)


def unfollowed(queue: Queue, world: World) -> Mapping[str, Unfollowed]:
    content = world.layouts.content
    return {p: found for p, found in queue.unfollowed.items() if not found.branches.items() <= content(p).items()}


def reconfigured(state: State, world: World, actions: list[Action]) -> State:
    """Return the state under the new configuration; add the resulting actions to `actions`.

    Items whose project no longer has jobs in the pipeline leave, and items that now have another queue move there.
    Items not yet tested are frozen by the new layout, and windows get the new settings.
    """
    for queue in state.queues:
        for item in queue.items:
            out = [one for one in item.changes if not takes_part(one, world)]
            # Its push may already have happened; the answer decides what happens to it.
            if not item.live or _is_landing(item):
                continue
            if _apart(item, out, world) and not any(_closes_itself(one, world) for one in out):
                # An earlier round may have replaced the queue.
                current = next(q for q in state.queues if q.id == queue.id)
                state = with_queue(state, leave(current, item, "DEQUEUED", world, actions))
    if world.dependent or world.pipeline.manager == "serial":
        state = _moved(state, world, actions)
    for queue in state.queues if world.dependent else ():
        if (size := _resized(queue.window, world.pipeline.window)) != queue.window:
            state = with_queue(state, replace(queue, window=size))
    return state


def _is_landing(item: Item) -> bool:
    """Return whether the answer to the item's landing is awaited."""
    return item.buildset is not None and item.buildset.landing


def _resized(size: int, window: Window) -> int:
    """Return the size of a window under new settings: its current size, within the new bounds, or the configured size
    if the window never grows or shrinks."""
    moves = (window.increase_type, window.increase_factor, window.decrease_type, window.decrease_factor)
    # Zero means no window at all, and a factor of one never changes the size.
    if 0 in (size, window.size) or moves == ("exponential", 1, "exponential", 1):
        return window.size
    return max(window.floor, size if window.ceiling is None else min(size, window.ceiling))


def _apart(item: Item, out: Sequence[Change], world: World) -> bool:
    """Return whether the item must leave because the pipeline no longer has jobs for the changes `out`."""
    return bool(out) and (world.dependent or len(out) == len(item.changes))


def _closes_itself(change: Change, world: World) -> bool:
    """Return whether the change is closed for a reason of its own, which is reported instead."""
    own = world.change_states.get(change.key)
    return own is not None and not own.open and not own.landed and bool(own.reason)


# --- queues


def _moved(state: State, world: World, actions: list[Action]) -> State:
    """Return the state with each item in its current queue, behind the items that were already there, in their order.

    An item keeps its builds if the items ahead of it are the same; the next decision checks that.
    """
    names = {item.id: _names(item, world) for queue in state.queues if not queue.dynamic for item in queue.items}
    for queue in state.queues:
        for item in queue.items:
            if len(names.get(item.id, ())) > 1 and not _is_landing(item):
                gone = replace(item, problem=f"its changes have different queues now: {', '.join(names[item.id])}")
                current = next(q for q in state.queues if q.id == queue.id)
                state = with_queue(state, leave(current, gone, "FAILURE", world, actions, tested=False))
    lines = dict[str, list[tuple[Queue, list[Item]]]]()
    for queue in state.queues:
        if not (queue.dynamic or queue.items):
            lines.setdefault(queue.name, []).append((queue, []))
        for name in dict.fromkeys(names[item.id][0] for item in queue.items if item.id in names):
            own = [item for item in queue.items if names[item.id][0] == name]
            lines.setdefault(name, []).append((queue, own))
    made = {name: _joined(name, parts, world) for name, parts in lines.items()}
    if all(queue.dynamic or made.get(queue.name) is queue for queue in state.queues):
        return state
    existing = [queue if queue.dynamic else made.pop(queue.name, None) for queue in state.queues]
    queues = tuple(queue for queue in (*existing, *made.values()) if queue is not None)
    return _without_needs(replace(state, queues=queues), world)


def _names(item: Item, world: World) -> tuple[str, ...]:
    """Return the names of the queues that the item's changes have now."""
    return tuple(dict.fromkeys(queue_name(change, world) for change in (item.left or item.changes)))


def _joined(name: str, parts: list[tuple[Queue, list[Item]]], world: World) -> Queue:
    """Return one queue with the items of several queues; nothing overtakes an item that is landing."""
    parts = sorted(parts, key=lambda part: part[0].name != name)
    first, queues = parts[0][0], [queue for queue, _ in parts]
    items = [item for _, own in parts for item in own]
    # The sort is stable, so nothing else changes places.
    items.sort(key=lambda item: not _is_landing(item))
    if len(parts) == 1 and first.name == name and tuple(items) == first.items:
        return first
    unfollowed: dict[str, Unfollowed] = {}
    for project, found in (pair for queue in reversed(queues) for pair in queue.unfollowed.items()):
        known = unfollowed.get(project)
        unfollowed[project] = replace(found, branches={**(known.branches if known else {}), **found.branches})
    return replace(
        first,
        id=first.id if first.name == name else queue_id(name, world),
        name=name,
        items=tuple(items),
        landed=_together(queue.landed for queue in queues),
        landed_keys=_together(queue.landed_keys for queue in queues),
        landed_as=_together(queue.landed_as for queue in queues),
        unfollowed=unfollowed,
    )


def _together(of: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for some in of for one in some))


def _without_needs(state: State, world: World) -> State:
    """Return the state that defers the changes whose dependency now has another queue: they leave, and are enqueued
    again once it has landed."""
    where = {key: queue.id for queue, item in state.items() if not queue.dynamic for key in item.keys}
    for queue, item in list(state.items()):
        for change in item.left if not queue.dynamic else ():
            if any(where.get(key, queue.id) != queue.id for key in change.needs):
                state = deferring(state, Deferred(change.key, change.commit, item.event))
    return state


def remains(pipeline: Pipeline) -> Remains:
    """Return the settings that are needed after a pipeline is removed: its reporters and requirements, which are then
    stored only in its state."""
    same = {name: getattr(pipeline, name) for name in _SAME}
    names = (name for kind in ENDS for name in pipeline.reporters.get(kind, ()))
    reports = {name: how for kind in ENDS for name, how in pipeline.reports.get(kind, {}).items()}
    return Remains(**same, reporters=tuple(dict.fromkeys(names)), reports=reports)


def as_it_was(name: str, settings: Remains | None) -> Pipeline:
    """Return a pipeline that enqueues nothing, and reports the ends of its items wherever it reported them before."""
    if settings is None:
        return Pipeline(name, "independent")
    rest = asdict(settings) | {
        "reporters": dict.fromkeys(REPORTED, settings.reporters),
        "reports": dict.fromkeys(REPORTED, settings.reports),
    }
    return Pipeline(name, **rest)


def remembered(state: State, pipeline: Pipeline) -> State:
    """Return the state that stores the settings needed if its pipeline is removed, while it has queues."""
    settings = remains(pipeline) if state.queues else None
    return state if settings == state.remains else replace(state, remains=settings)


def dissolved(state: State, why: str, world: World, actions: list[Action]) -> State:
    """Return the state without the items that can leave now; `why` is the reported reason. An item that is landing
    stays until the landing is answered, and if a part of a circle has landed, the rest still lands."""
    for queue in state.queues:
        for item in queue.items:
            # The next turn removes more, because the records of all of them would not fit into one commit.
            if not unfinished(actions):
                current = next(one for one in state.queues if one.id == queue.id)
                state = with_queue(state, _dissolved(current, item, why, world, actions))
    for action in list(actions):
        if isinstance(action, Record) and action.result == "SUCCESS":
            for change in action.item.circle:
                actions.extend(heard(EventKind.PROJECT_MERGED, action.item, change, world))
    return replace(state, queues=tuple(queue for queue in state.queues if queue.items))


def _dissolved(queue: Queue, item: Item, why: str, world: World, actions: list[Action]) -> Queue:
    if _is_landing(item):
        return queue
    closing = closing_of(world.closings, world.pipeline.name, queue.name)
    complete = item.buildset is not None and item.buildset.complete
    # With only a part of the circle landed, the branches do not work together until the rest has landed, too.
    if item.landed and complete and closing is None and result_of(item) == "SUCCESS":
        return with_item(queue, ask_to_land(item, queue, world, actions))
    result = "FAILURE" if item.landed else "DEQUEUED"
    return leave(queue, replace(item, problem=why), result, world, actions, report=not item.epilogue, tested=False)
