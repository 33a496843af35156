"""Items of occasions: messages of queues, and changes of objects, that start a pipeline at the head of a branch."""

from __future__ import annotations

from headgate.base.ids import derived
from headgate.gate.actions import Action, Record
from headgate.gate.change import Occasion, TriggerEvent
from headgate.gate.enqueue import enqueue
from headgate.gate.model import Item, State
from headgate.gate.world import World


def occasioned(state: State, event: TriggerEvent, occasion: Occasion, world: World, asked: list[Action]) -> State:
    """Return the state with an item for it.  Of one that nothing can be started by, the end is recorded at once: who
    waits for it learns why."""
    change = event.change
    after = state if occasion.trouble else enqueue(state, change, event.id, world, asked)
    if after is not state or state.find(change.key) is not None:
        return after
    nothing = f"nothing is done about it: {change.project} has no jobs in {world.pipeline.name} for {change.branch}"
    why = occasion.trouble or nothing
    id = derived("item", world.tenant, world.pipeline.name, change.key, event.id)
    item = Item(id=id, change=change, event=event.id, enqueued_ms=world.now_ms, trouble=why)
    asked.append(Record(item, "FAILURE", why, tested=False))
    return state
