"""Which zone's executors are to run a job: those whose machines have its labels."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.config.model import FrozenJob
from headgate.map.records import ComponentRecord
from headgate.recipes.codec import readable
from headgate.services.context import Context


def executors(context: Context) -> list[ComponentRecord]:
    place = context.map.components.executor
    found = (readable(entry, ComponentRecord) for entry in context.mirror.under(place.path))
    return [record for record in found if record is not None]


def zone_of(job: FrozenJob, executors: Iterable[ComponentRecord]) -> str:
    """Empty for none: where no executor of a zone has the labels, or one outside of all zones has them, too."""
    wanted = {node.label for node in job.nodeset.nodes}
    if not wanted:
        return ""
    able = [record.data for record in executors if wanted <= set(record.data.get("labels", ()))]
    if any(data.get("unzoned", True) for data in able):
        return ""
    return min((str(data.get("zone", "")) for data in able), default="")
