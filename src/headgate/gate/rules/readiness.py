"""Decide whether a change may land now: when it is enqueued, and in every turn while it is in the pipeline.

Each turn checks again everything that people may revoke: that this patchset of the change is proposed, that it meets
the pipeline's requirements, and that what it needs has landed or is ahead.  Some requirements are checked only once,
when the change is enqueued: those of pipelines that neither land nor reveal anything, the age of an approval, and the
results of other pipelines.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import StrEnum
from typing import NamedTuple

from headgate.config.forges.git import counted
from headgate.config.model import Pipeline
from headgate.gate.rules.needs import is_outside, must_land, outdated
from headgate.gate.rules.requirements import of_refs, ruled_out, unmet
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import Item
from headgate.gate.state.world import World


class Obstacle(StrEnum):
    """Enumerate the reasons why a change may not land now, in order of precedence."""

    GONE = "gone"
    """The proposer withdrew it, or proposed something newer."""
    CLOSED = "closed"
    """Nobody withdrew it, but it has no branch or place to land in."""
    LANDED = "landed"
    """Its branch contains it."""
    UNMET = "unmet"
    """It does not meet a requirement of the pipeline."""
    LACKING = "lacking"
    """A change that it needs has not landed and is not ahead."""
    WAITING = "waiting"
    """A change that it needs is ahead but failing; it is not yet decided whether that one lands."""


_PRECEDENCE = {obstacle: number for number, obstacle in enumerate(Obstacle)}


class Unready(NamedTuple):
    obstacle: Obstacle
    why: str
    """The reason, as a message; empty if the person who caused it needs no report."""


def unready(item: Item, ahead: Set[str], failing: Set[str], world: World) -> Unready | None:
    """Return the obstacle that keeps `item` from landing behind the changes `ahead`, or None. `failing`: keys of the
    failing changes ahead. A ref that is not a change has no obstacles; an obstacle to one change holds back its
    circle."""
    # A pushed ref has already landed.
    if not item.change.is_change:
        return None
    found = [why for change in item.left if (why := _unready(item, change, world)) is not None]
    # Changes of a circle land together, so they may need each other.
    together = {*ahead, *item.keys, *(one.change.key for one in item.landed)} if item.others or item.landed else ahead
    for change in item.left if not found else ():
        if (lacking := lacks(change, together, failing, world)) is not None:
            found.append(lacking)
    # Only the most important reason is reported.
    return min(found, key=lambda one: _PRECEDENCE[one.obstacle], default=None)


def _unready(item: Item, change: Change, world: World) -> Unready | None:
    """Return the obstacle that keeps one change of the item from landing, apart from the changes that it needs."""
    own = world.change_states.get(change.key)
    found = _out_of_date(change, own, world) if own is not None else None
    if found is not None and (item.others or item.landed) and not found.why:
        return Unready(found.obstacle, f"{change.key}, which lands together with it, was withdrawn or replaced")
    if found is None and own is not None and guarded(world.pipeline) and not item.exempts(change):
        why = unmet(world, own) or ruled_out(world, own)
        return Unready(Obstacle.UNMET, why) if why else None
    return found


def _out_of_date(change: Change, own: ChangeState, world: World) -> Unready | None:
    """Return why the patchset can no longer land: it has landed, was closed or was replaced. Pipelines that land
    nothing still test a landed one."""
    if own.landed:
        why = f"it has already landed: {change.commit[:8]} is in {change.branch} of {change.project}"
        return Unready(Obstacle.LANDED, why) if world.dependent else None
    if not own.open:
        return Unready(Obstacle.CLOSED, own.reason) if own.reason else Unready(Obstacle.GONE, "")
    # Other pipelines let the builds of a former patchset end, because their results remain useful.
    if own.change.commit != change.commit and (world.dependent or world.pipeline.dequeue_on_new_patchset):
        return Unready(Obstacle.GONE, "")
    return None


def lacks(change: Change, ahead: Collection[str], failing: Collection[str], world: World) -> Unready | None:
    """Return an obstacle if a needed change has not landed and is not ahead, or is failing there; otherwise None."""
    waits: Unready | None = None
    if not world.pipeline.ignore_dependencies and (why := outdated(change, world)):
        return Unready(Obstacle.LACKING, why)
    for key in () if world.pipeline.ignore_dependencies else change.needs:
        change_state = world.change_states.get(key)
        if key in failing:
            waits = waits or Unready(Obstacle.WAITING, f"its dependency {key} is failing")
        # A dependency that does not exist yet does not count until somebody proposes it.
        elif change_state is not None and key not in ahead and not change_state.landed:
            return Unready(Obstacle.LACKING, _absent(change, key, change_state, world))
    return waits


def _absent(change: Change, key: str, change_state: ChangeState, world: World) -> str:
    """Return why a needed change is not ahead."""
    if is_outside(change_state, world):
        return must_land(change, key)
    if not change_state.open:
        end = f"closed: {change_state.reason}" if change_state.reason else "withdrawn"
        return f"its dependency {key} was {end}"
    if world.dependent and (why := unmet(world, change_state) or ruled_out(world, change_state)):
        return f"a change it needs is not ready: {why}"
    return f"its dependency {key} has not landed and is not ahead in the queue"


# --- requirements


def refused(world: World, change_state: ChangeState | None) -> str:
    """Return why the pipeline's requirements keep out a change that is about to be enqueued, or an empty string."""
    if change_state is None:
        return "its connection does not know it"
    return unmet(world, change_state, entering=True) or ruled_out(world, change_state)


def guarded(pipeline: Pipeline) -> bool:
    """Return whether the pipeline lands changes or gives them access to what only reviewed changes may see. If so, a
    person's enqueue request does not replace any requirement."""
    return bool(pipeline.lands) or pipeline.post_review


def unfit(change: Change, world: World) -> str:
    """Return why this patchset does not meet the requirements of the pipeline, or an empty string."""
    if not change.is_change:
        return of_refs(change, world)
    change_state = world.change_states.get(change.key)
    if change_state is not None and change_state.change.commit != change.commit:
        return f"{change.id} of {change.project} is not the current patchset"
    if change_state is not None and change_state.landed and world.dependent:
        return f"{change.id} of {change.project} has already landed"
    return refused(world, change_state)


def heeds_vetoes(pipeline: Pipeline, connection: str) -> bool:
    """Return whether a veto keeps changes of this connection out."""
    wanted, unwanted = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    return wanted.get("veto") is False or unwanted.get("veto") is True


def leases(item: Item, change: Change, world: World) -> tuple[str, ...]:
    """Return the refs of the approvals that let the item in, which must still exist when it lands."""
    change_state = world.change_states.get(change.key)
    wanted = world.pipeline.require.get(change.connection, {}).get("approvals")
    if wanted is None or change_state is None or item.exempts(change):
        return ()
    # Only as many as are required: further approvals may be withdrawn without effect.
    return tuple(word.ref for word in counted(change_state, wanted)[: int(wanted.get("count", 1))])


def needs_approval(item: Item, change: Change, pipeline: Pipeline) -> bool:
    """Return whether the git server itself must confirm the approval at the moment of landing."""
    connection = change.connection
    required = connection in pipeline.require_approved or pipeline.require.get(connection, {}).get("approved") is True
    return required and not item.exempts(change) and change.is_change
