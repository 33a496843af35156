"""Enqueue a change, with the changes that it needs ahead of it and the changes that need it behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.forges.facts import PipelineCheck
from headgate.config.model import FrozenGraph, Pipeline
from headgate.gate.builds.report import announces, filled, refusal
from headgate.gate.items.admission import IN_LINE, corrected, foreign, refused_with, weigh, why_not
from headgate.gate.items.leave import leave
from headgate.gate.rules.needs import needed_by, needs
from headgate.gate.rules.readiness import guarded, refused, unfit
from headgate.gate.rules.refs import is_known, queue_in, queue_name, takes_part
from headgate.gate.rules.requirements import concerns, ruled_out, triggers, unmet, word_of
from headgate.gate.state.actions import Action, Record, Report, Supersede, Vouch
from headgate.gate.state.change import Change, ChangeState, Deferred, EventKind, Successor, Tell, TriggerEvent
from headgate.gate.state.management import ByHand
from headgate.gate.state.model import BuildSet, Item, Phase, Queue, State, with_item, with_queue
from headgate.gate.state.works import ReportRequest
from headgate.gate.state.world import LayoutView, World

DEFERRED_MAX = 500
"""Limit on the changes that a pipeline remembers in order to enqueue them once what they need has landed."""


def enqueue(
    state: State,
    change: Change,
    event: str,
    world: World,
    actions: list[Action],
    *,
    exempt: bool = False,
    by_hand: ByHand | None = None,
    answered: bool = False,
) -> State:
    """Return the state with `change` in its queue, or after a report that it cannot be tested. `exempt`: this patchset
    need not meet the pipeline's requirements, now or later. `answered`: report to the person who tried to enqueue it
    if it does not meet them."""
    if foreign(world.pipeline, change) or not takes_part(change, world):
        return state
    if unfit(change, world) and not exempt:
        return _unfit(state, change, event, world, actions, answered=answered)
    present = _present(state, change, world)
    if present is not None:
        return _succeed(state, *present, Successor(change, event, exempt))
    # Other pipelines check nothing after the item is enqueued, so it needs no exemption there.
    exempt = exempt and guarded(world.pipeline)
    if world.pipeline.manager in IN_LINE:
        own = replace(_item((change,), event, world), exempt=exempt, by_hand=by_hand)
        return _in_line(state, own, world, actions)
    weighed = weigh(state, change, world)
    found, problems = weighed.found, weighed.problems
    if weighed.apart and not problems:
        state = deferring(state, Deferred(change.key, change.commit, event))
    if problems or weighed.apart:
        return _refuse(state, change, event, problems + weighed.apart, world, actions)
    own = replace(_item(found.circle, event, world), by_hand=by_hand)
    own = replace(own, exempt=exempt, spared=(change.key,) if exempt and own.others else ())
    return _let_in(state, own, found.ahead, world, actions)


def _let_in(
    state: State, own: Item, ahead: tuple[tuple[Change, ...], ...], world: World, actions: list[Action]
) -> State:
    """Return the state with the item enqueued behind what it needs."""
    state = _without_parts(state, own, world, actions)
    # A change that only its own proposed configuration may bring into the pipeline has no queue there yet.
    if not world.dependent or not (ahead or any(is_known(one, world) for one in own.changes)):
        return _alone(state, own, ahead, world)
    for group in ahead:
        if state.find(group[0].key) is None:
            needed = _item(group, own.event, world)
            state = _append(_without_parts(state, needed, world, actions), needed, world)
    state = _append(state, own, world)
    for one in own.changes:
        state = _those_behind(state, one, own.event, world, actions)
    return state


def _without_parts(state: State, item: Item, world: World, actions: list[Action]) -> State:
    """Return the state without the live items that have tested a part of `item` so far, unless they are landing."""
    patchsets = {(one.key, one.commit) for one in item.changes}
    for queue in state.queues if item.others else ():
        for part in queue.items:
            landing = part.epilogue or (part.buildset is not None and part.buildset.landing)
            if part.live and not landing and any((one.key, one.commit) in patchsets for one in part.changes):
                queue = leave(queue, part, "DEQUEUED", world, actions, report=False)
                state = with_queue(state, queue)
    return state


def _present(state: State, change: Change, world: World) -> tuple[Queue, Item] | None:
    """Return the queue and the item that contain the change, or None. Any patchset of a change counts, unless the
    pipeline tests each patchset separately; for a branch, only this update counts. An item that grows (`_grows`) does
    not count."""
    known = ((q, i, one) for q, i in state.items() if i.live and (one := i.of(change.key)) is not None)
    # If old patchsets stay in the pipeline, each patchset is an item of its own.
    whichever = change.is_change and (world.dependent or world.pipeline.dequeue_on_new_patchset)
    found = ((q, i) for q, i, one in known if whichever or one.commit == change.commit)
    return next((pair for pair in found if not _grows(pair[1], change, world)), None)


def _grows(item: Item, change: Change, world: World) -> bool:
    """Return whether the item contains only this change although other changes must now land together with it."""
    landing = item.buildset is not None and item.buildset.landing
    if landing or item.others or not change.needs or item.change.commit != change.commit:
        return False
    alone = world.pipeline.ignore_dependencies or world.pipeline.manager in IN_LINE
    return not alone and len(needs(change, world).circle) > 1


def _succeed(state: State, queue: Queue, item: Item, successor: Successor) -> State:
    """Return the state for a change that is already enqueued. While its patchset is landing, the item stores a newer
    one until the landing is answered."""
    landing = item.buildset is not None and item.buildset.landing
    same = item.of(successor.change.key)
    if not landing or (same is not None and same.commit == successor.change.commit):
        return state
    return with_queue(state, with_item(queue, replace(item, successor=successor)))


def _unfit(state: State, change: Change, event: str, world: World, actions: list[Action], *, answered: bool) -> State:
    """Return the state for a change that may not be enqueued now. If it meets the pipeline's requirements but not those
    of its forge, remember it, so that it is enqueued once it meets them, and report what is missing. Report unmet
    requirements of the pipeline only to those who tried to enqueue the change (`answered`)."""
    change_state = world.change_states.get(change.key)
    if change_state is None or change_state.change.commit != change.commit or not change_state.open:
        return state
    lacking = (change_state.landed and world.dependent) or unmet(world, change_state, entering=True)
    if not lacking and ruled_out(world, change_state):
        if any((one.key, one.commit) == (change.key, change.commit) for one in state.deferred):
            return state
        state = deferring(state, Deferred(change.key, change.commit, event))
    elif not (lacking and answered):
        return state
    return refused_with(state, change, event, why_not(state, change, world), world, actions)


def deferring(state: State, refused: Deferred) -> State:
    """Return the state that remembers the refused change, to enqueue it later."""
    others = (one for one in state.deferred if one.key != refused.key)
    return replace(state, deferred=(*others, refused)[-DEFERRED_MAX:])


def readmitted(state: State, world: World, actions: list[Action]) -> State:
    """Return the state after enqueueing the deferred changes whose dependencies have landed by now, through this
    pipeline or otherwise."""
    for one in state.deferred:
        change_state = world.change_states.get(one.key)
        gone = change_state is None or not change_state.open or change_state.change.commit != one.commit
        if gone or change_state is None or state.find(one.key) is not None:
            state = replace(state, deferred=tuple(other for other in state.deferred if other != one))
        # Any other change would only be refused again.
        elif _alone_ready(change_state.change, world):
            # Forgotten first, because `enqueue` may defer it again.
            state = replace(state, deferred=tuple(other for other in state.deferred if other != one))
            state = enqueue(state, change_state.change, derived(one.event, "readmitted"), world, actions)
    return state


def _alone_ready(change: Change, world: World) -> bool:
    """Return whether the change needs nothing outside its circle, and nothing keeps a change of the circle out."""
    found = needs(change, world)
    together = (refused(world, world.change_states.get(one.key)) for one in found.circle)
    return not (found.ahead or found.outside or any(together))


def _item(changes: tuple[Change, ...], event: str, world: World, *, live: bool = True) -> Item:
    change, *others = changes
    names = (name for one in changes for name in (one.key, one.commit))
    # Derived, so that an event that is absorbed again after a crash makes the same item.
    id = derived("item", world.tenant, world.pipeline.name, *names, event, str(live))
    return Item(id=id, change=change, live=live, event=event, enqueued_ms=world.now_ms, others=tuple(others))


def _append(state: State, item: Item, world: World) -> State:
    queue = queue_in(state, queue_name(item.change, world), world, world.pipeline.window.size)
    return with_queue(state, replace(queue, items=(*queue.items, item)))


def _in_line(state: State, item: Item, world: World, actions: list[Action]) -> State:
    """Return the state with the item at the end of its queue; an occasion has the queue of its ordering key. A
    supercedent pipeline keeps only the first item, which runs, and the last."""
    change, serial = item.change, world.pipeline.manager == "serial"
    if change.occasion is not None:
        queue = queue_in(state, change.occasion.line, world, 1, dynamic=True)
    else:
        name = queue_name(change, world) if serial else f"{change.project} {change.branch or change.ref}"
        queue = queue_in(state, name, world, 1)
    if not serial:
        for waiting in queue.items[1:]:
            queue = leave(queue, waiting, "DEQUEUED", world, actions, report=False)
    return with_queue(state, replace(queue, items=(*queue.items, item)))


def _alone(state: State, item: Item, ahead: tuple[tuple[Change, ...], ...], world: World) -> State:
    """Return the state with the item in its own queue, behind items for what it needs, which are never reported."""
    items = (*(needed_item(item, group, world) for group in ahead), item)
    queue = Queue(id=derived("queue", item.id), name=item.change.project, items=items, window=0, dynamic=True)
    return with_queue(state, queue)


def needed_item(item: Item, changes: tuple[Change, ...], world: World) -> Item:
    """Return the item that represents `changes` ahead of `item`, which is tested on top of them."""
    id = derived(item.id, *(name for one in changes for name in (one.key, one.commit)))
    return replace(_item(changes, item.event, world, live=False), id=id)


def _those_behind(state: State, change: Change, event: str, world: World, actions: list[Action]) -> State:
    """Enqueue the changes that were only waiting for this one; return the state."""
    for other in needed_by(change.key, world):
        same_queue = takes_part(other, world) and queue_name(other, world) == queue_name(change, world)
        if same_queue and not refused(world, world.change_states.get(other.key)) and _all_present(state, other, world):
            state = enqueue(state, other, event, world, actions)
    return state


def _all_present(state: State, change: Change, world: World) -> bool:
    found = needs(change, world)
    ready = not any(refused(world, world.change_states.get(one.key)) for one in found.circle)
    fit = ready and not found.problems and not found.outside
    return fit and all(state.find(n.key) is not None for n in found.changes)


def _refuse(
    state: State, change: Change, event: str, problems: tuple[str, ...], world: World, actions: list[Action]
) -> State:
    """Report why the change is refused and return the state after that; the history records only new refusals, not
    repeated ones."""
    after = refused_with(state, change, event, problems, world, actions)
    # The same state means that the comment was already made, so a repeated event adds no row to the history.
    if after is not state:
        item, note = _item((change,), event, world), refusal(change, problems, world)
        actions.append(Record(item, "FAILURE", note, tested=False, refused=True))
    return after


def untaken(event: TriggerEvent, pipelines: Iterable[Pipeline], layout: LayoutView) -> str:
    """Return why none of `pipelines` enqueues a change that was just proposed or approved, as a message to the person
    who did so. Return an empty string if one does, or if the change proposes configuration: the pipelines report on it
    when they freeze that configuration."""
    change = event.change
    if not change.is_change or layout.touches_config(change.project, change.files, change.branch):
        return ""
    own = [one for one in pipelines if not foreign(one, change)]
    taking = [one for one in own if layout.takes_part(one.name, change.project, change.branch)]
    if any(triggers(one, event) for one in taking):
        return ""
    if event.kind is EventKind.PROPOSED:
        later = [one.name for one in taking if triggers(one, replace(event, kind=EventKind.APPROVED))]
        if later:
            return f"It is not tested before it is approved; after that it enters {' and '.join(later)}."
    what = "proposals" if event.kind is EventKind.PROPOSED else "approved changes"
    if not taking:
        return f"It starts no jobs: {change.project} has no jobs in any pipeline for {change.branch}."
    names = ", ".join(one.name for one in taking)
    return f"It starts no jobs: no pipeline that has jobs for {change.project} ({names}) is triggered by {what}."


def concluded(before: State, after: State, actions: list[Action], world: World) -> State:
    """Return the state at the end of a turn, which the caller settles once more.

    Announce the changes that were enqueued and remove them from the pipelines that this one supersedes, add the
    reporter jobs of items that succeeded, and count consecutive failures, too many of which disable the pipeline.
    """
    # A copy, because the loop adds actions.
    for action in list(actions):
        actions.extend(vouched(action, world) if isinstance(action, Record) else ())
        if isinstance(action, Record) and action.result == "SUCCESS":
            after = _with_epilogue(after, action.item)
            landed = action.item.buildset is not None and action.item.buildset.landing
            for one in action.item.circle if landed else ():
                actions.extend(heard(EventKind.PROJECT_MERGED, action.item, one, world))
        elif isinstance(action, Record) and action.item.others:
            after = _parted(after, action.item, world)
    after = corrected(readmitted(after, world, actions), world, actions)
    # Compared by patchset, so that an item that moves or starts again is not announced once more.
    known = {(one.key, one.commit) for _, item in before.items() if item.live for one in item.changes}
    for _, item in list(after.items()):
        if item.live and not item.epilogue:
            fresh = (one for one in item.changes if (one.key, one.commit) not in known)
            actions.extend(action for one in fresh for action in _entered(item, one, world))
    return _counted(after, actions, world.pipeline.disable_after)


def _counted(after: State, actions: list[Action], most: int | None) -> State:
    """Return the state with its number of consecutive failures; `most` of them disable the pipeline. None: no
    limit."""
    if most is None:
        return replace(after, failures=0, disabled=False) if after.failures or after.disabled else after
    failures = after.failures
    for action in actions:
        if isinstance(action, Record) and action.tested:
            # Conflicts and configuration errors do not show whether the pipeline itself is broken.
            failures = {"SUCCESS": 0, "FAILURE": failures + 1}.get(action.result, failures)
    disabled = after.disabled or failures >= most
    if (failures, disabled) == (after.failures, after.disabled):
        return after
    return replace(after, failures=failures, disabled=disabled)


def _parted(state: State, item: Item, world: World) -> State:
    """Return the state that defers the remaining changes of a circle after somebody landed one of them without
    Headgate, so that they are enqueued again."""
    known = [(change, world.change_states.get(change.key)) for change in item.left]
    if any(now is not None and now.landed for _, now in known):
        for change, now in known:
            if now is not None and now.open and now.change.commit == change.commit:
                state = deferring(state, Deferred(change.key, change.commit, item.event))
    return state


def _with_epilogue(state: State, item: Item) -> State:
    """Return the state with a separate item for the reporter jobs, which run after the success of the item is
    reported."""
    buildset = item.buildset
    if buildset is None or buildset.graph is None or not buildset.graph.reporters:
        return state
    graph = FrozenGraph(jobs=buildset.graph.reporters)
    # The reporter jobs run on the tested state, without another merge.
    own = BuildSet(id=derived(buildset.id, "reporters"), merge=Phase.MERGED, state=buildset.state, graph=graph)
    id = derived(item.id, "reporters")
    more = Item(id, item.change, event=item.event, enqueued_ms=item.enqueued_ms, epilogue=True, buildset=own)
    more = replace(more, others=item.others)
    queue = Queue(id=derived("queue", id), name=item.change.project, items=(more,), window=0, dynamic=True)
    return with_queue(state, queue)


def _entered(item: Item, change: Change, world: World) -> Iterator[Action]:
    """Yield the actions for a newly enqueued change of an item: announce it, and remove it from the pipelines that this
    one supersedes."""
    pipeline = world.pipeline
    yield from heard(EventKind.PARENT_ENQUEUED, item, change, world)
    if announces(change, world):
        note = filled(pipeline.enqueue_message, item, world) or f"Enqueued in {pipeline.name}."
        work = ReportRequest(change=change, pipeline=pipeline.name, note=note)
        yield Report(item.named(change, "enqueue"), work, pipeline.precedence, "enqueue")
    # Otherwise a change could leave other pipelines and then turn out to have no jobs here.
    for name in pipeline.supercedes if is_known(change, world) else ():
        if name != pipeline.name:
            yield Supersede(name, change.key)


def heard(kind: EventKind, item: Item, change: Change, world: World) -> Iterator[Action]:
    """Yield actions that send an event for a change of the item to the pipelines that it triggers."""
    if change.is_change:
        id = item.named(change, kind, world.pipeline.name)
        event = TriggerEvent(kind, change, id, world.now_ms, pipeline=world.pipeline.name)
        yield from (Tell(name, event) for name, other in world.beside.pipelines.items() if triggers(other, event))


def vouched(ended: Record, world: World) -> Iterator[Action]:
    """Yield actions that record this pipeline's result for the changes of the item if another pipeline requires it, and
    that make that one examine them again: it may have waited for this result."""
    name, result, item = world.pipeline.name, word_of(ended.result), ended.item
    landed = ended.result == "SUCCESS" and item.buildset is not None and item.buildset.landing
    # A landed change needs no word, and the results of a disabled pipeline do not count.
    if not result or not item.live or item.epilogue or landed or world.disabled:
        return
    asking = [other for other in world.beside.pipelines.values() if concerns(other, name)]
    for change in item.circle if asking else ():
        change_state = world.change_states.get(change.key)
        if change.is_change and change_state is not None and change_state.change.commit == change.commit:
            yield Vouch(change, PipelineCheck(world.tenant, name, change.commit, result))
            for other in asking:
                id = item.named(change, "vouched", name, other.name)
                again = (TriggerEvent(kind, change, id, world.now_ms) for kind in _kinds(change_state))
                yield from (Tell(other.name, event) for event in again if triggers(other, event, change_state))


def _kinds(change_state: ChangeState) -> list[EventKind]:
    """Return the kinds of events that pipelines may have received for an open change; none if it is not open."""
    approved = change_state.is_approved or any(
        word.commit == change_state.change.commit for word in change_state.approvals
    )
    kinds = [EventKind.PROPOSED, *([EventKind.APPROVED] if approved else [])]
    return kinds if change_state.open else []
