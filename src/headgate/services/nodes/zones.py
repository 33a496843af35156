"""Choose the executors that are to run a job: those of the zone whose machines have its labels, whether or not one is
there now, and of these the ones that run containers if its programs want an image."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from headgate.config.machines import FlatProvider
from headgate.config.model import FrozenJob
from headgate.map.records import ComponentFacts, ComponentRecord, ZoneLabels
from headgate.recipes.codec import readable
from headgate.recipes.requestforms import Open
from headgate.services.context import Context
from headgate.services.nodes.machines.demand import zone_of_label
from headgate.services.nodes.machines.survey import providers

IMAGE = "image"
"""Key, in the description of a build request, of the image that the job names for its programs."""


def can_run(record: ComponentRecord, found: Open) -> bool:
    """Return whether an executor has what a build needs besides machines; a cancelled build needs nothing."""
    return record.data.containers or IMAGE not in found.request.meta or found.request.wanted == "cancel"


def executors(context: Context) -> list[ComponentRecord]:
    return list(context.members(context.map.components.executor.path).values())


def zone_of(job: FrozenJob, context: Context, tenant: str) -> str:
    """Return the zone whose executors run the job. It is empty if no executor of a zone has or had the labels, or if an
    executor outside all zones has them, too. Labels of providers determine the zone themselves.
    """
    wanted = {node.label for node in job.nodeset.nodes}
    if not wanted:
        return ""
    zones = _zones_of(wanted, providers(context.map, context.mirror).get(tenant, []))
    if zones is not None:
        return _best(zones, context)
    able = [record.data for record in executors(context) if wanted <= set(record.data.labels)]
    if any(data.unzoned for data in able):
        return ""
    if able:
        # The smallest name, so that every process chooses the same zone.
        return min(data.zone for data in able)
    # Nobody there has the labels now: a zone that had them keeps its builds waiting for its executors.
    return min((zone for zone, labels in _remembered(context) if wanted <= labels), default="")


def _zones_of(wanted: Collection[str], known: Sequence[FlatProvider]) -> set[str] | None:
    """Return the zones from which all of the labels are reached; None if no provider has them."""
    zones = [{zone_of_label(one, label) for one in known if one.label(label) is not None} for label in wanted]
    if not any(zones):
        return None
    every = {zone for of in zones for zone in of} | {""}
    # If no zone reaches all labels, any one is chosen: the launcher then refuses with the reason.
    return {zone for zone in every if all(not of or of & {"", zone} for of in zones)} or every - {""}


def _best(zones: Collection[str], context: Context) -> str:
    """Return a zone with running executors, if there is one."""
    present = {zone for data in (record.data for record in executors(context)) for zone in served_zones(data)}
    return min(zones, key=lambda zone: (zone not in present, zone != "", zone))


def served_zones(data: ComponentFacts) -> tuple[str, ...]:
    """Return the zones whose executors run builds; the empty name stands for no zone."""
    return (data.zone, "") if data.unzoned or not data.zone else (data.zone,)


def _remembered(context: Context) -> Iterator[tuple[str, set[str]]]:
    """Yield each zone with its labels, also zones whose executors are all away."""
    for zone in context.zone_names():
        entry = context.mirror.get(context.map.executor.zones(zone).labels.path)
        known = readable(entry, ZoneLabels) if entry is not None else None
        if known is not None:
            yield zone, set(known.labels)
