"""Apply events and answers to the state.  An answer about an abandoned base matches no buildset and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.builds.carry import reset
from headgate.gate.builds.report import knows
from headgate.gate.builds.words import with_word, worded
from headgate.gate.items.admission import attempted
from headgate.gate.items.enqueue import enqueue
from headgate.gate.items.gestures import has, promoted, rerun, running, why_withheld
from headgate.gate.items.landings import dealt_with, landed, strayed
from headgate.gate.items.leave import commit_of, leave
from headgate.gate.items.renewal import reconfigured
from headgate.gate.rules.needs import needed_by, needs
from headgate.gate.rules.readiness import guarded
from headgate.gate.rules.requirements import triggers
from headgate.gate.state import management, works
from headgate.gate.state.actions import Action, Cancel, Record
from headgate.gate.state.change import Change, EventKind, Occasion, TriggerEvent
from headgate.gate.state.model import BuildSet, Item, Phase, Queue, State, with_item, with_queue
from headgate.gate.state.world import World

ENQUEUED_MAX = 500
"""Limit on the changes that one event enqueues; the first in the order of keys are enqueued."""


def rippled(state: State, event: TriggerEvent, world: World, actions: list[Action]) -> State:
    """Return the state in which the open changes of the event are enqueued, provided that it triggers the pipeline."""
    for change in _concerned(event, world) if triggers(world.pipeline, event) else ():
        state = enqueue(state, change, derived(event.id, change.key), world, actions)
    return state


def _concerned(event: TriggerEvent, world: World) -> list[Change]:
    own = event.change
    if event.kind is EventKind.PARENT_ENQUEUED:
        needed = needs(own, world)
        # Excluded, as changes that need each other would enqueue each other endlessly.
        ours = {change.key for change in (*needed.changes, *needed.circle)}
        found = [change for change in needed_by(own.key, world) if change.key not in ours]
    else:
        every = (s.change for s in world.change_states.values() if s.open and s.change.project == own.project)
        found = [change for change in every if change.key != own.key]
    return sorted(found, key=lambda change: change.key)[:ENQUEUED_MAX]


def occasioned(state: State, event: TriggerEvent, occasion: Occasion, world: World, actions: list[Action]) -> State:
    """Return the state with an item for the occasion. If the occasion cannot start anything, record a failure
    immediately, so that anybody who waits for it learns why."""
    change = event.change
    # The item may exist already if the event was absorbed before.
    after = state if occasion.problem else enqueue(state, change, event.id, world, actions)
    if after is not state or state.find(change.key) is not None:
        return after
    nothing = f"it starts no jobs: {change.project} has no jobs in {world.pipeline.name} for {change.branch}"
    why = occasion.problem or nothing
    id = derived("item", world.tenant, world.pipeline.name, change.key, event.id)
    item = Item(id=id, change=change, event=event.id, enqueued_ms=world.now_ms, problem=why)
    actions.append(Record(item, "FAILURE", why, tested=False))
    return state


def absorb(  # noqa: C901 - one case for each kind of event
    state: State, event: TriggerEvent | works.Answer | management.Managed, world: World, actions: list[Action]
) -> State:
    """Return the state after `event`, and append the resulting actions to `actions`. Absorbing an event twice has the
    same effect as absorbing it once."""
    match event:
        case TriggerEvent() if event.kind.ripples:
            return rippled(state, event, world, actions)
        case TriggerEvent() if event.change.occasion is not None:
            return occasioned(state, event, event.change.occasion, world, actions)
        case TriggerEvent():
            return triggered(state, event, world, actions)
        case works.MergeAnswer() | works.LandAnswer():
            return answered(state, event, world, actions)
        case works.BuildEnded() | works.BuildPaused() | works.BuildFailing():
            return worded(state, event, world, actions)
        case management.Enqueue(change=change, id=id, unapproved=unapproved, by_hand=by_hand):
            # If the pipeline neither lands changes nor is post-review, a person's order replaces the requirements.
            exempt = unapproved or not guarded(world.pipeline)
            return enqueue(state, change, id, world, actions, exempt=exempt, by_hand=by_hand)
        case management.Dequeue(key=key, why=why, commit=commit, event=enqueued):
            if enqueued and not has(state, key, commit, enqueued):
                return state
            # People also use a dequeue order to end an alarm about the change.
            if why and not has(state, key, commit):
                return dealt_with(state, key)
            return dequeued(state, key, world, actions, why, commit)
        case management.CancelBuild():
            return stopped(state, event, world, actions)
        case management.RerunBuild():
            return rerun(state, event)
        case management.Promote(keys=keys):
            # Either all named changes move or none, as the answer to the person promises.
            back = any(state.find(key) is None or why_withheld(event, key, state, world) for key in keys)
            return state if back else promoted(state, event, world, actions)
        case management.LayoutChanged(taken_over=taken_over):
            # A new configuration enables a disabled pipeline again. A scheduler that only takes over the pipeline must
            # not do that.
            fresh = state if taken_over else replace(state, failures=0, disabled=False)
            return reconfigured(fresh, world, actions)
        case _:
            assert_never(event)


def triggered(state: State, event: TriggerEvent, world: World, actions: list[Action]) -> State:
    change = event.change
    if event.kind is EventKind.REF_UPDATED and world.dependent:
        state = _moved(state, change, world, actions)
    parted: tuple[Change, ...] = ()
    """Changes that were tested together with an older patchset of this change."""
    if event.kind is EventKind.ABANDONED:
        own = world.change_states.get(change.key)
        if own is not None and own.open and own.change.commit == change.commit:
            return state  # the event is outdated: the patchset was restored since
        # If a newer patchset is open, only the abandoned patchset leaves.
        newer = own is not None and own.open
        state = dequeued(state, change.key, world, actions, commit=change.commit if newer else "", withdrawn=True)
    # In a dependent pipeline, an old patchset could land, so it leaves regardless of the configuration.
    elif change.is_change and (world.pipeline.dequeue_on_new_patchset or world.dependent):
        state, parted = _without_old_patchset(state, change, world, actions)
    if triggers(world.pipeline, event, world.change_states.get(change.key)):
        current = world.change_states.get(change.key)
        if change.is_change and current is not None and current.change.commit != change.commit:
            return state  # a newer patchset is already known, and has its own event
        state = enqueue(state, change, event.id, world, actions, answered=attempted(event, current, world))
    if event.fresh:
        state = _with_dependents(state, event, world, actions)
    for other in parted:
        # They were not proposed again, so no event of their own will enqueue them again.
        if state.find(other.key) is None:
            state = enqueue(state, other, derived(event.id, "parted", other.key), world, actions)
    return state


def _with_dependents(state: State, event: TriggerEvent, world: World, actions: list[Action]) -> State:
    """Enqueue the changes that need the event's change and were tested without it; return the state."""
    for other in needed_by(event.change.key, world):
        # `happening` is dropped, as the other change may be at another forge, with other terms.
        news = replace(event, change=other, happening=None)
        if triggers(world.pipeline, news, world.change_states.get(other.key)):
            state = enqueue(state, other, event.id, world, actions)
    return state


