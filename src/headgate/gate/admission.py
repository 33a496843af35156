"""Decide whether a change can come in together with what it needs, and say why not."""

from __future__ import annotations

from typing import NamedTuple

from headgate.config.model import Pipeline
from headgate.gate.change import Change
from headgate.gate.model import State
from headgate.gate.needs import Needs, called, needs
from headgate.gate.queues import queue_name
from headgate.gate.readiness import refused
from headgate.gate.refs import takes_part
from headgate.gate.world import World

IN_LINE = ("serial", "supercedent")
"""Pipeline managers that ignore dependencies."""


class Weighed(NamedTuple):
    """Hold what enters together with a change, and what keeps it out."""

    found: Needs
    problems: tuple[str, ...] = ()
    """The obstacles, for people, that only another patchset, footer or setting removes."""
    apart: tuple[str, ...] = ()
    """The needed changes, for people, that must land or be ready first."""


def weigh(state: State, change: Change, world: World) -> Weighed:
    """Return what has to come in with `change`, and what prevents that."""
    if not change.is_change or world.pipeline.ignore_dependencies or world.pipeline.manager in IN_LINE:
        return Weighed(Needs((change,)))
    found = needs(change, world)
    # Members of a circle are limited like other needs, because they are merged and tested with the change.
    beside = tuple(one for one in found.circle if one.key != change.key)
    problems = found.problems + tuple(filter(None, [_too_many(state, found.changes + beside, world)]))
    needed = len(found.changes + beside)
    if world.dependencies_max is not None and needed > world.dependencies_max:
        problems += (f"it needs {needed} changes; the tenant allows {world.dependencies_max} (max-dependencies)",)
    return Weighed(found, problems, _not_together(state, change, found.changes, beside, world))


def foreign(pipeline: Pipeline, change: Change) -> bool:
    """Return whether the pipeline rejects the change because it does not name the change's connection."""
    return not pipeline.allow_other_connections and change.connection not in pipeline.connections


def _too_many(state: State, ahead: tuple[Change, ...], world: World) -> str:
    """Return why the pipeline has no room for a change and what it needs `ahead`; empty when it has."""
    most = world.changes_max
    missing = sum(state.find(needed.key) is None for needed in ahead)
    if most is not None and sum(len(item.changes) for _, item in state.items()) + missing + 1 > most:
        return f"the pipeline {world.pipeline.name} is full: the tenant allows {most} changes in it"
    return ""


def _not_together(
    state: State, change: Change, ahead: tuple[Change, ...], beside: tuple[Change, ...], world: World
) -> tuple[str, ...]:
    """Return why the changes of `ahead` cannot land before `change` in one queue, or those `beside` it as one with it.
    Each of them must meet the requirements itself, even if `change` is exempt."""
    if not world.dependent:
        return _not_beside(state, beside, world)
    problems = [*_not_beside(state, beside, world)]
    for needed in (*ahead, *beside):
        present = state.find(needed.key) is not None and needed in ahead
        # It was judged when it came in, and every turn judges it again.
        if present and queue_name(needed, world) == queue_name(change, world):
            continue
        why, how = refused(world, world.change_states.get(needed.key)), called(change, needed.key)
        if not takes_part(needed, world):
            problems.append(
                f"{how}: {needed.key}: its project has no {world.pipeline.name} jobs; it must land first, and "
                "then this change will be enqueued"
            )
        elif queue_name(needed, world) != queue_name(change, world):
            problems.append(
                f"{how}: {needed.key}: it is in another queue ({queue_name(needed, world)}); "
                f"it must land first, and then this change will be enqueued; or the two projects must share a queue"
            )
        elif why:
            problems.append(f"{how}: {why}; this change will be enqueued once it is")
    return tuple(problems)


def _not_beside(state: State, beside: tuple[Change, ...], world: World) -> tuple[str, ...]:
    """Return why these changes cannot be tested as one with the change that needs them, whatever manager the pipeline
    has."""
    problems = []
    for one in beside:
        found = state.find(one.key)
        if foreign(world.pipeline, one):
            problems.append(f"Depends-On: {one.key}: the pipeline takes no changes of {one.connection}")
        elif found is not None and found[1].buildset is not None and found[1].buildset.landing:
            problems.append(f"Depends-On: {one.key}: it is landing; then this change will be enqueued")
        elif not world.dependent and (why := refused(world, world.change_states.get(one.key))):
            problems.append(f"Depends-On: {why}; this change will be enqueued once it is")
    return tuple(problems)
