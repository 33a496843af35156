"""What each queue should do next: speculative gating in one screen.

Every item is tested on the nearest item ahead that is not failing, and on everything beneath that.  When that
changes, the item starts anew.  The head lands when all its jobs passed; a failing head is rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.gate.actions import WAITS, Action, Faulty, Record, Report
from headgate.gate.advance import Permits, advance_jobs, freeze
from headgate.gate.carry import reset, settled
from headgate.gate.change import Change
from headgate.gate.closures import Closing, closing_of
from headgate.gate.enqueue import needed_item
from headgate.gate.landings import ask_to_land
from headgate.gate.leave import active, dismiss, leave
from headgate.gate.model import BuildSet, Item, Phase, Queue, State, Unfollowed, with_queue
from headgate.gate.needs import needs
from headgate.gate.partial import noted
from headgate.gate.readiness import Obstacle, Unready, unready
from headgate.gate.report import result_of, text
from headgate.gate.start import Base, abandon, start, stopped
from headgate.gate.work import ReportRequest
from headgate.gate.world import World

LEAVES_MAX = 10
"""Items that leave in one turn, whose end must be recorded at once; what is behind them waits for the next."""


WORKED_ON_MAX = 200
"""Changes of one project that are worked on at once where each is tested alone; the rest wait for their turn."""


@dataclass(slots=True)
class WindowRoom:
    """Count the changes of each project that are worked on in queues with a single change each."""

    taken: Counter[str]

    @classmethod
    def of(cls, state: State) -> WindowRoom:
        return cls(Counter(queue.name for queue in state.queues if queue.dynamic and _begun(queue)))

    def admits(self, queue: Queue) -> bool:
        """Return whether the queue's change is worked on or may be; if it is yet to begin, take a place for it."""
        if not queue.dynamic or _begun(queue):
            return True
        if self.taken[queue.name] >= WORKED_ON_MAX:
            return False
        self.taken[queue.name] += 1
        return True


def _begun(queue: Queue) -> bool:
    return any(item.buildset is not None for item in queue.items)


def unfinished(asked: list[Action]) -> bool:
    """Return whether more items may have to leave: as many left as may leave in one turn."""
    return sum(isinstance(action, Record) for action in asked) >= LEAVES_MAX


def settle(state: State, world: World, asked: list[Action], settled_before: State | None = None) -> State:
    """Ask for everything every queue wants; settled twice is as settled once, unless `unfinished`.  Raise Faulty.

    `settled_before` is what an earlier call came to, if the facts of the world are the same: a change that is tested
    alone and is as it was then is not looked at again.
    """
    permits, room = Permits.of(state, world), WindowRoom.of(state)
    before = {} if settled_before is None else {queue.id: queue for queue in settled_before.queues}
    for queue in state.queues:
        if before.get(queue.id) is queue and (_alone_and_begun(queue) or _waits_for_room(queue, room)):
            continue
        looked_at = list[str]()
        try:
            settled = settle_queue(queue, permits, room, world, asked, looked_at)
        except Exception as error:
            raise Faulty(looked_at[-1] if looked_at else "") from error
        if settled is not queue:
            state = with_queue(state, settled)
    return noted(state, asked, world)


def _alone_and_begun(queue: Queue) -> bool:
    """Return whether only a result, or a fact of the world, moves the queue on, whatever happens to the others."""
    if not queue.dynamic or len(queue.items) != 1:
        return False
    buildset = queue.items[0].buildset
    carries = bool(queue.items[0].earlier)
    return buildset is not None and buildset.begun and not buildset.waits and not carries and _alone(queue.items[0])


def _waits_for_room(queue: Queue, room: WindowRoom) -> bool:
    """Return whether the queue's change, tested alone and not begun, still waits for others to leave."""
    if not queue.dynamic or len(queue.items) != 1 or _begun(queue):
        return False
    return room.taken[queue.name] >= WORKED_ON_MAX and _alone(queue.items[0])


