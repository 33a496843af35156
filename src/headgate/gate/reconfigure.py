"""Apply another configuration to a pipeline: items that no longer take part leave, items with another queue move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from headgate.config.model import Window
from headgate.gate.actions import Action
from headgate.gate.change import Change
from headgate.gate.enqueue import deferring
from headgate.gate.leave import leave
from headgate.gate.model import Item, Queue, State, Unfollowed, with_queue
from headgate.gate.outside import Deferred
from headgate.gate.queues import queue_id, queue_name
from headgate.gate.refs import takes_part
from headgate.gate.world import World


def reconfigured(state: State, world: World, actions: list[Action]) -> State:
    """Return the state under the new configuration; add the actions that follow to `actions`.

    Items whose project no longer takes part leave, and those that have another queue now move there.  Items not yet
    tested are frozen by the new layout; windows follow it.
    """
    for queue in state.queues:
        for item in queue.items:
            out = [one for one in item.changes if not takes_part(one, world)]
            # Its push may have happened already; the answer decides what becomes of it.
            if not item.live or _lands(item):
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


def _lands(item: Item) -> bool:
    """Return whether the answer to the item's landing is awaited."""
    return item.buildset is not None and item.buildset.landing


def _resized(size: int, window: Window) -> int:
    """Return the size of a window under new settings: the size it has grown or shrunk to, within the new bounds; the
    given size if it never moves."""
    moves = (window.increase_type, window.increase_factor, window.decrease_type, window.decrease_factor)
    # Zero means no window at all, and growing or shrinking by a factor of one leaves the size as it is.
    if 0 in (size, window.size) or moves == ("exponential", 1, "exponential", 1):
        return window.size
    return max(window.floor, size if window.ceiling is None else min(size, window.ceiling))


def _apart(item: Item, out: Sequence[Change], world: World) -> bool:
    """Return whether the item is to leave the pipeline because the changes `out` no longer take part."""
    return bool(out) and (world.dependent or len(out) == len(item.changes))


def _closes_itself(change: Change, world: World) -> bool:
    """Return whether the change leaves for another reason, which is the one to report."""
    own = world.change_states.get(change.key)
    return own is not None and not own.open and not own.landed and bool(own.reason)


# --- queues


def _moved(state: State, world: World, actions: list[Action]) -> State:
    """Return the state with each item in the queue that it has now, behind the items that were there, in their order.

    An item keeps its builds as long as what is ahead of it stays the same, which the next decision checks.
    """
    names = {item.id: _names(item, world) for queue in state.queues if not queue.dynamic for item in queue.items}
    for queue in state.queues:
        for item in queue.items:
            if len(names.get(item.id, ())) > 1 and not _lands(item):
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
    """Return one queue with the items that came from several; nothing overtakes an item that is landing."""
    parts = sorted(parts, key=lambda part: part[0].name != name)
    first, queues = parts[0][0], [queue for queue, _ in parts]
    items = [item for _, own in parts for item in own]
    # The sort is stable, so nothing else changes places.
    items.sort(key=lambda item: not _lands(item))
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
    """Return the state that remembers the changes whose dependency has another queue now: they leave, and come in again
    once it has landed."""
    where = {key: queue.id for queue, item in state.items() if not queue.dynamic for key in item.keys}
    for queue, item in list(state.items()):
        for change in item.left if not queue.dynamic else ():
            if any(where.get(key, queue.id) != queue.id for key in change.needs):
                state = deferring(state, Deferred(change.key, change.commit, item.event))
    return state
