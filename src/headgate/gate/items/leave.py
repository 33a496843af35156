"""Remove an item from its queue: cancel, report and record it.  Landings make the window grow, failures shrink it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from headgate.config.model import Window
from headgate.config.operator.model import content_of
from headgate.gate.builds.report import kind_of, knows, reporters, text
from headgate.gate.builds.start import abandon
from headgate.gate.rules.readiness import Obstacle, Unready
from headgate.gate.rules.refs import is_known
from headgate.gate.state.actions import Action, Record, Report
from headgate.gate.state.change import Change
from headgate.gate.state.model import Item, Queue, State, Unfollowed, with_queue
from headgate.gate.state.works import ReportRequest
from headgate.gate.state.world import World

LANDED_AS_MAX = 50
"""Limit on the commits that a queue remembers as branch heads that it made. The queue mistakes a forgotten one for
somebody else's push, and merges the items on that branch once more."""


def leave(
    queue: Queue,
    item: Item,
    result: str,
    world: World,
    actions: list[Action],
    *,
    report: bool = True,
    tested: bool = True,
) -> Queue:
    """Return the queue without `item`. `report` False: send no report, for example because the landing itself did.
    `tested` False: its jobs did not decide the result, so the window does not change."""
    abandon(item, actions)
    # It was enqueued only because its proposed configuration might have added jobs.
    if _is_strange(item, world):
        report, tested = report and bool(world.pipeline.reporters.get("no-jobs")), False
    message = text(item, result, world)
    names = reporters(result, world) if report and item.live else ()
    done = {one.change.key: one for one in item.landed}
    for change in item.circle:
        if change.connection in names:
            as_commit = done[change.key].commit if change.key in done else ""
            work = ReportRequest(change, world.pipeline.name, message, landed=as_commit)
            phase = kind_of(result, world)
            actions.append(Report(item.named(change, "report", result), work, world.pipeline.precedence, phase))
    if item.live:
        actions.append(Record(item, result, message, tested))
    # An end that the jobs did not decide must not move the window.
    return without(queue, item, result if tested else "DEQUEUED", world)


def _is_strange(item: Item, world: World) -> bool:
    """Return whether the pipeline has no jobs for the item, neither with the configuration that it proposes nor
    without."""
    graph = item.buildset.graph if item.buildset is not None else None
    return graph is not None and not graph.in_pipeline and not any(is_known(one, world) for one in item.changes)


def dismiss(queue: Queue, item: Item, found: Unready, world: World, actions: list[Action]) -> Queue:
    """Return the queue without an item whose change may not land. Report the reason, unless the change was
    withdrawn."""
    item = replace(item, problem=found.why)
    match found.obstacle:
        # The withdrawal of one change is news on the other changes of the circle.
        case Obstacle.GONE if item.others or item.landed:
            return leave(queue, item, "FAILURE", world, actions, tested=False)
        case Obstacle.GONE:
            return leave(queue, item, "DEQUEUED", world, actions, report=knows(item, world))
        case Obstacle.LANDED:
            return leave(queue, item, "DEQUEUED", world, actions)
        case Obstacle.CLOSED:
            return leave(queue, item, "MERGE_FAILURE", world, actions)
        case Obstacle.UNMET | Obstacle.LACKING | Obstacle.WAITING:
            return leave(queue, item, "FAILURE", world, actions, tested=False)
        case _:
            assert_never(found.obstacle)


def set_aside(state: State, id: str, why: str, world: World, actions: list[Action]) -> State:
    """Return the state without an item whose processing raised an error: it fails, and its report says why."""
    found = next(((queue, item) for queue, item in state.items() if item.id == id), None)
    if found is None:
        return state
    queue, item = found[0], replace(found[1], problem=why)
    # Collected separately, so that a report that fails half-way leaves no actions behind.
    own = list[Action]()
    try:
        queue = leave(queue, item, "FAILURE", world, own)
    except Exception:  # its report cannot be made either
        own = [Record(replace(item, buildset=None), "FAILURE", why)] if item.live else []
        abandon(item, own)
        queue = replace(queue, items=tuple(i for i in queue.items if i.id != id))
    actions.extend(own)
    return with_queue(state, queue)


def without(queue: Queue, item: Item, result: str, world: World) -> Queue:
    """Return the queue after `item` has left, with its new window and the buildsets that the items behind may still be
    based on."""
    items = tuple(i for i in queue.items if i.id != item.id)
    queue = replace(queue, items=items)
    if not world.dependent or result == "DEQUEUED":
        return queue
    if result == "SUCCESS" and item.buildset is not None:
        queue = replace(with_landed(queue, item, item.left), landed=(*queue.landed, item.buildset.id))
        return grown(queue, world.pipeline.window)
    # A failed landing does not show how often changes fail, so the window does not change.
    return queue if result == "MERGE_FAILURE" else shrunk(queue, world.pipeline.window)


def with_landed(queue: Queue, item: Item, changes: Sequence[Change], commit: str = "") -> Queue:
    """Return the queue that remembers that these changes of the item have landed. `commit` is the resulting head of the
    branch, if it is not the tested one."""
    for change in changes:
        keys = [key for key in [change.key] if key not in queue.landed_keys]
        # Both are ours: the tested commit, and the one that the forge made of it.
        found = dict.fromkeys((commit_of(item, change), commit))
        commits = [commit for commit in found if commit and commit not in queue.landed_as]
        queue = replace(
            queue,
            landed_keys=(*queue.landed_keys, *keys),
            landed_as=(*queue.landed_as, *commits)[-LANDED_AS_MAX:],
            unfollowed=_unfollowed(queue, item, change),
        )
    return queue


def commit_of(item: Item, change: Change) -> str:
    """Return the commit that the branch of the change gets when it lands, or an empty string while that is unknown."""
    state = item.buildset.state if item.buildset is not None else None
    return state.merged.get(change.project, {}).get(change.branch, "") if state is not None else ""


def _unfollowed(queue: Queue, item: Item, change: Change) -> Mapping[str, Unfollowed]:
    """Add the configuration that the item proposed for the project and branch of the change, which has now landed."""
    text = item.buildset.proposed.get(change.project, {}).get(change.branch) if item.buildset else None
    if text is None:
        return queue.unfollowed
    before = queue.unfollowed.get(change.project)
    branches = {**(before.branches if before else {}), change.branch: content_of(text)}
    return {**queue.unfollowed, change.project: Unfollowed(change.connection, branches)}


def grown(queue: Queue, window: Window) -> Queue:
    if queue.window == 0:
        return queue
    factor = window.increase_factor
    size = queue.window + factor if window.increase_type == "linear" else queue.window * factor
    return replace(queue, window=size if window.ceiling is None else min(size, window.ceiling))


def shrunk(queue: Queue, window: Window) -> Queue:
    if queue.window == 0:
        return queue
    factor = window.decrease_factor
    size = queue.window - factor if window.decrease_type == "linear" else int(queue.window / factor)
    return replace(queue, window=max(size, window.floor))


def active(queue: Queue, position: int) -> bool:
    return queue.window == 0 or position < queue.window
