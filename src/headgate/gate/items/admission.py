"""Decide whether a change can be enqueued with its dependencies, and comment once on the change if it cannot."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.files.checks import as_list
from headgate.config.forges.facts import ForgeEvent
from headgate.config.model import Pipeline
from headgate.gate.builds.report import refusal
from headgate.gate.rules.needs import Needs, called, needs
from headgate.gate.rules.readiness import refused
from headgate.gate.rules.refs import queue_name, takes_part
from headgate.gate.rules.requirements import lacking, rulings
from headgate.gate.state.actions import REFUSED, SETTLED, Action, Record, Report
from headgate.gate.state.change import Change, ChangeState, EventKind, OutsideRefusal, TriggerEvent
from headgate.gate.state.model import State
from headgate.gate.state.works import ReportRequest
from headgate.gate.state.world import World

IN_LINE = ("serial", "supercedent")
"""Pipeline managers that ignore dependencies."""
REFUSALS_MAX = 200
"""Limit on the changes whose last comment a pipeline remembers."""
AT_ONCE_MAX = 30
"""Limit on the changes that receive a comment within `PAUSE_MS`; the others receive theirs later."""
LOOKED_MAX, SLICE_MS = 20, 1_000
"""Limit on the changes with dependencies that one turn compares with the current state. The others follow in the turns
of the next seconds (`SLICE_MS`), because finding the dependencies of a change is expensive."""
PAUSE_MS, GRACE_MS = 60_000, 5_000
"""Shortest time between two comments on one change, and shortest delay of a correction: the event that enqueues the
change may be on its way."""
_UNTRUSTED = ("none", "read")


class Weighed(NamedTuple):
    """Hold the changes that are enqueued together with a change, and the reasons that keep it out."""

    found: Needs
    problems: tuple[str, ...] = ()
    """Messages about the obstacles that only another patchset, footer or setting removes."""
    apart: tuple[str, ...] = ()
    """Messages about the needed changes that must land or be ready first."""


def weigh(state: State, change: Change, world: World) -> Weighed:
    """Return the changes that must be enqueued together with `change`, and the reasons that prevent that."""
    if not change.is_change or world.pipeline.ignore_dependencies or world.pipeline.manager in IN_LINE:
        return Weighed(Needs((change,)))
    found = needs(change, world)
    # Members of a circle count towards the limits, because they are merged and tested with the change.
    beside = tuple(one for one in found.circle if one.key != change.key)
    problems = found.problems + tuple(filter(None, [_too_many(state, found.changes + beside, world)]))
    needed = len(found.changes + beside)
    if world.dependencies_max is not None and needed > world.dependencies_max:
        problems += (f"it needs {needed} changes; the tenant allows {world.dependencies_max} (max-dependencies)",)
    return Weighed(found, problems, (*found.outside, *_not_together(state, change, found.changes, beside, world)))


def foreign(pipeline: Pipeline, change: Change) -> bool:
    """Return whether the pipeline rejects the change because it does not name the change's connection."""
    return not pipeline.allow_other_connections and change.connection not in pipeline.connections


def _too_many(state: State, ahead: tuple[Change, ...], world: World) -> str:
    """Return why the pipeline has no room for a change and what it needs `ahead`; empty when it has."""
    most = world.changes_max
    # Changes in the pipeline are already counted.
    missing = sum(state.find(needed.key) is None for needed in ahead)
    if most is not None and sum(len(item.changes) for _, item in state.items()) + missing + 1 > most:
        return f"the pipeline {world.pipeline.name} is full: the tenant allows {most} changes in it"
    return ""


def _not_together(
    state: State, change: Change, ahead: tuple[Change, ...], beside: tuple[Change, ...], world: World
) -> tuple[str, ...]:
    """Return why the changes in `ahead` cannot land before `change` in one queue, or those in `beside` cannot land
    together with it. Each of them must meet the requirements itself, even if `change` is exempt."""
    if not world.dependent:
        return _not_beside(state, beside, world)
    problems = [*_not_beside(state, beside, world)]
    for needed in (*ahead, *beside):
        present = state.find(needed.key) is not None and needed in ahead
        # Its requirements were checked when it was enqueued, and every turn checks them again.
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
    """Return why these changes cannot be tested together with the change that needs them. This applies to every
    pipeline manager."""
    problems = []
    for one in beside:
        found = state.find(one.key)
        if foreign(world.pipeline, one):
            problems.append(f"Depends-On: {one.key}: the pipeline accepts no changes from {one.connection}")
        elif found is not None and found[1].buildset is not None and found[1].buildset.landing:
            problems.append(f"Depends-On: {one.key}: it is landing; this change will be enqueued after that")
        elif not world.dependent and (why := refused(world, world.change_states.get(one.key))):
            problems.append(f"Depends-On: {why}; this change will be enqueued once it is")
    return tuple(problems)