def _moved(state: State, update: Change, world: World, actions: list[Action]) -> State:
    """Return the state after somebody else moved a branch: items that are based on its old head start again, and so do
    all items behind them.

    A queue with an item that a forge is merging into the branch stays unchanged: the forge's answer will show who moved
    the branch.
    """
    for queue in state.queues:
        if any(_merging(item, update, world) for item in queue.items):
            continue
        begun = (one for one in queue.items if one.buildset is not None and one.buildset.landing)
        # Commits that are being pushed count as our own before the push is answered, as the two events may arrive in
        # either order.
        landing = {commit_of(one, change) for one in begun for change in one.changes}
        if update.commit in landing or update.commit in queue.landed_as:
            continue  # this queue moved the branch
        items, resting = list[Item](), set(queue.landed)
        """`resting`: ids of landed buildsets that items are still based on, and of the buildsets on top of these."""
        for item in queue.items:
            buildset = item.buildset
            old = buildset is not None and buildset.ahead in resting and update.old_commit in queue.landed_as
            if buildset is not None and buildset.ahead in resting:
                resting.add(buildset.id)
            if buildset is not None and _lost_its_base(item, buildset, update, old=old):
                item = reset(item, world, actions)
            items.append(item)
        if any(after is not before for after, before in zip(items, queue.items, strict=True)):
            state = with_queue(state, replace(queue, items=tuple(items)))
    return state


def _merging(item: Item, update: Change, world: World) -> bool:
    """Return whether a forge is merging the item into the branch that was updated."""
    if item.buildset is None or not item.buildset.landing or update.connection not in world.merging:
        return False
    return any((one.project, f"refs/heads/{one.branch}") == (update.project, update.ref) for one in item.left)


def _lost_its_base(item: Item, buildset: BuildSet, update: Change, *, old: bool) -> bool:
    """Return whether the item is based on the head that the branch had before the update. `old`: its buildset began
    before a landing of this queue moved the branch to that head."""
    own = {(one.project, f"refs/heads/{one.branch}") for one in item.changes if one.is_change}
    on_it = (update.project, update.ref) in own
    if not on_it or buildset.landing or item.epilogue or buildset.state is None:
        return on_it and buildset.merge is Phase.RUNNING
    return old or buildset.state.heads.get(update.project, {}).get(update.ref) == update.old_commit


def _without_old_patchset(
    state: State, change: Change, world: World, actions: list[Action]
) -> tuple[State, tuple[Change, ...]]:
    """Return the state without an older patchset of the change, and the changes that were tested together with it."""
    found = state.find(change.key)
    own = found[1].of(change.key) if found is not None else None
    known = world.change_states.get(change.key)
    newer = known is not None and own is not None and known.change.commit == own.commit
    if found is None or own is None or own.commit == change.commit or newer:
        return state, ()
    after = dequeued(state, change.key, world, actions)
    return after, tuple(one for one in found[1].left if one != own) if after is not state else ()


