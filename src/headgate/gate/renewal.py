"""Bring a queue up to date: its changes with what they need now, and without what nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from headgate.gate.actions import Action
from headgate.gate.carry import reset
from headgate.gate.change import Change
from headgate.gate.enqueue import needed_item
from headgate.gate.model import Item, Queue, Unfollowed
from headgate.gate.needs import needs
from headgate.gate.readiness import Obstacle, Unready
from headgate.gate.world import World


def may_leave(item: Item) -> bool:
    """Return whether the item may still leave: it is live, runs no epilogue, and awaits no answer to a landing."""
    return item.live and not item.epilogue and not (item.buildset is not None and item.buildset.landing)


def with_current_needs(item: Item, world: World) -> Item:
    """Return the item with its patchsets' needs as they are known now: a change they need may have been proposed, or a
    branch made."""
    known = tuple(_change_with_current_needs(change, world) for change in item.changes)
    return item if known == item.changes else replace(item, change=known[0], others=known[1:])


def _change_with_current_needs(change: Change, world: World) -> Change:
    own = world.change_states.get(change.key)
    if own is None or not own.open or own.change.commit != change.commit:
        return change
    now, then = ((one.needs, one.stale, one.unresolved, one.ignored) for one in (own.change, change))
    return change if now == then else own.change


def renewed(queue: Queue, world: World, actions: list[Action]) -> tuple[Queue, Unready | None]:
    """Return the queue of a change tested alone, behind what it needs now; and what prevents that, or None."""
    if not queue.dynamic or world.dependent or world.pipeline.ignore_dependencies or not queue.items:
        return queue, None
    *before, item = queue.items
    if not may_leave(item) or not item.change.is_change:
        return queue, None
    item = with_current_needs(item, world)
    if not (before or any(change.needs for change in item.changes)):
        return queue, None
    wanted = needs(item.change, world)
    left = [one for one in before if not all(_has_landed(change, world) for change in one.changes)]
    # What has landed is on the branch, so an item that was tested on it need not start again.
    if _patchsets(wanted.ahead) == _patchsets(one.changes for one in left):
        return queue, None
    if wanted.problems:
        return queue, Unready(Obstacle.LACKING, "; ".join(wanted.problems))
    item = reset(item, world, actions)
    had = dict(zip(_patchsets(one.changes for one in before), before, strict=True))
    fresh = (
        had.get(names) or needed_item(item, group, world)
        for names, group in zip(_patchsets(wanted.ahead), wanted.ahead, strict=True)
    )
    return replace(queue, items=(*fresh, replace(item, problem=""))), None


def _patchsets(groups: Iterable[tuple[Change, ...]]) -> list[tuple[tuple[str, str], ...]]:
    """Return the groups as the keys and commits of the changes in them."""
    return [tuple((change.key, change.commit) for change in group) for group in groups]


def _has_landed(change: Change, world: World) -> bool:
    known = world.change_states.get(change.key)
    return known is not None and known.landed


def tidied(queue: Queue, items: list[Item], world: World) -> Queue:
    """Return the queue with these items, except those at the end that were there only for another item's sake, and
    without landed buildsets on which nothing rests."""
    while items and not items[-1].live:
        items.pop()
    # Lists of what landed would otherwise grow for ever.
    used = {item.buildset.ahead for item in items if item.buildset is not None}
    landed = tuple(id for id in queue.landed if id in used)
    needed = {key for item in items for change in item.changes for key in change.needs}
    keys = tuple(key for key in queue.landed_keys if key in needed)
    stale = unfollowed(queue, world)
    # In an empty queue nothing rests on any head.
    landed_as = queue.landed_as if items else ()
    same = len(items) == len(queue.items) and all(a is b for a, b in zip(items, queue.items, strict=True))
    now = landed, keys, landed_as, stale
    if same and now == (queue.landed, queue.landed_keys, queue.landed_as, queue.unfollowed):
        return queue
    return replace(queue, items=tuple(items), landed=landed, landed_keys=keys, landed_as=landed_as, unfollowed=stale)


def unfollowed(queue: Queue, world: World) -> Mapping[str, Unfollowed]:
    content = world.layouts.content
    return {p: found for p, found in queue.unfollowed.items() if not found.branches.items() <= content(p).items()}
