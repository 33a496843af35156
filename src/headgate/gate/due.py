"""Do what a pipeline has to do at a time that it knows, whatever happens."""

from __future__ import annotations

from headgate.gate.carry import CARRIED_MAX_MS
from headgate.gate.model import State


def left_ms(state: State, now_ms: int) -> int | None:
    """Return after how long something is to be said or given up, 0 or less where it is time; None: nothing waits for
    its time."""
    told = (one.due_ms for one in state.refusals if one.due_ms)
    given_up = (one.since_ms + CARRIED_MAX_MS for _, item in state.items() for one in item.carried)
    return min((due_ms - now_ms for due_ms in (*told, *given_up)), default=None)


def is_due(state: State, now_ms: int) -> bool:
    """Return whether it is time for any of that."""
    left = left_ms(state, now_ms)
    return left is not None and left <= 0
