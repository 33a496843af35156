"""Decide what a queue does next: speculative gating on one screen.

Every item is tested on the nearest item ahead that is not failing, and on everything beneath that.  When that changes,
the item starts again.  The head lands when all its jobs passed; a failing head is rejected.
"""

from __future__ import annotations

from headgate.gate.builds.advance import Permits
from headgate.gate.builds.report import result_of
from headgate.gate.builds.start import Base
from headgate.gate.items.landings import ask_to_land, held_back, lands, noted, notify_of_wait
from headgate.gate.items.leave import active, dismiss, leave
from headgate.gate.items.renewal import may_leave, renewed, tidied, unfollowed, with_current_needs
from headgate.gate.items.trial import Idle, WindowRoom, advance_item, never_idle, unfinished
from headgate.gate.rules.readiness import Obstacle, unready
from headgate.gate.state.actions import Action, Faulty
from headgate.gate.state.model import Item, Queue, State, with_queue
from headgate.gate.state.world import World, closing_of


def decide_queue(
    queue: Queue, permits: Permits, room: WindowRoom, world: World, actions: list[Action], examined: list[str]
) -> Queue:
    """Return the queue after everything that can be done in it now. Append the actions for that to `actions`, and the
    id of each item to `examined` before the item is examined. If an item has to leave although as many items have left
    as one turn may remove, the rest of the queue stays unchanged, and the next turn continues there."""
    queue, unmet = renewed(queue, world, actions)
    base, remaining = Base(keys=set(queue.landed_keys), unfollowed=unfollowed(queue, world)), list[Item]()
    items, admitted = queue.items, room.admits(queue)
    closing = closing_of(world.closings, world.pipeline.name, queue.name)
    for position, item in enumerate(items):  # head to tail
        examined.append(item.id)
        obstacle = None
        if may_leave(item):
            item = with_current_needs(item, world)
            obstacle = unmet or unready(item, base.keys, base.failing, world)
        if obstacle is not None and obstacle.obstacle is not Obstacle.WAITING:
            if unfinished(actions):
                return tidied(queue, [*remaining, item, *items[position + 1 :]], world)
            queue = dismiss(queue, item, obstacle, world, actions)
            continue
        # Positions are those among the remaining items, so an item that leaves makes room in the same turn.
        in_window = admitted and active(queue, len(remaining))
        # Outside the window an item only waits; those behind that need it wait with it.
        if not in_window and item.buildset is None and not item.carried:
            base.keys.update(item.keys)
            remaining.append(item)
            continue
        item = advance_item(item, obstacle, queue.landed, base, in_window, permits, world, actions)
        if _finished(item, base):
            item = held_back(item, world)
            if lands(item, world):
                # In a closed queue, the item keeps its place and its result; `notify_of_wait` reports that on the
                # change.
                item = item if closing else ask_to_land(item, queue, world, actions)
            elif unfinished(actions):
                return tidied(queue, [*remaining, item, *items[position + 1 :]], world)
            else:
                queue = leave(queue, item, result_of(item), world, actions, report=not item.epilogue)
                continue  # it left, so the items behind are based on what was ahead of it
        item = notify_of_wait(item, closing, world, actions)
        base.extend(item, permits.twin(item) or item)
        remaining.append(item)
    return tidied(queue, remaining, world)


def _finished(item: Item, base: Base) -> bool:
    """Return whether the item is at the head, needs no more results, and is not landing."""
    # Only the first live item may land or finally fail. The result of any other may still change with its base.
    if base.live or not item.live:
        return False
    if item.problem:
        return True
    return item.buildset is not None and item.buildset.complete and not item.buildset.landing


def settle(state: State, world: World, actions: list[Action], idle: Idle = never_idle) -> State:
    """Return the state once each queue is decided, and append what the queues need to `actions`. Settling twice has the
    same effect as settling once, unless `unfinished`. `idle` returns whether nothing can be done in a queue. Raise
    Faulty."""
    permits, room = Permits.of(state, world, actions), WindowRoom.of(state)
    for queue in state.queues:
        if idle(queue, room):
            continue
        examined = list[str]()
        try:
            settled = decide_queue(queue, permits, room, world, actions, examined)
        # The scheduler quarantines the item and decides again, so that one item cannot stop the pipeline.
        except Exception as error:
            raise Faulty(examined[-1] if examined else "") from error
        if settled is not queue:
            state = with_queue(state, settled)
    return noted(state, actions, world)
