"""Land one repository after the other, and raise alarms about circles that landed only in part.

The changes of an item that belong to one repository land in one step.  With several repositories, every step is tried
out before the first one is made.  After the first step there is no way back: the rest lands, possibly after another
test, or an alarm reports which part has landed and which has not.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.builds.carry import reset
from headgate.gate.builds.report import result_of, text
from headgate.gate.items.leave import commit_of, leave, with_landed
from headgate.gate.rules.readiness import heeds_vetoes, leases, needs_approval
from headgate.gate.rules.requirements import demands
from headgate.gate.state.actions import ALARM, LANDED, WAITS, Action, Land, MarkLanded, Record, Report
from headgate.gate.state.change import Change, Landed, Parted, Strayed
from headgate.gate.state.model import Item, Queue, State, with_item
from headgate.gate.state.works import Demands, LandAnswer, Landing, LandRequest, ReportRequest
from headgate.gate.state.world import Closing, World

REWRITES = frozenset({"squash-merge", "cherry-pick", "rebase"})
"""Merge modes that replace the proposed commits by others."""
PARTED_MAX = 1_000
"""Limit on the alarms of each kind that a pipeline remembers; the oldest are dropped."""


def ask_to_land(item: Item, queue: Queue, world: World, actions: list[Action]) -> Item:
    """Request the next step of landing the item, and return the item marked as landing."""
    buildset, step = item.buildset, _step(item, world)
    assert buildset is not None and buildset.state is not None, "only a merged buildset can be complete and good"
    first, *others = (_part(item, change, step, world) for change in step)
    later = tuple(change for change in item.left if change not in step)
    # A merger makes this step and cannot try out a merge that a forge makes.
    if not _merged(first.change, world):
        later = tuple(change for change in later if not _merged(change, world))
    work = LandRequest(
        buildset=buildset.id,
        state=buildset.state,
        change=first.change,
        commit=first.commit,
        note=first.note,
        pipeline=world.pipeline.name,
        approved=first.approved,
        leases=first.leases,
        vetoed=first.vetoed,
        approvals=first.approvals,
        others=tuple(others),
        # After the first step there is no way back, so trying the later ones would change nothing.
        later=tuple(replace(_part(item, change, step, world), note="") for change in later if not item.landed),
        after=queue.landed_as if _merged(first.change, world) else (),
        rest=bool(item.landed),
        queue=queue.name,
        demands=_demands(item, world),
    )
    alone = len(item.left) == len(step) and not item.landed
    # Each step is a separate request and needs its own id.
    of = () if alone else (first.change.key if _merged(first.change, world) else first.change.project,)
    actions.append(Land(derived(buildset.id, "land", *of), work, world.pipeline.precedence))
    return replace(item, buildset=replace(buildset, landing=True))


def _demands(item: Item, world: World) -> dict[str, Demands]:
    """Return connection -> demands that are checked with its forge before changes are pushed."""
    pushed = [one for one in item.left if one.number and not _merged(one, world)]
    exempt = tuple(one.key for one in pushed if item.exempts(one))
    return {name: demands(world, name, exempt) for name in sorted({one.connection for one in pushed})}


def _merged(change: Change, world: World) -> bool:
    """Return whether the forge of the change makes the merge."""
    return change.connection in world.merging


def _step(item: Item, world: World) -> tuple[Change, ...]:
    """Return the changes to land next: all remaining changes of the next repository, or only one if its forge makes the
    merge."""
    left = item.left
    if _merged(left[0], world):
        return left[:1]
    return tuple(change for change in left if change.project == left[0].project)


def _part(item: Item, change: Change, step: tuple[Change, ...], world: World) -> Landing:
    note = "\n".join([text(item, "SUCCESS", world), *_company(item, change, step)])
    change_state = world.change_states.get(change.key)
    return Landing(
        change,
        commit_of(item, change),
        note,
        needs_approval(item, change, world.pipeline),
        leases(item, change, world),
        vetoed=heeds_vetoes(world.pipeline, change.connection) and not item.exempts(change),
        approvals={word.ref: word.commit for word in change_state.approvals} if change_state is not None else {},
    )


def _company(item: Item, change: Change, step: tuple[Change, ...]) -> list[str]:
    """Return message lines about the changes that land together with this one, and whether they have landed."""
    done = {one.change.key: one.commit for one in item.landed}
    lines = [f"It lands together with {key}, which has landed as {commit}." for key, commit in done.items()]
    for other in item.left:
        when = "in the same step" if other in step else "after it"
        lines += [f"It lands together with {other.key}, which lands {when}."] if other != change else []
    return ["", *lines] if lines else []


def landed(queue: Queue, item: Item, answer: LandAnswer, world: World, actions: list[Action]) -> Queue:
    """Return the queue after the answer to the last requested step; an answer to an earlier step changes nothing."""
    buildset = item.buildset
    # The answer is a repetition.
    if buildset is None or not buildset.landing:
        return queue
    step = _step(item, world)
    if answer.project not in ("", step[0].project) or answer.change not in ("", step[0].key):
        return queue  # this answers an earlier step, whose result is already known
    if answer.ok:
        # The queue remembers the heads that it made, so that it does not mistake them for other people's pushes when
        # the connection reports them.
        queue = with_landed(queue, item, step, answer.commit)
        done = tuple(Landed(one, answer.commit or commit_of(item, one)) for one in step)
        marked = (one for one in done if one.change.number and not _merged(one.change, world))
        actions.extend(_mark(item, one, world, early=len(step) < len(item.left)) for one in marked)
        if answer.differs:
            queue = _unbelieved(queue, item, world, actions)
            actions.append(_strayed_alarm(item, step[0], answer, world))
        if len(step) < len(item.left):
            item = replace(item, landed=item.landed + done, buildset=replace(buildset, landing=False))
            return with_item(queue, item)
        actions.extend(_completed(item, done, world))
        return leave(queue, item, "SUCCESS", world, actions, report=False)
    # Nothing was pushed. The item requests its landing again when the queue is open.
    if answer.shut:
        return with_item(queue, replace(item, buildset=replace(buildset, landing=False)))
    # Somebody pushed to the branch, so the item is tested again on its new head.
    if answer.moved:
        return with_item(queue, rest(item))
    return with_item(queue, replace(item, buildset=replace(buildset, landing=False, landing_error=answer.error)))


def _mark(item: Item, one: Landed, world: World, *, early: bool) -> MarkLanded:
    """Return the request to show at the forge that a change has landed.

    A forge detects that a change is merged once the branch has the change's own commits; if the merge mode replaced
    these, the change is closed instead.
    """
    assert item.buildset is not None and item.buildset.state is not None, "a landed item has a merged buildset"
    change, chain = one.change, item.buildset.state.chain
    mode = next((at.mode for at in chain if (at.project, at.commit) == (change.project, change.commit)), "merge")
    note = f"{text(item, 'SUCCESS', world)}\n\nIt has landed in {change.branch} as {one.commit}."
    work = ReportRequest(change, world.pipeline.name, note, landed=one.commit)
    return MarkLanded(item.named(change, "mark"), work, mode not in REWRITES or one.commit == change.commit, early)


def _strayed_alarm(item: Item, change: Change, answer: LandAnswer, world: World) -> Report:
    """Return the report that warns on the change that the current head of its branch is untested."""
    note = (
        f"ALARM: {change.key} has landed as {answer.commit or 'another commit'}, and {change.branch} does not have the "
        "tree that was tested: somebody pushed to it at that moment, or the forge merges differently. Check the "
        "branch; the changes behind this one in the queue are tested again."
    )
    work = ReportRequest(change, world.pipeline.name, note, landed=answer.commit)
    return Report(item.named(change, "differs"), work, world.pipeline.precedence, kind=ALARM)


def _unbelieved(queue: Queue, item: Item, world: World, actions: list[Action]) -> Queue:
    """Return the queue with every other live item reset for another test, unless it is landing: the branch does not
    have the tested state on which these items are based."""
    items = list(queue.items)
    for position, other in enumerate(items):
        if other.id != item.id and other.live and not (other.buildset is not None and other.buildset.landing):
            items[position] = reset(other, world, actions)
    return replace(queue, items=tuple(items))


def rest(item: Item) -> Item:
    """Return the item with only the changes that have not landed, reset for another test."""
    first, *others = item.left
    return replace(item, change=first, others=tuple(others), buildset=None)


def _completed(item: Item, last: tuple[Landed, ...], world: World) -> list[Action]:
    """Return reports, on the changes that landed in earlier steps, that all changes have landed now."""
    report_text = text(item, "SUCCESS", world)
    reports: list[Action] = []
    for one in item.landed:
        others = (other for other in (*item.landed, *last) if other != one)
        lines = (f"It lands together with {other.change.key}, which has landed as {other.commit}." for other in others)
        note = "\n".join([report_text, "", *lines])
        work = ReportRequest(one.change, world.pipeline.name, note, landed=one.commit)
        reports.append(Report(item.named(one.change, "landed"), work, world.pipeline.precedence, kind=LANDED))
    return reports


def lands(item: Item, world: World) -> bool:
    all_landable = all(change.is_change and change.connection in world.pipeline.lands for change in item.changes)
    return world.dependent and all_landable and not item.epilogue and result_of(item) == "SUCCESS"


def held_back(item: Item, world: World) -> Item:
    """Return the item; if it passed but the pipeline is disabled, with the reason why it does not land."""
    if item.buildset is None or item.landed or not world.disabled or not lands(item, world):
        return item
    why = (
        "the pipeline is disabled after too many consecutive failures; it lands changes again once its configuration "
        f"changes or is reloaded (headgate reconfigure --tenant {world.tenant})"
    )
    return replace(item, buildset=replace(item.buildset, landing_error=why))


def notify_of_wait(item: Item, closing: Closing | None, world: World, actions: list[Action]) -> Item:
    """Return the item after reporting, once for each closing, that it has passed and will land when its queue is
    opened."""
    if closing is None or not item.live:
        return replace(item, held_ms=0) if item.held_ms else item
    buildset = item.buildset
    passed = buildset is not None and buildset.complete and not buildset.landing and lands(item, world)
    if not passed or item.held_ms == closing.since_ms:
        return item
    note = text(item, "SUCCESS", world, f"All jobs passed. The change lands once the closing ends: {closing.why}.")
    for change in item.left:
        work = ReportRequest(change=change, pipeline=world.pipeline.name, note=note)
        id = item.named(change, "held", str(closing.since_ms))
        actions.append(Report(id, work, world.pipeline.precedence, kind=WAITS))
    return replace(item, held_ms=closing.since_ms)


def noted(state: State, actions: Sequence[Action], world: World) -> State:
    """Return the state with an alarm for each item that leaves after only a part of it has landed, and without the
    alarms whose missing changes have landed by now."""
    # An item that leaves successfully has landed completely.
    ended = (action.item for action in actions if isinstance(action, Record) and action.result != "SUCCESS")
    alarms = {one.item: one for one in state.parted}
    # An existing alarm keeps its time.
    alarms |= {item.id: _parted_alarm(item, world) for item in ended if item.landed and item.id not in alarms}
    remaining = tuple(one for one in alarms.values() if not all(has_landed(key, world) for key in one.missing))
    return state if remaining == state.parted else replace(state, parted=remaining[-PARTED_MAX:])


def _parted_alarm(item: Item, world: World) -> Parted:
    landed = {one.change.key: one.commit for one in item.landed}
    return Parted(item.id, landed, tuple(change.key for change in item.left), world.now_ms)


def has_landed(key: str, world: World) -> bool:
    """Return whether the connection knows that the change with this key has landed."""
    known = world.change_states.get(key)
    return known is not None and known.landed


def dealt_with(state: State, key: str) -> State:
    """Return the state without the alarms that concern the change with this key."""
    parted = tuple(one for one in state.parted if key not in (*one.landed, *one.missing))
    strayed = tuple(one for one in state.strayed if key != one.key)
    same = (parted, strayed) == (state.parted, state.strayed)
    return state if same else replace(state, parted=parted, strayed=strayed)


def strayed(state: State, change: Change, commit: str, now_ms: int) -> State:
    """Return the state with an alarm that the branch of the change now has an untested head."""
    others = (one for one in state.strayed if one.key != change.key)
    alarm = Strayed(change.key, commit, change.branch, now_ms)
    return replace(state, strayed=(*others, alarm)[-PARTED_MAX:])
