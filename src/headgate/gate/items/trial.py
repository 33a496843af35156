"""Advance one item on its base as far as possible, within the limits of one turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.gate.builds.advance import Permits, advance_jobs, freeze
from headgate.gate.builds.carry import settled
from headgate.gate.builds.start import Base, abandon, start, stopped
from headgate.gate.rules.readiness import Unready
from headgate.gate.state.actions import Action, Record
from headgate.gate.state.model import BuildSet, Item, Phase, Queue, State
from headgate.gate.state.world import World

LEAVES_MAX = 10
"""Limit on the items that leave in one turn, because one commit records their ends; the items behind them wait for the
next turn."""
WORKED_ON_MAX = 200
"""Limit on the changes of one project that are processed concurrently in pipelines that test each change separately;
the others wait for their turn."""


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
        # Once the problem is noted, the builds have already been stopped.
        return replace(item if item.problem else stopped(item, actions), problem=obstacle.why)
    stale = item.buildset is None or not rests_on(item.buildset, base.ahead, landed) or _unblocked(item.buildset, base)
    if stale or item.problem:
        # An item outside the window that has lost its base gives its machines to the items inside.
        if not in_window:
            abandon(item, actions)
            return replace(item, problem="", buildset=None, carried=(), earlier={})
        item = start(item, base, world, actions)
    buildset = item.buildset
    if buildset is not None and in_window and buildset.merge is Phase.MERGED and not buildset.config_errors:
        frozen = item if buildset.graph else freeze(item, base, world, actions)
        return advance_jobs(frozen, base.items, permits, world, actions)
    item = settled(item, None, world, actions)
    # An item that does not advance takes no semaphore, so it must not keep a place in the line for one.
    if buildset is not None and buildset.waits:
        item = replace(item, buildset=replace(buildset, waits=()))
    return item


def rests_on(buildset: BuildSet, ahead: str | None, landed: tuple[str, ...]) -> bool:
    """Return whether the buildset is based on the current base; it still is after the buildset ahead has landed."""
    return buildset.ahead == ahead or (ahead is None and buildset.ahead in landed)


def _unblocked(buildset: BuildSet, base: Base) -> bool:
    """Return whether the change that prevented the merge of the buildset is no longer ahead."""
    return buildset.merge is Phase.BLOCKED and all(item.id != buildset.blame for item in base.chain)


def alone(item: Item) -> bool:
    """Return whether the item has no problem and needs no other change."""
    return not (item.problem or any(change.needs for change in item.changes))


@dataclass(slots=True)
class WindowRoom:
    """Count the changes of each project that are processed in queues with a single change each."""

    taken: Counter[str]

    @classmethod
    def of(cls, state: State) -> WindowRoom:
        return cls(Counter(queue.name for queue in state.queues if queue.dynamic and _begun(queue)))

    def admits(self, queue: Queue) -> bool:
        """Return whether the queue's change is being processed or may be; if it has not begun, take a place for it."""
        if not queue.dynamic or _begun(queue):
            return True
        if self.taken[queue.name] >= WORKED_ON_MAX:
            return False
        self.taken[queue.name] += 1
        return True


def _begun(queue: Queue) -> bool:
    return any(item.buildset is not None for item in queue.items)


def unfinished(actions: list[Action]) -> bool:
    """Return whether this turn has reached its limit of leaving items, so that more may have to leave in the next."""
    return sum(isinstance(action, Record) for action in actions) >= LEAVES_MAX


Idle = Callable[[Queue, WindowRoom], bool]
"""Returns whether a queue needs no examination, because nothing in it can advance."""


def never_idle(queue: Queue, room: WindowRoom) -> bool:
    """Return False: every queue is examined."""
    return False


def idle_since(settled: State) -> Idle:
    """Return a function that finds idle queues, provided that the facts of the world are the same as when `settled` was
    returned.

    Only separately tested changes count: thousands of them then cost a turn nothing until something happens to them.
    """
    before = {queue.id: queue for queue in settled.queues}

    def idle(queue: Queue, room: WindowRoom) -> bool:
        # Values are frozen, so the same object has the same content.
        return before.get(queue.id) is queue and (_alone_and_begun(queue) or _waits_for_room(queue, room))

    return idle


def _alone_and_begun(queue: Queue) -> bool:
    """Return whether only a result or an outside fact can change the queue, whatever happens in other queues."""
    if not queue.dynamic or len(queue.items) != 1:
        return False
    buildset = queue.items[0].buildset
    carries = bool(queue.items[0].earlier)
    # An item with carried builds must be examined, because they are given up after a time.
    return buildset is not None and buildset.begun and not buildset.waits and not carries and alone(queue.items[0])


def _waits_for_room(queue: Queue, room: WindowRoom) -> bool:
    """Return whether the queue's separately tested change has not begun and still waits for others to leave."""
    if not queue.dynamic or len(queue.items) != 1 or _begun(queue):
        return False
    return room.taken[queue.name] >= WORKED_ON_MAX and alone(queue.items[0])
