"""Pipelines that the configuration no longer has: everything in them leaves, and its people are told why.

The reporters and requirements of such a pipeline are kept beside its queues, because nothing else has them then.
"""

from __future__ import annotations

from msgspec.structs import asdict, fields, replace

from headgate.config.model import Pipeline
from headgate.gate.actions import Action, Record
from headgate.gate.change import EventKind
from headgate.gate.closures import closing_of
from headgate.gate.landings import ask_to_land
from headgate.gate.leave import leave
from headgate.gate.model import Item, Queue, Remains, State, with_item, with_queue
from headgate.gate.report import result_of
from headgate.gate.room import unfinished
from headgate.gate.triggers import heard
from headgate.gate.world import World

ENDS = ("success", "failure", "merge-conflict", "config-error", "no-jobs", "dequeue")
"""Kinds of reports on the end of an item; their recipients are told of the removal."""
TOLD = ("dequeue", "failure")
"""Kinds of reports that a removed pipeline makes."""
_SAME = tuple(field.name for field in fields(Remains) if field.name not in ("reporters", "reports"))


def remains(pipeline: Pipeline) -> Remains:
    """Return what must be known of a pipeline once it is removed."""
    same = {name: getattr(pipeline, name) for name in _SAME}
    names = (name for kind in ENDS for name in pipeline.reporters.get(kind, ()))
    reports = {name: how for kind in ENDS for name, how in pipeline.reports.get(kind, {}).items()}
    return Remains(**same, reporters=tuple(dict.fromkeys(names)), reports=reports)


def as_it_was(name: str, settings: Remains | None) -> Pipeline:
    """Return a pipeline that takes nothing in, and reports the ends of its items wherever it reported them before."""
    if settings is None:
        return Pipeline(name, "independent")
    rest = asdict(settings) | {
        "reporters": dict.fromkeys(TOLD, settings.reporters),
        "reports": dict.fromkeys(TOLD, settings.reports),
    }
    return Pipeline(name, **rest)


def remembered(state: State, pipeline: Pipeline) -> State:
    """Return the state with what must be known if its pipeline is removed, as long as it has queues."""
    settings = remains(pipeline) if state.queues else None
    return state if settings == state.remains else replace(state, remains=settings)


def dissolved(state: State, why: str, world: World, actions: list[Action]) -> State:
    """Return the state without everything that can leave now; `why` is the reason that people read. An item that is
    landing stays until the landing is answered, and if a part of a circle has landed, the rest still lands."""
    for queue in state.queues:
        for item in queue.items:
            # The next turn removes more, because the ends of all would not fit into one commit.
            if not unfinished(actions):
                current = next(one for one in state.queues if one.id == queue.id)
                state = with_queue(state, _dissolved(current, item, why, world, actions))
    for action in list(actions):
        if isinstance(action, Record) and action.result == "SUCCESS":
            for change in action.item.circle:
                actions.extend(heard(EventKind.PROJECT_MERGED, action.item, change, world))
    return replace(state, queues=tuple(queue for queue in state.queues if queue.items))


def _dissolved(queue: Queue, item: Item, why: str, world: World, actions: list[Action]) -> Queue:
    if item.buildset is not None and item.buildset.landing:
        return queue
    closing = closing_of(world.closings, world.pipeline.name, queue.name)
    complete = item.buildset is not None and item.buildset.complete
    # With a part of the circle landed, the branches do not fit together until the rest has landed, too.
    if item.landed and complete and closing is None and result_of(item) == "SUCCESS":
        return with_item(queue, ask_to_land(item, queue, world, actions))
    result = "FAILURE" if item.landed else "DEQUEUED"
    return leave(queue, replace(item, problem=why), result, world, actions, report=not item.epilogue, tested=False)
