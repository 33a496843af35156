"""Tell which queue a change belongs to."""

from __future__ import annotations

from headgate.base.ids import derived
from headgate.gate.change import Change
from headgate.gate.model import Queue, State
from headgate.gate.world import World


def queue_name(change: Change, world: World) -> str:
    """Return the name of the change's queue."""
    return world.layouts.landed.queue_of(change.project, change.branch, world.pipeline.name)


def queue_id(name: str, world: World) -> str:
    """Return the id of the queue with this name."""
    return derived("queue", world.tenant, world.pipeline.name, name)


def queue_in(state: State, name: str, world: World, window: int, *, dynamic: bool = False) -> Queue:
    """Return the queue with this name, a new one with this window when there is none."""
    found = (queue for queue in state.queues if (queue.name, queue.dynamic) == (name, dynamic))
    return next(found, Queue(queue_id(name, world), name, window=window, dynamic=dynamic))