def attempted(event: TriggerEvent, known: ChangeState | None, world: World) -> bool:
    """Return whether the event is a person's attempt to enqueue the change, so that a refusal must be explained.

    A push is not an attempt, and neither is a program's report. Of the people who may not write to the project, only
    the owner of the change receives an answer.
    """
    # On a git server, an approval is how people enqueue a change.
    if event.kind is EventKind.APPROVED:
        return True
    happening, change = event.happening, event.change
    if (
        event.kind is not EventKind.STIRRED
        or happening is None
        or (happening.statuses and happening.action != "rerequested")
    ):
        return False
    content = happening.comments or happening.votes or happening.added or happening.removed or happening.state
    if not content and happening.action not in ("approved", "rerequested"):
        return False
    us = known.details.us if known is not None and known.details is not None else ()
    if happening.who is not None:
        owns = happening.who.name == change.owner
        # Our own comments come back as events, and strangers must not be able to make Headgate comment at will.
        if happening.who.name in us or (happening.who.permission in _UNTRUSTED and not owns):
            return False
    pipelines = (world.pipeline, *world.beside.pipelines.values())
    return not (happening.added or happening.removed) or not any(
        _sets(one, change.connection, happening) for one in pipelines
    )


def _sets(pipeline: Pipeline, connection: str, happening: ForgeEvent) -> bool:
    """Return whether the pipeline's own reporters make exactly these label changes."""
    hows = [how for reports in pipeline.reports.values() for how in reports.get(connection, ())]
    put, off = ({str(one) for how in hows for one in as_list(how.get(key))} for key in ("label", "unlabel"))
    return {*happening.added} <= put and {*happening.removed} <= off


def speaks(pipeline: Pipeline, connection: str) -> bool:
    """Return whether the pipeline comments on changes of the connection."""
    if not any(connection in connections for connections in pipeline.reporters.values()):
        return False
    failures = pipeline.reports.get("failure", {}).get(connection, ())
    every = (how for reports in pipeline.reports.values() for how in reports.get(connection, ()))
    # A refusal is reported like a failure, if the pipeline reports failures there.
    hows = failures or tuple(every)
    return not hows or any(how.get("comment", True) for how in hows)


def why_not(state: State, change: Change, world: World) -> tuple[str, ...]:
    """Return messages about everything that keeps a change out now."""
    change_state = world.change_states.get(change.key)
    if change_state is None:
        return ()
    # Other pipelines may test a landed change again.
    if change_state.landed and world.dependent:
        return (f"{change.key} has already landed in this form; propose follow-up work as another change",)
    missing, rules = tuple(lacking(world, change_state, entering=True)), tuple(rulings(world, change_state))
    if missing:
        return missing + rules
    if rules:
        return (*rules[:-1], f"{rules[-1]}; it will be enqueued once that has changed")
    weighed = weigh(state, change, world)
    return weighed.problems + weighed.apart


def refused_with(
    state: State, change: Change, event: str, problems: tuple[str, ...], world: World, actions: list[Action]
) -> State:
    """Comment on a change that it is not enqueued, and return the state after that. Return the same state if the
    comment was already made; return a state with a due time if the comment must wait."""
    note, now_ms = refusal(change, problems, world), world.now_ms
    known = next((one for one in state.refusals if one.key == change.key), None) or OutsideRefusal(
        change.key, "", event
    )
    if known.commit == change.commit and (known.due_ms or known.comment_digest == _mark(note)):
        return state
    due_ms = known.comment_ms + PAUSE_MS if known.comment_ms else 0
    known = replace(known, commit=change.commit, event=event)
    # The comment is made later, from the state of that time.
    if now_ms < due_ms or _crowded(state, now_ms):
        known = replace(known, due_ms=max(due_ms, now_ms + GRACE_MS))
    else:
        known = _with_comment(known, change, REFUSED, note, world, actions)
    # The latest refusal goes to the end, so that the oldest ones are forgotten first.
    others = (one for one in state.refusals if one.key != change.key)
    return replace(state, refusals=(*others, known)[-REFUSALS_MAX:])


