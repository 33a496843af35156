"""Do what can be done for one item on the base that it rests on: start or restart it, ask for its jobs, stop it."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.gate.actions import Action
from headgate.gate.advance import Permits, advance_jobs, freeze
from headgate.gate.carry import settled
from headgate.gate.model import BuildSet, Item, Phase
from headgate.gate.readiness import Unready
from headgate.gate.start import Base, abandon, start, stopped
from headgate.gate.world import World


def advance_item(
    item: Item,
    obstacle: Unready | None,
    landed: tuple[str, ...],
    base: Base,
    in_window: bool,
    permits: Permits,
    world: World,
    actions: list[Action],
) -> Item:
    """Return the item after everything that can be done for it on this base."""
    buildset = item.buildset
    stays = buildset is not None and buildset.begun and rests_on(buildset, base.ahead, landed)
    if stays and not item.earlier and alone(item):
        return item  # as nearly all items do in nearly every turn
    if not item.live or (item.buildset is not None and item.buildset.landing):
        return item
    if obstacle is not None:
        # Once the problem is noted, nothing runs any more that could be stopped.
        return replace(item if item.problem else stopped(item, actions), problem=obstacle.why)
    stale = item.buildset is None or not rests_on(item.buildset, base.ahead, landed) or _unblocked(item.buildset, base)
    if stale or item.problem:
        # An item that has lost its base outside the window gives its machines to those inside.
        if not in_window:
            abandon(item, actions)
            return replace(item, problem="", buildset=None, carried=(), earlier={})
        item = start(item, base, world, actions)
    buildset = item.buildset
    if buildset is not None and in_window and buildset.merge is Phase.MERGED and not buildset.config_errors:
        frozen = item if buildset.graph else freeze(item, base, world, actions)
        return advance_jobs(frozen, base.items, permits, world, actions)
    item = settled(item, None, world, actions)
    if buildset is not None and buildset.waits:  # it takes no free place, and reserves none
        item = replace(item, buildset=replace(buildset, waits=()))
    return item


def rests_on(buildset: BuildSet, ahead: str | None, landed: tuple[str, ...]) -> bool:
    """Return whether the buildset rests on the current base; it still does after a landing of what it rests on."""
    return buildset.ahead == ahead or (ahead is None and buildset.ahead in landed)


def _unblocked(buildset: BuildSet, base: Base) -> bool:
    """Return whether the change that kept the buildset from merging is no longer beneath it."""
    return buildset.merge is Phase.BLOCKED and all(item.id != buildset.blame for item in base.chain)


def alone(item: Item) -> bool:
    """Return whether the item has no problem and needs no other change."""
    return not (item.problem or any(change.needs for change in item.changes))
