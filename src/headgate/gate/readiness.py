"""May this change land now?  One answer for who comes in and, in every turn, for who is here already.

After it came in, a change is asked again for everything that people may take back: that it is proposed, as this
patchset; that it meets the pipeline's requirements; that what it needs has landed or is ahead.  What pipelines that
neither land nor reveal anything require is asked once, and so is whatever only counts at the moment of coming in.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import StrEnum
from typing import NamedTuple

from headgate.config.model import Pipeline
from headgate.gate.change import Change, Standing
from headgate.gate.model import Item, World
from headgate.gate.people import counted, lacking

NEEDS_MAX = 200
"""Changes one change may need in all; more is reported, not followed."""


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


class Unready(NamedTuple):
    obstacle: Obstacle
    why: str
    """For people; empty where whoever caused it knows."""


def unready(item: Item, ahead: Set[str], failing: Set[str], world: World) -> Unready | None:
    """What keeps `item` from landing behind the changes `ahead`, of which `failing` are failing (keys); None: nothing.
    Of a ref that is no change nothing does."""
    change = item.change
    if not change.is_change:
        return None
    own = world.standings.get(change.key)
    if own is not None and (found := _out_of_date(change, own, world)) is not None:
        return found
    if own is not None and guarded(world.pipeline) and not item.exempt and (why := unmet(world.pipeline, own)):
        return Unready(Obstacle.UNMET, why)
    return lacks(change, ahead, failing, world)


def _out_of_date(change: Change, own: Standing, world: World) -> Unready | None:
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
    for key in () if world.pipeline.ignore_dependencies else change.needs:
        standing = world.standings.get(key)
        if key in failing:
            waits = waits or Unready(Obstacle.WAITING, f"the needed change {key} is failing")
        elif standing is not None and key not in ahead and not standing.landed:
            return Unready(Obstacle.LACKING, _absent(key, standing, world))
    return waits


def _absent(key: str, standing: Standing, world: World) -> str:
    """Why a needed change is not ahead."""
    if not standing.open:
        return f"the needed change {key} was {'closed: ' + standing.reason if standing.reason else 'withdrawn'}"
    if world.dependent and (why := unmet(world.pipeline, standing)):
        return f"a change it needs is not ready: {why}"
    return f"the needed change {key} has not landed and is not ahead"


# --- requirements


def refused(pipeline: Pipeline, standing: Standing | None, now_ms: int | None = None) -> str:
    """Why the pipeline's requirements keep a change out; empty when they do not.  `now_ms`: as of `unmet`."""
    if standing is None:
        return "it is not known at its connection"
    return unmet(pipeline, standing, now_ms) if standing.change.is_change else ""


def guarded(pipeline: Pipeline) -> bool:
    """Does what is let in land, or see what only reviewed changes may?  Then asking by hand replaces no requirement."""
    return bool(pipeline.lands) or pipeline.post_review


def unfit(change: Change, world: World) -> str:
    """Why this patchset does not meet the requirements of the pipeline; empty when it does."""
    if not change.is_change:
        return ""
    standing = world.standings.get(change.key)
    if standing is not None and standing.change.commit != change.commit:
        return f"{change.id} of {change.project} is not the current patchset"
    if standing is not None and standing.landed and world.dependent:
        return f"{change.id} of {change.project} has landed already"
    return refused(world.pipeline, standing, world.now_ms)


def unmet(pipeline: Pipeline, standing: Standing, now_ms: int | None = None) -> str:
    """Which of the pipeline's requirements keeps a change out; empty when none does.  `now_ms`: the moment at which it
    is to come in, of a change that does."""
    change = standing.change
    if change.connection in pipeline.require_approved and not standing.is_approved:
        return f"{change.key} is not approved"
    if why := _said(pipeline, standing, now_ms):
        return why
    facts = {"approved": standing.is_approved, "open": standing.open, "current-patchset": True}
    for name, wanted in pipeline.require.get(change.connection, {}).items():
        if name in facts and facts[name] != wanted:
            return f"{change.key} is {'not ' if wanted else ''}{name}"
    for name, unwanted in pipeline.reject.get(change.connection, {}).items():
        if name in facts and facts[name] == unwanted:
            return f"{change.key} is {'' if unwanted else 'not '}{name}"
    return ""