def corrected(state: State, world: World, actions: list[Action]) -> State:
    """Return the state after outdated comments on refusals are corrected or their correction is scheduled. Every turn
    compares the last comment with the current state, because no event may report the difference."""
    # The report on an item that has left already covers its changes.
    ended = {key for one in actions if isinstance(one, Record) and not one.refused for key in one.item.keys}
    later, inside = _later(state, world), state.live_keys
    for one in state.refusals:
        if one.key in later and one.key not in ended and one.key not in inside:
            continue
        after = _corrected(one, state, one.key in inside, world, actions) if one.key not in ended else None
        if after is not one:
            refusals = (other if other.key != one.key else after for other in state.refusals)
            state = replace(state, refusals=tuple(other for other in refusals if other is not None))
    return state


def _later(state: State, world: World) -> frozenset[str]:
    """Return the keys of the changes that a later turn examines, because no comment on them is due."""
    change_states = ((one, world.change_states.get(one.key)) for one in state.refusals)
    # Finding the dependencies of a change may visit hundreds of changes; changes without any are compared immediately.
    dear = [
        one
        for one, change_state in change_states
        if change_state is not None and change_state.open and change_state.change.needs
    ]
    parts, slice = -(-len(dear) // LOOKED_MAX), world.now_ms // SLICE_MS
    waiting = (one for place, one in enumerate(dear) if (place + slice) % parts)
    return frozenset(one.key for one in waiting if not one.due_ms or one.due_ms > world.now_ms)


def _corrected(
    one: OutsideRefusal, state: State, inside: bool, world: World, actions: list[Action]
) -> OutsideRefusal | None:
    """Return the updated refusal; None to forget it. `inside`: its change is now in the pipeline."""
    change_state = world.change_states.get(one.key)
    if change_state is None or not change_state.open:
        return None
    change = change_state.change
    if inside:
        if one.comment_digest and not _announced(world.pipeline, change.connection):
            _with_comment(one, change, SETTLED, f"{change.id} is in {world.pipeline.name} now.", world, actions)
        return None
    # The comment is on another patchset, which nobody is trying to enqueue.
    if change.commit != one.commit:
        return replace(one, due_ms=0) if one.due_ms else one
    problems = why_not(state, change, world)
    free = f"Nothing keeps {change.id} out of {world.pipeline.name} any longer: request it again to enqueue it."
    note = refusal(change, problems, world) if problems else free
    if one.comment_digest == _mark(note) or not (one.comment_digest or problems):
        return replace(one, due_ms=0) if one.due_ms else one
    if not one.due_ms:
        return replace(one, due_ms=max(one.comment_ms + PAUSE_MS, world.now_ms + GRACE_MS))
    if world.now_ms < one.due_ms:
        return one
    if _crowded(state, world.now_ms):
        return replace(one, due_ms=world.now_ms + PAUSE_MS)
    return _with_comment(one, change, REFUSED if problems else SETTLED, note, world, actions)


def _with_comment(
    one: OutsideRefusal, change: Change, kind: str, note: str, world: World, actions: list[Action]
) -> OutsideRefusal:
    """Return the refusal after this comment, which is only sent if the pipeline comments on changes of the
    connection."""
    pipeline, mark = world.pipeline, _mark(note)
    if speaks(pipeline, change.connection):
        # With the time of the last comment, the same text can be posted again after another one.
        id = derived(one.event, pipeline.name, change.key, kind, mark, str(one.comment_ms))
        work = ReportRequest(change=change, pipeline=pipeline.name, note=note)
        actions.append(Report(id, work, pipeline.precedence, kind=kind))
    return replace(one, comment_digest=mark, comment_ms=world.now_ms, due_ms=0)


def _announced(pipeline: Pipeline, connection: str) -> bool:
    """Return whether the pipeline's regular reports already state that the change is enqueued."""
    hows = (how for kind in ("enqueue", "start") for how in pipeline.reports.get(kind, {}).get(connection, ()))
    return any(how.get("comment", True) for how in hows)


def _crowded(state: State, now_ms: int) -> bool:
    return sum(one.comment_ms > now_ms - PAUSE_MS for one in state.refusals if one.comment_ms) >= AT_ONCE_MAX


def _mark(note: str) -> str:
    return derived("refusal", note)