def settle_queue(
    queue: Queue, permits: Permits, room: WindowRoom, world: World, asked: list[Action], looked_at: list[str]
) -> Queue:
    """Return the queue after all that can be done in it now; add to `asked` what that takes, and to `looked_at` the ids
    of items as they are looked at."""
    queue, circular = _renewed(queue, world, asked)
    base, kept = Base(keys=set(queue.landed_keys), unfollowed=_unfollowed(queue, world)), list[Item]()
    items, admitted = queue.items, room.admits(queue)
    shut = closing_of(world.closings, world.pipeline.name, queue.name)
    for position, item in enumerate(items):  # head to tail
        looked_at.append(item.id)
        obstacle: Unready | None = None
        if _asked_again(item):
            item = _as_known(item, world)
            obstacle = circular or unready(item, base.keys, base.failing, world)
            if obstacle is not None and obstacle.obstacle is not Obstacle.WAITING:
                if unfinished(asked):
                    return _tidy(queue, [*kept, item, *items[position + 1 :]], world)
                queue = dismiss(queue, item, obstacle, world, asked)
                continue
        works = admitted and active(queue, len(kept))
        if works or item.buildset is not None or item.carried:
            item = _look(item, obstacle, queue.landed, base, works, permits, world, asked)
            if _finished(item, base):
                if _lands(item, world) and world.disabled and not item.landed:
                    item = _held_back(item, world)
                if _lands(item, world):
                    item = item if shut else ask_to_land(item, queue, world, asked)
                elif unfinished(asked):
                    return _tidy(queue, [*kept, item, *items[position + 1 :]], world)
                else:
                    queue = leave(queue, item, result_of(item), world, asked, told=not item.epilogue)
                    continue  # gone: those behind rest on what was ahead of it
            item = _told_to_wait(item, shut, world, asked)
            _believe(item, base, permits)
        else:
            base.keys.update(item.keys)  # it waits for its turn, and those that need it behind it
        kept.append(item)
    return _tidy(queue, kept, world)


def _asked_again(item: Item) -> bool:
    """Return whether the item may still leave: it is live, runs no epilogue, and awaits no answer to a landing."""
    return item.live and not item.epilogue and not (item.buildset is not None and item.buildset.landing)


def _as_known(item: Item, world: World) -> Item:
    """Return the item with its patchsets' needs as they are known now: a change they need may have been proposed, or a
    branch made."""
    known = tuple(_change_as_known(change, world) for change in item.changes)
    return item if known == item.changes else replace(item, change=known[0], others=known[1:])


def _change_as_known(change: Change, world: World) -> Change:
    own = world.standings.get(change.key)
    if own is None or not own.open or own.change.commit != change.commit:
        return change
    now, then = ((one.needs, one.stale, one.unresolved, one.ignored) for one in (own.change, change))
    return change if now == then else own.change


def _renewed(queue: Queue, world: World, asked: list[Action]) -> tuple[Queue, Unready | None]:
    """Return the queue of a change tested alone, behind what it needs now; and what prevents that, or None."""
    if not queue.dynamic or world.dependent or world.pipeline.ignore_dependencies or not queue.items:
        return queue, None
    *before, item = queue.items
    if not _asked_again(item) or not item.change.is_change:
        return queue, None
    item = _as_known(item, world)
    if not (before or any(change.needs for change in item.changes)):
        return queue, None
    wanted = needs(item.change, world)
    left = [one for one in before if not all(_has_landed(change, world) for change in one.changes)]
    if _patchsets(wanted.ahead) == _patchsets(one.changes for one in left):
        return queue, None
    if wanted.problems:
        return queue, Unready(Obstacle.LACKING, "; ".join(wanted.problems))
    item = reset(item, world, asked)
    had = dict(zip(_patchsets(one.changes for one in before), before, strict=True))
    fresh = (
        had.get(names) or needed_item(item, group, world)
        for names, group in zip(_patchsets(wanted.ahead), wanted.ahead, strict=True)
    )
    return replace(queue, items=(*fresh, replace(item, trouble=""))), None


def _patchsets(groups: Iterable[tuple[Change, ...]]) -> list[tuple[tuple[str, str], ...]]:
    """Return the groups as the keys and commits of the changes in them."""
    return [tuple((change.key, change.commit) for change in group) for group in groups]


def _has_landed(change: Change, world: World) -> bool:
    known = world.standings.get(change.key)
    return known is not None and known.landed


def _look(
    item: Item,
    obstacle: Unready | None,
    landed: tuple[str, ...],
    base: Base,
    works: bool,
    permits: Permits,
    world: World,
    asked: list[Action],
) -> Item:
    """Return the item after everything that can be done for it on this base."""
    buildset = item.buildset
    stays = buildset is not None and buildset.begun and rests_on(buildset, base.ahead, landed)
    if stays and not item.earlier and _alone(item):
        return item  # as nearly all are at nearly every look
    if not item.live or (item.buildset is not None and item.buildset.landing):
        return item
    if obstacle is not None:
        return replace(item if item.trouble else stopped(item, asked), trouble=obstacle.why)
    stale = item.buildset is None or not rests_on(item.buildset, base.ahead, landed) or _unblocked(item.buildset, base)
    if stale or item.trouble:
        if not works:
            abandon(item, asked)
            return replace(item, trouble="", buildset=None, carried=(), earlier={})
        item = start(item, base, world, asked)
    buildset = item.buildset
    if buildset is not None and works and buildset.merge is Phase.MERGED and not buildset.config_errors:
        frozen = item if buildset.graph else freeze(item, base, world, asked)
        return advance_jobs(frozen, base.items, permits, world, asked)
    item = settled(item, None, world, asked)
    if buildset is not None and buildset.waits:  # it takes no place that comes free, and keeps none from others
        item = replace(item, buildset=replace(buildset, waits=()))
    return item


