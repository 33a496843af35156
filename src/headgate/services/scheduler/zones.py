"""Which zone's executors are to run a job: those whose machines have its labels."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.config.model import FrozenJob
from headgate.map.records import ComponentRecord
from headgate.services.context import Context


def executors(context: Context) -> list[ComponentRecord]:
    return list(context.members(context.map.components.executor.path).values())


def zone_of(job: FrozenJob, executors: Iterable[ComponentRecord]) -> str:
    """Empty for none: where no executor of a zone has the labels, or one outside of all zones has them, too."""
    wanted = {node.label for node in job.nodeset.nodes}
    if not wanted:
        return ""
    able = [record.data for record in executors if wanted <= set(record.data.get("labels", ()))]
    if any(data.get("unzoned", True) for data in able):
        return ""
    return min((str(data.get("zone", "")) for data in able), default="")
