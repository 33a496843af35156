"""Pipelines that messages start: what they say of a queue makes sense only once, and not in a circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.config.files.document import Table
from headgate.config.files.source import Wrong
from headgate.config.model import TriggerFilter


def started_once(body: Table, triggers: Sequence[TriggerFilter]) -> None:
    """Raise Wrong for a queue, or a type of objects, that is named twice: how far a pipeline is there is one thing."""
    seen = set[tuple[str, str]]()
    for trigger in triggers:
        if "project" not in trigger.more:
            continue
        queue = trigger.more.get("queue")
        what = f"the queue {queue}" if queue is not None else f"the type {trigger.more.get('type', 'runm.machine')}"
        if (trigger.connection, what) in seen:
            text = f"{what} of {trigger.connection} is named by two triggers; use a pipeline for each"
            raise Wrong(text, body.at("trigger"))
        seen.add((trigger.connection, what))


def not_by_itself(
    body: Table, triggers: Sequence[TriggerFilter], reports: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
) -> None:
    """Raise Wrong for a pipeline whose reports go to a queue that starts it."""
    started = {(trigger.connection, trigger.more.get("queue")) for trigger in triggers}
    for kind, told in reports.items():
        for connection, hows in told.items():
            for how in hows:
                if (queue := how.get("queue")) is not None and (connection, queue) in started:
                    text = f"{kind} is reported to the queue {queue} of {connection}, which starts this pipeline again"
                    raise Wrong(text, body.at(kind))
