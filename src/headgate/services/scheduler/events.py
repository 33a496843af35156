"""What a pipeline takes up, with what of it lies apart."""

from __future__ import annotations

import logging
from typing import Any

from msgspec.structs import replace

from headgate.gate.change import TriggerEvent
from headgate.gate.work import Answer, BuildEnded, BuildOutcome, BuildPaused
from headgate.map.records import ForPipeline
from headgate.recipes import blob
from headgate.recipes.codec import decode
from headgate.recipes.stream import Waiting
from headgate.services.context import Context

log = logging.getLogger("headgate.pipeline")

Event = TriggerEvent | Answer | ForPipeline


async def whole(context: Context, waiting: Waiting[Event]) -> Waiting[Event]:
    """Return it with what lies apart from it, which goes when it goes."""
    event = waiting.event
    if not isinstance(event, BuildEnded | BuildPaused) or not event.apart:
        return waiting
    try:
        found = await blob.taken(context.store, event.apart)
        data = decode(found[0], dict[str, Any]) if found is not None else {}
    except ValueError as damaged:
        log.error("%s: %s", waiting.entry, damaged)
        found = None
    if found is None:
        return replace(waiting, event=_lost(event))
    besides = tuple(found[1])
    if isinstance(event, BuildEnded):
        outcome = replace(event.outcome, data=data)
        return replace(waiting, event=replace(event, outcome=outcome), besides=besides)
    return replace(waiting, event=replace(event, data=data), besides=besides)


def _lost(event: BuildEnded | BuildPaused) -> BuildEnded:
    """What a build returned is gone: it is tried again."""
    build = event.outcome.build if isinstance(event, BuildEnded) else event.build
    outcome = BuildOutcome(build=build, error="what it returned was lost")
    return BuildEnded(event.buildset, event.job, outcome)
