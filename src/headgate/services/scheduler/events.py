"""Read the events of a pipeline, including their separately stored parts."""

from __future__ import annotations

import logging
from typing import Any

from msgspec.structs import replace

from headgate.gate.state.change import TriggerEvent
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import Answer, BuildEnded, BuildOutcome, BuildPaused, MergeAnswer
from headgate.map.records import ForPipeline
from headgate.recipes import blob
from headgate.recipes.codec import decode
from headgate.recipes.stream import Unread
from headgate.services.context import Context

log = logging.getLogger("headgate.pipeline")

Event = TriggerEvent | Answer | ForPipeline


Apart = BuildEnded | BuildPaused | MergeAnswer
"""Events whose large data may be stored separately."""


async def complete(context: Context, waiting: Unread[Event]) -> Unread[Event]:
    """Return the event with its separately stored part, which is deleted together with the event."""
    event = waiting.event
    if not isinstance(event, Apart) or not event.apart:
        return waiting
    try:
        found = await blob.taken(context.store, event.apart)
        # The parts are deleted only with the event, because another scheduler that takes over would need them.
        if found is not None:
            return replace(waiting, event=_with(event, found[0]), besides=tuple(found[1]))
    except ValueError as damaged:
        log.error("%s: %s", waiting.entry, damaged)
    # The event is not dropped, because the item would then wait forever for its build or its merge.
    return replace(waiting, event=_lost(event))


def _with(event: Apart, plain: bytes) -> Apart:
    """Return the event with its separately stored part. Raise ValueError."""
    match event:
        case MergeAnswer():
            return decode(plain, MergeAnswer)
        case BuildEnded():
            data, secret = _returned(event, plain)
            return replace(event, outcome=replace(event.outcome, data=data, secret=secret))
        case BuildPaused():
            data, secret = _returned(event, plain)
            return replace(event, data=data, secret=secret)


def _returned(event: BuildEnded | BuildPaused, plain: bytes) -> tuple[dict[str, Any], Sealed | None]:
    """Decode the returned data and secret data. Raise ValueError."""
    if event.both:
        return decode(plain, tuple[dict[str, Any], Sealed])
    return decode(plain, dict[str, Any]), None


def _lost(event: Apart) -> BuildEnded | MergeAnswer:
    """Return a substitute for an event that lost a part: a build is retried, and a merge fails with an error."""
    if isinstance(event, MergeAnswer):
        return MergeAnswer(event.buildset, ok=False, error="the merger's response was lost; enqueue the change again")
    build = event.outcome.build if isinstance(event, BuildEnded) else event.build
    outcome = BuildOutcome(build=build, error="the data that it returned was lost")
    return BuildEnded(event.buildset, event.job, outcome)
