"""Which executors are to run a job: those of the zone whose machines have its labels, whether or not one is there now,
and of these those that run containers, if its programs want an image."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.config.model import FrozenJob
from headgate.map.records import ComponentRecord, ZoneLabels
from headgate.recipes.codec import readable
from headgate.recipes.requests import Open
from headgate.services.context import Context

IMAGE = "image"
"""In what is said of a request for a build: the image that the job names for its programs."""


def can_run(record: ComponentRecord, found: Open) -> bool:
    """Return whether an executor has what a build needs besides machines; one that is cancelled needs nothing."""
    return record.data.containers or IMAGE not in found.request.meta or found.request.wanted == "cancel"


def executors(context: Context) -> list[ComponentRecord]:
    return list(context.members(context.map.components.executor.path).values())


def zone_of(job: FrozenJob, context: Context) -> str:
    """Empty for none: where no executor of a zone has or had the labels, or one outside of all zones has them, too."""
    wanted = {node.label for node in job.nodeset.nodes}
    if not wanted:
        return ""
    able = [record.data for record in executors(context) if wanted <= set(record.data.labels)]
    if any(data.unzoned for data in able):
        return ""
    if able:
        return min(data.zone for data in able)
    return min((zone for zone, labels in _remembered(context) if wanted <= labels), default="")


def _remembered(context: Context) -> Iterator[tuple[str, set[str]]]:
    """Zone -> labels, also of those whose executors are all away."""
    for zone in context.zone_names():
        entry = context.mirror.get(context.map.executor.zones(zone).labels.path)
        known = readable(entry, ZoneLabels) if entry is not None else None
        if known is not None:
            yield zone, set(known.labels)
