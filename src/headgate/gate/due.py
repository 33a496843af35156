"""Tell when a pipeline has something to do at a set time, without any event."""

from __future__ import annotations

from headgate.gate.carry import CARRIED_MAX_MS
from headgate.gate.model import State


def left_ms(state: State, now_ms: int) -> int | None:
    """Return the milliseconds until a comment is due or a carried build is given up, 0 or less if one is overdue; None
    if nothing is scheduled."""
    comments_due_ms = (one.due_ms for one in state.refusals if one.due_ms)
    carried_due_ms = (one.since_ms + CARRIED_MAX_MS for _, item in state.items() for one in item.carried)
    return min((due_ms - now_ms for due_ms in (*comments_due_ms, *carried_due_ms)), default=None)


def is_due(state: State, now_ms: int) -> bool:
    """Return whether any of that is due now."""
    left = left_ms(state, now_ms)
    return left is not None and left <= 0
