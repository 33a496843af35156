"""May this change land now?  One answer for who comes in and, in every turn, for who is here already.

After it came in, a change is asked again for everything that people may take back: that it is proposed, as this
patchset; that it meets the pipeline's requirements; that what it needs has landed or is ahead.  What pipelines that
neither land nor reveal anything require is asked once, and so is whatever only counts at the moment of coming in: the
age of an approval, and what other pipelines said.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import StrEnum
from typing import NamedTuple

from headgate.config.forges.people import counted
from headgate.config.model import Pipeline
from headgate.gate.change import Change, ChangeState
from headgate.gate.model import Item
from headgate.gate.needs import outdated
from headgate.gate.requirements import of_refs, ruled_out, unmet
from headgate.gate.world import World


class Obstacle(StrEnum):
    """Why a change may not land now, in order of precedence."""

    GONE = "gone"
    """Who proposed it withdrew it, or proposed something newer."""
    CLOSED = "closed"
    """Nobody withdrew it, but there is nowhere for it to land."""
    LANDED = "landed"
    """Its branch has it."""
    UNMET = "unmet"
    """A requirement of the pipeline."""
    LACKING = "lacking"
    """A change it needs has neither landed nor is it ahead."""
    WAITING = "waiting"
    """A change it needs is ahead, but failing: whether that one lands is not decided yet."""


_PRECEDENCE = {obstacle: number for number, obstacle in enumerate(Obstacle)}


class Unready(NamedTuple):
    obstacle: Obstacle
    why: str
    """For people; empty where whoever caused it knows."""


def unready(item: Item, ahead: Set[str], failing: Set[str], world: World) -> Unready | None:
    """What keeps `item` from landing behind the changes `ahead`, of which `failing` are failing (keys); None: nothing.
    Of a ref that is no change nothing does; of a circle whatever keeps back one of its changes."""
    if not item.change.is_change:
        return None
    found = [why for change in item.left if (why := _kept_back(item, change, world)) is not None]
    together = {*ahead, *item.keys, *(one.change.key for one in item.landed)} if item.others or item.landed else ahead
    for change in item.left if not found else ():
        if (lacking := lacks(change, together, failing, world)) is not None:
            found.append(lacking)
    return min(found, key=lambda one: _PRECEDENCE[one.obstacle], default=None)


def _kept_back(item: Item, change: Change, world: World) -> Unready | None:
    """What keeps one change of the item from landing, whatever it needs."""
    own = world.standings.get(change.key)
    found = _out_of_date(change, own, world) if own is not None else None
    if found is not None and (item.others or item.landed) and not found.why:
        return Unready(found.obstacle, f"{change.key}, which lands together with it, was withdrawn or replaced")
    if found is None and own is not None and guarded(world.pipeline) and not item.exempts(change):
        why = unmet(world, own) or ruled_out(world, own)
        return Unready(Obstacle.UNMET, why) if why else None
    return found


def _out_of_date(change: Change, own: ChangeState, world: World) -> Unready | None:
    """What has landed is still checked where nothing lands."""
    if own.landed:
        why = f"it has landed already: {change.commit[:8]} is in {change.branch} of {change.project}"
        return Unready(Obstacle.LANDED, why) if world.dependent else None
    if not own.open:
        return Unready(Obstacle.CLOSED, own.reason) if own.reason else Unready(Obstacle.GONE, "")
    if own.change.commit != change.commit and (world.dependent or world.pipeline.dequeue_on_new_patchset):
        return Unready(Obstacle.GONE, "")
    return None


def lacks(change: Change, ahead: Collection[str], failing: Collection[str], world: World) -> Unready | None:
    """What is wrong with the changes it needs, as far as they are not ahead of it."""
    waits: Unready | None = None
    if not world.pipeline.ignore_dependencies and (why := outdated(change, world)):
        return Unready(Obstacle.LACKING, why)
    for key in () if world.pipeline.ignore_dependencies else change.needs:
        standing = world.standings.get(key)
        if key in failing:
            waits = waits or Unready(Obstacle.WAITING, f"the needed change {key} is failing")
        elif standing is not None and key not in ahead and not standing.landed:
            return Unready(Obstacle.LACKING, _absent(key, standing, world))
    return waits


def _absent(key: str, standing: ChangeState, world: World) -> str:
    """Why a needed change is not ahead."""
    if not standing.open:
        return f"the needed change {key} was {'closed: ' + standing.reason if standing.reason else 'withdrawn'}"
    if world.dependent and (why := unmet(world, standing) or ruled_out(world, standing)):
        return f"a change it needs is not ready: {why}"
    return f"the needed change {key} has not landed and is not ahead"


# --- requirements


def refused(world: World, standing: ChangeState | None) -> str:
    """Why the pipeline's requirements keep out a change that is to come in now; empty when they do not."""
    if standing is None:
        return "it is not known at its connection"
    return unmet(world, standing, entering=True) or ruled_out(world, standing)


def guarded(pipeline: Pipeline) -> bool:
    """Does what is let in land, or see what only reviewed changes may?  Then asking by hand replaces no requirement."""
    return bool(pipeline.lands) or pipeline.post_review


def unfit(change: Change, world: World) -> str:
    """Why this patchset does not meet the requirements of the pipeline; empty when it does."""
    if not change.is_change:
        return of_refs(change, world)
    standing = world.standings.get(change.key)
    if standing is not None and standing.change.commit != change.commit:
        return f"{change.id} of {change.project} is not the current patchset"
    if standing is not None and standing.landed and world.dependent:
        return f"{change.id} of {change.project} has landed already"
    return refused(world, standing)


def heeds_vetoes(pipeline: Pipeline, connection: str) -> bool:
    """Does a veto keep changes of this connection out?"""
    wanted, unwanted = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    return wanted.get("veto") is False or unwanted.get("veto") is True


def leases(item: Item, change: Change, world: World) -> tuple[str, ...]:
    """The refs of the approvals that let it in, which must be there at the moment of landing."""
    standing = world.standings.get(change.key)
    wanted = world.pipeline.require.get(change.connection, {}).get("approvals")
    if wanted is None or standing is None or item.exempts(change):
        return ()
    return tuple(word.ref for word in counted(standing, wanted)[: int(wanted.get("count", 1))])


def needs_approval(item: Item, change: Change, pipeline: Pipeline) -> bool:
    """Must the server itself say, at the moment of landing, that the change is approved?"""
    connection = change.connection
    required = connection in pipeline.require_approved or pipeline.require.get(connection, {}).get("approved") is True
    return required and not item.exempts(change) and change.is_change
