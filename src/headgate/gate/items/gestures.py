"""Apply manual actions to the queues, and explain why an action has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.gate.builds.graph import dependents
from headgate.gate.builds.start import abandon
from headgate.gate.rules.needs import needs
from headgate.gate.rules.readiness import guarded, unfit
from headgate.gate.rules.refs import takes_part
from headgate.gate.state.actions import Action
from headgate.gate.state.management import CancelBuild, Dequeue, Enqueue, LayoutChanged, Managed, Promote, RerunBuild
from headgate.gate.state.model import FAIL_FAST, FINAL_GOOD, Build, BuildSet, Item, Queue, State, with_item, with_queue
from headgate.gate.state.world import World


def running(state: State, build: str) -> tuple[Queue, Item, Build] | None:
    """Return the build with this id if it has no result yet, with its queue and item."""
    for queue, item in state.items():
        for found in item.under_way:
            if found.id == build:
                return queue, item, found
    return None


def rerun(state: State, work: RerunBuild) -> State:
    """Return the state in which a job that did not pass, and the jobs that depend on it, run once more.

    The item no longer counts as failed: the items behind it are based on it again, and so are tested again.
    """
    found = _ended(state, work.build)
    if found is None or _settled(*found[1:]):
        return state
    queue, item, build = found
    assert item.buildset is not None, "it has a build"
    return with_queue(state, with_item(queue, replace(item, buildset=_once_more(item.buildset, build))))


def _ended(state: State, build: str) -> tuple[Queue, Item, Build] | None:
    """Return the build with this id if it has a result, with its queue and item."""
    for queue, item in state.items():
        for found in item.buildset.builds.values() if item.buildset is not None else ():
            if found.id == build and found.result is not None:
                return queue, item, found
    return None


def _settled(item: Item, build: Build) -> str:
    """Return why a build that has ended is not run once more; empty if it is."""
    if build.result in FINAL_GOOD:
        return f"the build {build.id} did not fail ({build.result}); only failed builds can be rerun"
    # Such an item lands or has landed, so a new result would come too late.
    if item.epilogue or item.buildset is None or item.buildset.landing or not item.live:
        return f"the result of {item.change.key} is already decided; the build {build.id} cannot be rerun"
    if item.buildset.graph is None or build.job not in item.buildset.graph.by_id:
        return f"the job of the build {build.id} no longer exists"
    return ""


def _once_more(buildset: BuildSet, build: Build) -> BuildSet:
    """Return the buildset without this build, those that depend on it, and those stopped because a job failed, so that
    all of them run once more."""
    gone = {build.job, *dependents(buildset, build.job)}
    gone |= {one.job for one in buildset.builds.values() if one.error == FAIL_FAST}
    # The number is part of a build's id, so a late answer about the old build cannot count for the new one.
    due = {job: buildset.builds[job].attempt + 1 for job in gone if job in buildset.builds}
    left = {job: one for job, one in buildset.builds.items() if job not in gone}
    return replace(buildset, builds=left, again={**buildset.again, **due})


def promoted(state: State, work: Promote, world: World, actions: list[Action]) -> State:
    """Return the state with the named changes at the heads of their queues, each behind what it needs.

    They keep the order in which they are named; the items that they displace start again behind them.  Nothing
    overtakes an item that is landing.
    """
    for queue in state.queues:
        if queue.dynamic:
            continue  # a queue made for one change has nothing to overtake
        live = [item for item in queue.items if item.live]
        named = [item for key in work.keys for item in live if item.of(key) is not None]
        wanted = [one.key for item in named for one in (*needs(item.change, world).changes, item.change)]
        landing = [item for item in queue.items if item.buildset is not None and item.buildset.landing]
        chosen = [item for key in wanted for item in live if item.of(key) is not None]
        # An item may be named more than once: by several of its changes, or as something that others need.
        first = list({item.id: item for item in (*landing, *chosen)}.values())
        exempt = {item.id for item in named} if work.unapproved else set[str]()
        fresh, displaced = list[Item](), False
        for previous, item in zip(queue.items, first + [i for i in queue.items if i not in first], strict=True):
            displaced = displaced or previous.id != item.id
            if item.id in exempt:
                item = _exempted(item, work.keys)
            if displaced:
                abandon(item, actions)
                # The ids of buildsets and requests contain the item's id, so answers from before the move match
                # nothing.
                fresh_id = derived(item.id, "promoted", work.id)
                item = replace(item, id=fresh_id, buildset=None, problem="", carried=(), earlier={})
            fresh.append(item)
        if displaced or exempt:
            state = with_queue(state, replace(queue, items=tuple(fresh)))
    return state


def _exempted(item: Item, keys: Sequence[str]) -> Item:
    """Return the item in which the changes with these keys are exempt from the requirements."""
    spared = tuple(key for key in item.keys if key in keys or (item.exempt and key in item.spared))
    # An item with a single change needs no list of its exempt changes.
    return replace(item, exempt=True, spared=spared if item.others else ())


def unmoved(work: Managed, before: State, after: State, world: World) -> str:
    """Return why a manual action changed nothing, or "" if it did; `after` is the state after it was absorbed."""
    match work:
        case Enqueue():
            return _not_enqueued(work, before, after, world)
        case Dequeue():
            return _not_dequeued(work, before, after)
        case CancelBuild(build=build):
            return "" if running(before, build) is not None else f"the build {build} is not running"
        case RerunBuild(build=build):
            found = _ended(before, build)
            return f"no build {build} in the queues has ended" if found is None else _settled(*found[1:])
        case Promote():
            return _not_promoted(work, before, after, world)
        case LayoutChanged():
            return ""
        case _:
            assert_never(work)


def _not_enqueued(work: Enqueue, before: State, after: State, world: World) -> str:
    change = work.change
    commit = "" if change.is_change else change.commit
    if has(before, change.key, commit):
        return f"{change.key} is already in the pipeline"
    if has(after, change.key, commit):
        return ""
    if guarded(world.pipeline) and not work.unapproved and (why := unfit(change, world)):
        return _why_not(why, world)
    if not takes_part(change, world):
        return f"{change.project} has no jobs in {world.pipeline.name} for {change.branch or change.ref}"
    return f"{change.key} cannot be tested; see its report for the reason"


def _not_dequeued(work: Dequeue, before: State, after: State) -> str:
    key, commit, enqueued = work.key, work.commit, work.event
    if not has(before, key, commit, enqueued):
        # Dequeuing a change that has left ends its alarm.
        return "" if after.alarms != before.alarms else f"{key} is not in the pipeline"
    return f"{key} is already landing" if has(after, key, commit, enqueued) else ""


def _not_promoted(work: Promote, before: State, after: State, world: World) -> str:
    missing = [key for key in work.keys if before.find(key) is None]
    if missing:
        return f"not in the pipeline: {', '.join(missing)}{'; nothing was moved' if len(work.keys) > 1 else ''}"
    if back := next(filter(None, (why_withheld(work, key, before, world) for key in work.keys)), ""):
        return _why_not(back, world)
    return "" if after != before else "the changes are already at the head"


def has(state: State, key: str, commit: str = "", event: str = "") -> bool:
    """Return whether a live item has the change or ref `key`, at `commit` and enqueued by `event` if given."""
    own = (item.of(key) for _, item in state.items() if item.live and event in ("", item.event))
    return any(change is not None and commit in ("", change.commit) for change in own)


def why_withheld(work: Promote, key: str, state: State, world: World) -> str:
    """Return why a change may not be moved to the head, because it no longer meets the requirements; "" if it may."""
    found = state.find(key)
    if found is None or work.unapproved or not guarded(world.pipeline):
        return ""
    item = found[1]
    return next(filter(None, (unfit(one, world) for one in item.left if not item.exempts(one))), "")


def _why_not(why: str, world: World) -> str:
    return (
        f"{why}, as pipeline {world.pipeline.name} requires; with the permission enqueue-unapproved you can override "
        "this (unapproved)"
    )
