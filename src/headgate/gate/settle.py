"""Decide each queue by itself, and skip those that cannot have changed."""

from __future__ import annotations

from headgate.gate.actions import Action, Faulty
from headgate.gate.advance import Permits
from headgate.gate.decide import decide_queue
from headgate.gate.model import State, with_queue
from headgate.gate.partial import noted
from headgate.gate.room import WindowRoom, alone_and_begun, waits_for_room
from headgate.gate.world import World


def settle(state: State, world: World, actions: list[Action], settled_before: State | None = None) -> State:
    """Return the state once each queue is decided, and append what the queues need to `actions`. To settle twice has
    the same effect as once, unless `unfinished`. Raise Faulty.

    `settled_before` is the state that an earlier call returned, if the facts of the world are the same: a change that
    is tested alone and has not changed since then is not examined again.
    """
    permits, room = Permits.of(state, world), WindowRoom.of(state)
    before = {} if settled_before is None else {queue.id: queue for queue in settled_before.queues}
    for queue in state.queues:
        # Values are frozen, so the same object has the same content.
        if before.get(queue.id) is queue and (alone_and_begun(queue) or waits_for_room(queue, room)):
            continue
        examined = list[str]()
        try:
            settled = decide_queue(queue, permits, room, world, actions, examined)
        # The scheduler sets the item aside and decides again, so that one item cannot stop the pipeline.
        except Exception as error:
            raise Faulty(examined[-1] if examined else "") from error
        if settled is not queue:
            state = with_queue(state, settled)
    return noted(state, actions, world)
