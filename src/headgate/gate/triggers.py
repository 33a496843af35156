"""Decide which events trigger a pipeline, and which events pipelines send each other."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.config.files.check import as_list
from headgate.config.forges.facts import PipelineCheck
from headgate.config.model import Pipeline, TriggerFilter
from headgate.gate.actions import Action, Record, Vouch
from headgate.gate.change import Change, ChangeState, EventKind, Tell, TriggerEvent
from headgate.gate.checks import concerns, word_of
from headgate.gate.model import Item
from headgate.gate.requirements import happened
from headgate.gate.world import World

ZUUL = "zuul"
"""Name of the connection for events of pipelines."""


def triggers(pipeline: Pipeline, event: TriggerEvent, known: ChangeState | None = None) -> bool:
    """Return whether the event triggers the pipeline. `known` is the state of its change, on which triggers may have
    conditions; with None these are not checked yet."""
    return any(_matches(f, pipeline, event, known) for f in pipeline.triggers)


def _matches(filter: TriggerFilter, pipeline: Pipeline, event: TriggerEvent, known: ChangeState | None) -> bool:
    if event.kind.ripples:
        named = as_list(filter.more.get("pipeline")) if event.kind is EventKind.PARENT_ENQUEUED else []
        return filter.connection == ZUUL and event.kind in filter.events and (not named or event.pipeline in named)
    if event.kind.is_of_image:
        return filter.connection == ZUUL and event.kind in filter.events
    return filter.connection == event.change.connection and happened(filter, pipeline, event, known)


def heard(kind: EventKind, item: Item, change: Change, world: World) -> Iterator[Action]:
    """Send an event for a change of the item to the pipelines that it triggers."""
    if change.is_change:
        id = item.named(change, kind, world.pipeline.name)
        event = TriggerEvent(kind, change, id, world.now_ms, pipeline=world.pipeline.name)
        yield from (Tell(name, event) for name, other in world.beside.pipelines.items() if triggers(other, event))


def vouched(ended: Record, world: World) -> Iterator[Action]:
    """Record the pipeline's result for the changes of an item if another pipeline requires it, and have that one
    examine them again: it may have waited for this result."""
    name, result, item = world.pipeline.name, word_of(ended.result), ended.item
    landed = ended.result == "SUCCESS" and item.buildset is not None and item.buildset.landing
    # What has landed needs no word, and the results of a disabled pipeline count for nobody.
    if not result or not item.live or item.epilogue or landed or world.disabled:
        return
    asking = [other for other in world.beside.pipelines.values() if concerns(other, name)]
    for change in item.circle if asking else ():
        change_state = world.change_states.get(change.key)
        if change.is_change and change_state is not None and change_state.change.commit == change.commit:
            yield Vouch(change, PipelineCheck(world.tenant, name, change.commit, result))
            for other in asking:
                id = item.named(change, "vouched", name, other.name)
                again = (TriggerEvent(kind, change, id, world.now_ms) for kind in _kinds(change_state))
                yield from (Tell(other.name, event) for event in again if triggers(other, event, change_state))


def _kinds(change_state: ChangeState) -> list[EventKind]:
    """Return the kinds of events that pipelines may have received for an open change; none if it is not open."""
    approved = change_state.is_approved or any(
        word.commit == change_state.change.commit for word in change_state.approvals
    )
    kinds = [EventKind.PROPOSED, *([EventKind.APPROVED] if approved else [])]
    return kinds if change_state.open else []
