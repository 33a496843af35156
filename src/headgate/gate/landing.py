"""Landing: one repository after the other, each asked for once the state knows that the one before has landed.

What goes together in one repository lands in one step.  Of several repositories each step is tried before the first,
and there is no way back once that one has landed: what is left is landed, be it after another test, or it is told
which part has landed and which has not.
"""

from __future__ import annotations

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.actions import Action, Land, Report
from headgate.gate.change import Change
from headgate.gate.leave import commit_of, leave, with_landed
from headgate.gate.model import Item, Landed, Queue, with_item
from headgate.gate.readiness import heeds_vetoes, leases, needs_approval
from headgate.gate.report import text
from headgate.gate.work import LandAnswer, Landing, LandRequest, ReportRequest
from headgate.gate.world import World


def ask_to_land(item: Item, queue: Queue, world: World, asked: list[Action]) -> Item:
    """The next step."""
    buildset, step = item.buildset, _step(item)
    assert buildset is not None and buildset.state is not None, "only a merged buildset can be complete and good"
    first, *others = (_part(item, change, step, world) for change in step)
    later = tuple(change for change in item.left if change not in step)
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
        said=first.said,
        others=tuple(others),
        later=tuple(replace(_part(item, change, step, world), note="") for change in later if not item.landed),
        rest=bool(item.landed),
        queue=queue.name,
    )
    of = (first.change.project,) if item.landed or later else ()
    asked.append(Land(derived(buildset.id, "land", *of), work, world.pipeline.precedence))
    return replace(item, buildset=replace(buildset, landing=True))


def _step(item: Item) -> tuple[Change, ...]:
    """What is left of the repository whose turn it is."""
    left = item.left
    return tuple(change for change in left if change.project == left[0].project)


def _part(item: Item, change: Change, step: tuple[Change, ...], world: World) -> Landing:
    note = "\n".join([text(item, "SUCCESS", world), *_company(item, change, step)])
    standing = world.standings.get(change.key)
    return Landing(
        change,
        commit_of(item, change),
        note,
        needs_approval(item, change, world.pipeline),
        leases(item, change, world),
        vetoed=heeds_vetoes(world.pipeline, change.connection) and not item.exempts(change),
        said={word.ref: word.commit for word in standing.approvals} if standing is not None else {},
    )


def _company(item: Item, change: Change, step: tuple[Change, ...]) -> list[str]:
    """What goes together with a change, and whether it has landed; for people."""
    done = {one.change.key: one.commit for one in item.landed}
    lines = [f"It goes together with {key}, which has landed as {commit}." for key, commit in done.items()]
    for other in item.left:
        when = "in the same step" if other in step else "after it"
        lines += [f"It goes together with {other.key}, which lands {when}."] if other != change else []
    return ["", *lines] if lines else []


def landed(queue: Queue, item: Item, answer: LandAnswer, world: World, asked: list[Action]) -> Queue:
    """The queue once it is known what came of the step that was asked for last."""
    buildset = item.buildset
    if buildset is None or not buildset.landing:
        return queue
    step = _step(item)
    if answer.project not in ("", step[0].project):
        return queue  # of a step before it: that is known
    if answer.ok:
        queue, done = with_landed(queue, item, step), tuple(Landed(one, commit_of(item, one)) for one in step)
        if len(step) < len(item.left):
            item = replace(item, landed=item.landed + done, buildset=replace(buildset, landing=False))
            return with_item(queue, item)
        asked.extend(_completed(item, done, world))
        return leave(queue, item, "SUCCESS", world, asked, told=False)
    if answer.shut:
        return with_item(queue, replace(item, buildset=replace(buildset, landing=False)))
    if answer.moved:  # somebody pushed to the branch: test again on what is there now
        return with_item(queue, rest(item))
    return with_item(queue, replace(item, buildset=replace(buildset, landing=False, landing_error=answer.error)))


def rest(item: Item) -> Item:
    """What has not landed, to be tested anew."""
    first, *others = item.left
    return replace(item, change=first, others=tuple(others), buildset=None)


def _completed(item: Item, last: tuple[Landed, ...], world: World) -> list[Action]:
    """Those that landed before are told that now all has."""
    said = text(item, "SUCCESS", world)
    told: list[Action] = []
    for one in item.landed:
        others = (other for other in (*item.landed, *last) if other != one)
        lines = (f"It goes together with {other.change.key}, which has landed as {other.commit}." for other in others)
        note = "\n".join([said, "", *lines])
        work = ReportRequest(one.change, world.pipeline.name, note, landed=one.commit)
        told.append(Report(item.named(one.change, "landed"), work, world.pipeline.precedence))
    return told
