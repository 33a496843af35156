"""Alarms: circles of several repositories of which a part has landed and the rest could not, until the rest has landed;
changes that landed as another tree than the tested one.  Somebody may also end an alarm by hand."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.gate.actions import Action, Record
from headgate.gate.alarms import Parted, Strayed
from headgate.gate.change import Change
from headgate.gate.model import Item, State
from headgate.gate.world import World

PARTED_MAX = 1_000
"""Limit of alarms of each kind that a pipeline remembers; the oldest are dropped."""


def noted(state: State, actions: Sequence[Action], world: World) -> State:
    """Return the state with an alarm for each item that leaves after only a part of it has landed, and without the
    alarms whose missing changes have landed by now."""
    # An item that leaves successfully has landed as a whole.
    ended = (action.item for action in actions if isinstance(action, Record) and action.result != "SUCCESS")
    alarms = {one.item: one for one in state.parted}
    # An alarm that exists keeps its time.
    alarms |= {item.id: _alarm(item, world) for item in ended if item.landed and item.id not in alarms}
    remaining = tuple(one for one in alarms.values() if not all(_has_landed(key, world) for key in one.missing))
    return state if remaining == state.parted else replace(state, parted=remaining[-PARTED_MAX:])


def _alarm(item: Item, world: World) -> Parted:
    landed = {one.change.key: one.commit for one in item.landed}
    return Parted(item.id, landed, tuple(change.key for change in item.left), world.now_ms)


def _has_landed(key: str, world: World) -> bool:
    known = world.change_states.get(key)
    return known is not None and known.landed


def dealt_with(state: State, key: str) -> State:
    """Return the state without the alarms that concern the change with this key."""
    parted = tuple(one for one in state.parted if key not in (*one.landed, *one.missing))
    strayed = tuple(one for one in state.strayed if key != one.key)
    same = (parted, strayed) == (state.parted, state.strayed)
    return state if same else replace(state, parted=parted, strayed=strayed)


def strayed(state: State, change: Change, commit: str, now_ms: int) -> State:
    """Return the state with an alarm: nobody tested what the branch of the change has now."""
    others = (one for one in state.strayed if one.key != change.key)
    alarm = Strayed(change.key, commit, change.branch, now_ms)
    return replace(state, strayed=(*others, alarm)[-PARTED_MAX:])