def _said(pipeline: Pipeline, standing: Standing, now_ms: int | None) -> str:
    """What keeps it out of what people say of it, by their names."""
    connection, vetoed = standing.change.connection, bool(standing.vetoes)
    wanted, unwanted = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    if vetoed and heeds_vetoes(pipeline, connection):
        return f"{standing.change.key} is vetoed by {', '.join(sorted(word.who for word in standing.vetoes))}"
    if not vetoed and (wanted.get("veto") is True or unwanted.get("veto") is False):
        return f"{standing.change.key} is vetoed by nobody"
    return lacking(standing, wanted["approvals"], now_ms) if "approvals" in wanted else ""


def heeds_vetoes(pipeline: Pipeline, connection: str) -> bool:
    """Does a veto keep changes of this connection out?"""
    wanted, unwanted = pipeline.require.get(connection, {}), pipeline.reject.get(connection, {})
    return wanted.get("veto") is False or unwanted.get("veto") is True


def leases(item: Item, world: World) -> tuple[str, ...]:
    """The refs of the approvals that let it in, which must be there at the moment of landing."""
    standing = world.standings.get(item.change.key)
    wanted = world.pipeline.require.get(item.change.connection, {}).get("approvals")
    if wanted is None or standing is None or item.exempt:
        return ()
    return tuple(word.ref for word in counted(standing, wanted)[: int(wanted.get("count", 1))])


def needs_approval(item: Item, pipeline: Pipeline) -> bool:
    """Must the server itself say, at the moment of landing, that the change is approved?"""
    connection = item.change.connection
    required = connection in pipeline.require_approved or pipeline.require.get(connection, {}).get("approved") is True
    return required and not item.exempt and item.change.is_change


# --- what a change needs


class Needs(NamedTuple):
    changes: tuple[Change, ...]
    """Open changes that must go first, the most needed first, without the change itself."""
    problems: tuple[str, ...]


def needs(change: Change, world: World) -> Needs:
    """Everything `change` needs, through others too; what has landed is no longer needed, what nobody has proposed not
    yet."""
    ordered: dict[str, Change] = {}
    problems: list[str] = [
        f"Depends-On: {text}: no branch of a project is known by that name; it is written <project>/<branch>/<topic>"
        for text in change.unresolved
    ]
    _visit(change, world, (), ordered, problems)
    ordered.pop(change.key, None)
    return Needs(tuple(ordered.values()), tuple(dict.fromkeys(problems)))


def _visit(
    change: Change, world: World, path: tuple[str, ...], ordered: dict[str, Change], problems: list[str]
) -> None:
    if change.key in path:
        circle = (*path[path.index(change.key) :], change.key)
        problems.append(
            f"Depends-On goes in a circle: {' -> '.join(circle)}; changes that need each other are refused, whatever "
            "their queue allows: make them one, or take one of the footers out"
        )
        return
    if change.key in ordered:
        return
    if len(path) >= NEEDS_MAX or len(ordered) >= NEEDS_MAX:
        problems.append(f"{change.key} needs more than {NEEDS_MAX} changes")
        return
    for key in change.needs:
        standing = world.standings.get(key)
        if standing is None or standing.landed:
            continue  # what nobody proposed counts once somebody does
        elif not standing.open:
            problems.append(f"Depends-On: {key}: {standing.reason or 'that change was abandoned'}")
        else:
            _visit(standing.change, world, (*path, change.key), ordered, problems)
    ordered[change.key] = change


def needed_by(key: str, world: World) -> list[Change]:
    """Open changes whose footers name `key`, in order of their keys."""
    found = [s.change for s in world.standings.values() if s.open and key in s.change.needs]
    return sorted(found, key=lambda change: change.key)