def _alone(item: Item) -> bool:
    """Return whether the item has no trouble and needs no other change."""
    return not (item.trouble or any(change.needs for change in item.changes))


def rests_on(buildset: BuildSet, ahead: str | None, landed: tuple[str, ...]) -> bool:
    """Return whether the buildset was started on what we believe in now; what landed since is no change of base."""
    return buildset.ahead == ahead or (ahead is None and buildset.ahead in landed)


def _unblocked(buildset: BuildSet, base: Base) -> bool:
    """Return whether the change that kept the buildset from merging is no longer beneath it."""
    return buildset.merge is Phase.BLOCKED and all(item.id != buildset.blame for item in base.chain)


def _finished(item: Item, base: Base) -> bool:
    """Return whether the item is at the head and has nothing more to learn; not while it is being landed."""
    if base.live or not item.live:
        return False
    if item.trouble:
        return True
    return item.buildset is not None and item.buildset.complete and not item.buildset.landing


def _lands(item: Item, world: World) -> bool:
    here = all(change.is_change and change.connection in world.pipeline.lands for change in item.changes)
    return world.dependent and here and not item.epilogue and result_of(item) == "SUCCESS"


def _held_back(item: Item, world: World) -> Item:
    """Return an item that passed with the reason why it does not land: the pipeline is disabled."""
    assert item.buildset is not None, "what lands was tested"
    why = (
        "the pipeline is disabled after too many failures in a row; it lands changes again once its configuration "
        f"changes, or is read anew (headgate reconfigure --tenant {world.tenant})"
    )
    return replace(item, buildset=replace(item.buildset, landing_error=why))


def _told_to_wait(item: Item, shut: Closing | None, world: World, asked: list[Action]) -> Item:
    """Tell people, once for each closing, that it passed and lands as soon as its queue is opened."""
    if shut is None or not item.live:
        return replace(item, held_ms=0) if item.held_ms else item
    buildset = item.buildset
    passed = buildset is not None and buildset.complete and not buildset.landing and _lands(item, world)
    if not passed or item.held_ms == shut.since_ms:
        return item
    note = text(item, "SUCCESS", world, f"All jobs passed.  It lands once it is opened again: {shut.why}.")
    for change in item.left:
        work = ReportRequest(change=change, pipeline=world.pipeline.name, note=note)
        id = item.named(change, "held", str(shut.since_ms))
        asked.append(Report(id, work, world.pipeline.precedence, kind=WAITS))
    return replace(item, held_ms=shut.since_ms)


def _believe(item: Item, base: Base, permits: Permits) -> None:
    """Add the item to the base of those behind: they bet that it lands, unless it is failing."""
    base.keys.update(item.keys)
    base.live += item.live
    if item.failing:
        base.failing.update(item.keys)
        return
    if item.change.is_change:
        base.chain.append(item)
    base.items.append(permits.twin(item) or item)
    if item.live and item.buildset is not None:
        base.ahead = item.buildset.id
        base.proposed = item.buildset.proposed


def _unfollowed(queue: Queue, world: World) -> Mapping[str, Unfollowed]:
    content = world.layouts.content
    return {p: found for p, found in queue.unfollowed.items() if not found.branches.items() <= content(p).items()}


def _tidy(queue: Queue, kept: list[Item], world: World) -> Queue:
    """Return the queue with the items kept, without those at the end that were there for another's sake, and without
    landed buildsets that nobody rests on."""
    while kept and not kept[-1].live:
        kept.pop()
    used = {item.buildset.ahead for item in kept if item.buildset is not None}
    landed = tuple(id for id in queue.landed if id in used)
    needed = {key for item in kept for change in item.changes for key in change.needs}
    keys = tuple(key for key in queue.landed_keys if key in needed)
    unfollowed = _unfollowed(queue, world)
    landed_as = queue.landed_as if kept else ()
    same = len(kept) == len(queue.items) and all(a is b for a, b in zip(kept, queue.items, strict=True))
    now = landed, keys, landed_as, unfollowed
    if same and now == (queue.landed, queue.landed_keys, queue.landed_as, queue.unfollowed):
        return queue
    return replace(
        queue, items=tuple(kept), landed=landed, landed_keys=keys, landed_as=landed_as, unfollowed=unfollowed
    )
