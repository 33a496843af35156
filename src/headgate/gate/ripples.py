"""Triggers of the driver `zuul`: what happens to one change and enqueues others."""

from __future__ import annotations

from headgate.base.ids import derived
from headgate.gate.actions import Action
from headgate.gate.change import Change, EventKind, TriggerEvent
from headgate.gate.enqueue import enqueue
from headgate.gate.model import State
from headgate.gate.needs import needed_by, needs
from headgate.gate.triggers import triggers
from headgate.gate.world import World

ENQUEUED_MAX = 500
"""Changes that one event has enqueued: the first, by their keys."""


def rippled(state: State, event: TriggerEvent, world: World, asked: list[Action]) -> State:
    """Enqueue the open changes that the event concerns if it triggers the pipeline."""
    for change in _concerned(event, world) if triggers(world.pipeline, event) else ():
        state = enqueue(state, change, derived(event.id, change.key), world, asked)
    return state


def _concerned(event: TriggerEvent, world: World) -> list[Change]:
    own = event.change
    if event.kind is EventKind.PARENT_ENQUEUED:
        needed = needs(own, world)
        ours = {
            change.key for change in (*needed.changes, *needed.circle)
        }  # they would have each other enqueued for ever
        found = [change for change in needed_by(own.key, world) if change.key not in ours]
    else:
        every = (s.change for s in world.standings.values() if s.open and s.change.project == own.project)
        found = [change for change in every if change.key != own.key]
    return sorted(found, key=lambda change: change.key)[:ENQUEUED_MAX]
