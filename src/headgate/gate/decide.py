"""Decide what a queue does next: speculative gating in one screen.

Every item is tested on the nearest item ahead that is not failing, and on everything beneath that.  When that changes,
the item starts again.  The head lands when all its jobs passed; a failing head is rejected.
"""

from __future__ import annotations

from headgate.gate.actions import Action
from headgate.gate.advance import Permits
from headgate.gate.closures import closing_of
from headgate.gate.landings import ask_to_land, held_back, lands, told_to_wait
from headgate.gate.leave import active, dismiss, leave
from headgate.gate.model import Item, Queue
from headgate.gate.readiness import Obstacle, unready
from headgate.gate.renewal import as_known, asked_again, renewed, tidied, unfollowed
from headgate.gate.report import result_of
from headgate.gate.room import WindowRoom, unfinished
from headgate.gate.start import Base
from headgate.gate.trial import worked_on
from headgate.gate.world import World


def decide_queue(
    queue: Queue, permits: Permits, room: WindowRoom, world: World, asked: list[Action], looked_at: list[str]
) -> Queue:
    """Return the queue after everything that can be done in it now. Add the actions for that to `asked`, and the ids of
    items to `looked_at` as they are examined."""
    queue, circular = renewed(queue, world, asked)
    base, kept = Base(keys=set(queue.landed_keys), unfollowed=unfollowed(queue, world)), list[Item]()
    items, admitted = queue.items, room.admits(queue)
    shut = closing_of(world.closings, world.pipeline.name, queue.name)
    for position, item in enumerate(items):  # head to tail
        looked_at.append(item.id)
        obstacle = None
        if asked_again(item):
            item = as_known(item, world)
            obstacle = circular or unready(item, base.keys, base.failing, world)
        if obstacle is not None and obstacle.obstacle is not Obstacle.WAITING:
            if unfinished(asked):
                return tidied(queue, [*kept, item, *items[position + 1 :]], world)
            queue = dismiss(queue, item, obstacle, world, asked)
            continue
        works = admitted and active(queue, len(kept))
        if not works and item.buildset is None and not item.carried:
            base.keys.update(item.keys)  # it waits for its turn, as do those behind that need it
            kept.append(item)
            continue
        item = worked_on(item, obstacle, queue.landed, base, works, permits, world, asked)
        if _finished(item, base):
            item = held_back(item, world)
            if lands(item, world):
                item = item if shut else ask_to_land(item, queue, world, asked)
            elif unfinished(asked):
                return tidied(queue, [*kept, item, *items[position + 1 :]], world)
            else:
                queue = leave(queue, item, result_of(item), world, asked, told=not item.epilogue)
                continue  # gone: those behind rest on what was ahead of it
        item = told_to_wait(item, shut, world, asked)
        _believe(item, base, permits)
        kept.append(item)
    return tidied(queue, kept, world)


def _finished(item: Item, base: Base) -> bool:
    """Return whether the item is at the head, needs no more results, and is not landing."""
    if base.live or not item.live:
        return False
    if item.trouble:
        return True
    return item.buildset is not None and item.buildset.complete and not item.buildset.landing


def _believe(item: Item, base: Base, permits: Permits) -> None:
    """Add the item to the base of those behind: they bet that it lands, unless it is failing."""
    base.keys.update(item.keys)
    base.live += item.live
    if item.failing:
        base.failing.update(item.keys)
        return
    if item.change.is_change:
        base.chain.append(item)
    base.items.append(permits.twin(item) or item)
    if item.live and item.buildset is not None:
        base.ahead = item.buildset.id
        base.proposed = item.buildset.proposed
