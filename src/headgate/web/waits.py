"""Tell people what items, and builds that were asked for, wait for."""

from __future__ import annotations

from headgate.gate.model import Item, Phase
from headgate.map.inventory.nodes import NodeRequest, NodeWait
from headgate.ports.history import time_text
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.services.nodes.status import node_state
from headgate.services.nodes.zones import IMAGE, can_run, executors, served_zones

HELD = "passed; lands once it is opened again"


def awaited(context: Context) -> dict[str, str]:
    """Map each build that waits to the reason why."""
    found, mirror, nodes = dict[str, str](), context.mirror, context.map.nodes
    present = executors(context)
    for zone in ("", *context.zone_names()):
        whose = f"an executor of zone {zone}" if zone else "an executor"
        serving = [one for one in present if zone in served_zones(one.data)]
        for open in context.zone(zone).open(mirror):
            if open.request.state == "requested":
                image = open.request.meta.get(IMAGE)
                text = f"{whose} that runs containers, for the image {image}" if image else whose
                able = any(can_run(one, open) for one in serving)
                found[open.request.id] = text if able else f"{text}: none is there"
    for entry in mirror.under(nodes.requests.path):
        request = readable(entry, NodeRequest)
        # A request that is answered has its machines already, although it is still there.
        if request is not None and mirror.get(nodes.answers(request.id).record.path) is None:
            found[request.build] = f"nodes: {', '.join(label for _, label in request.nodes)}"
    if mirror.names(nodes.waits.path):
        _explain(context, found)
    return found


def _explain(context: Context, found: dict[str, str]) -> None:
    """Add the reason why requested machines are missing, since when, and what was tried."""
    now = node_state(context.map, context.mirror, context.now_ms())
    for place, waiting in enumerate(now.waiting, 1):
        request = waiting.request
        entry = context.mirror.get(context.map.nodes.waits(request.id).record.path)
        wait = readable(entry, NodeWait) if entry is not None else None
        if wait is not None and request.build in found:
            since = (time_text(wait.since_ms) or "").partition(".")[0]
            tried = f"; tried: {'; '.join(wait.tried)}" if wait.tried else ""
            at = f"{place} of {len(now.waiting)} in line"
            found[request.build] += f" ({at}): {wait.why or 'somebody looks for them'} (since {since} UTC){tried}"


def phase(item: Item) -> str:
    """Return one word for what the item waits for, or an empty string if its jobs show it, or if it is there only
    for another item's sake."""
    buildset = item.buildset
    if not item.live:
        return ""
    if buildset is None:
        return "waiting for its turn"
    if buildset.landing:
        return "landing"
    if item.held_ms:
        return HELD
    if buildset.merge is Phase.RUNNING:
        return "merging"
    return "" if buildset.jobs else str(buildset.merge)