def dequeued(
    state: State,
    key: str,
    world: World,
    actions: list[Action],
    why: str = "",
    commit: str = "",
    *,
    withdrawn: bool = False,
) -> State:
    """Return the state without the live items of this change; cancel their running builds.

    An item that is landing stays: the answer to its landing decides.

    - `commit`: dequeue only this patchset.
    - `why`: the reason that is reported, even if the item has not been announced.
    - `withdrawn`: report changes that would land together with this one as failed, as their people do not know of the
      withdrawal.
    """
    for _, item in list(state.items()):
        landing, own = item.buildset is not None and item.buildset.landing, item.of(key)
        if item.live and own is not None and commit in ("", own.commit) and not landing:
            # An earlier iteration may have replaced the queue.
            queue = next(queue for queue in state.queues if item in queue.items)
            if withdrawn and (item.others or item.landed):
                item = replace(item, problem=f"{key}, which must land together with it, was withdrawn")
                queue = leave(queue, item, "FAILURE", world, actions, tested=False)
            else:
                report = bool(why or item.landed) or knows(item, world)
                item = replace(item, problem=why) if why else item
                queue = leave(queue, item, "DEQUEUED", world, actions, report=report)
            state = with_queue(state, queue)
    return state


def stopped(state: State, work: management.CancelBuild, world: World, actions: list[Action]) -> State:
    """Return the state after somebody cancelled a build: its job counts as failed."""
    found = running(state, work.build)
    if found is None:
        return state
    queue, item, build = found
    actions.append(Cancel(build.id, build=True))
    outcome = works.BuildOutcome(build.id, result="CANCELED", error=work.why)
    ended = works.BuildEnded(item.buildset.id if item.buildset is not None else "", build.job, outcome)
    return with_queue(state, with_item(queue, with_word(item, ended, world, actions)))


def answered(state: State, answer: works.MergeAnswer | works.LandAnswer, world: World, actions: list[Action]) -> State:
    found = next(((q, i, b) for q, i in state.items() if (b := i.buildset) and b.id == answer.buildset), None)
    if found is None:
        return state
    queue, item, buildset = found
    match answer:
        case works.MergeAnswer():
            item = replace(item, buildset=_merged(queue, item, buildset, answer))
            # Otherwise it did not merge, or the answer was absorbed before.
            if answer.ok and buildset.merge is Phase.RUNNING:
                item = _with_displaced(item, answer.touched, world)
            queue = with_item(queue, item)
        case works.LandAnswer():
            return _answered_landing(state, queue, item, answer, world, actions)
        case _:
            assert_never(answer)
    return with_queue(state, queue)


def _merged(queue: Queue, item: Item, buildset: BuildSet, answer: works.MergeAnswer) -> BuildSet:
    """Return the buildset with the merger's answer. A conflict of a live item ahead only blocks it; any other conflict
    counts as its own, including that of an item that is ahead only as its dependency."""
    # Otherwise the answer was absorbed before.
    if buildset.merge is not Phase.RUNNING:
        return buildset
    if answer.ok:
        return replace(buildset, merge=Phase.MERGED, state=answer.state, proposed=answer.config)
    ours = {"", item.id, *(other.id for other in queue.items if not other.live)}
    phase = Phase.CONFLICT if answer.blame in ours else Phase.BLOCKED
    return replace(buildset, merge=phase, error=answer.error, blame=answer.blame)


def _with_displaced(item: Item, touched: Sequence[tuple[str, ...] | None], world: World) -> Item:
    """Return the item with the paths that only its merge changes, after the merge of its changes `touched` these paths.
    If they make it a change of configuration, return it without its buildset: it starts again as one, and the items
    behind it, whose merges have not read this configuration, with it."""
    displaced = dict[str, tuple[str, ...] | None]()
    for change, paths in zip(item.changes, touched, strict=False):  # no paths: nothing was merged
        known = change.files
        if known is not None and (paths is None or not set(paths) <= set(known)):
            displaced[change.key] = None if paths is None else tuple(sorted(set(paths).difference(known)))
    if displaced == item.displaced:
        return item
    found, config = replace(item, displaced=displaced), world.layouts.landed.touches_config
    of = [(one.project, item.files(one), found.files(one), one.branch) for one in item.changes]
    begins = any(config(project, now, branch) and not config(project, was, branch) for project, was, now, branch in of)
    return replace(found, buildset=None) if begins else found


def _answered_landing(
    state: State, queue: Queue, item: Item, answer: works.LandAnswer, world: World, actions: list[Action]
) -> State:
    next = item.successor
    before = len(actions)
    state = with_queue(state, landed(queue, replace(item, successor=None), answer, world, actions))
    if answer.differs and len(actions) > before:  # otherwise the answer is a repetition
        own = [one for one in item.left if one.key == answer.change] or [item.change]
        state = strayed(state, own[0], answer.commit, world.now_ms)
    # A landed change accepts no further patchset: follow-ups must be proposed as another change.
    if next is None or answer.ok:
        return state
    state = dequeued(state, next.change.key, world, actions)
    return enqueue(state, next.change, next.event, world, actions, exempt=next.by_hand)
