"""Limit what one turn examines, and leave the rest for the next: these are shortcuts, and none decides anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headgate.gate.actions import Action, Record
from headgate.gate.model import Queue, State
from headgate.gate.trial import alone

LEAVES_MAX = 10
"""Limit of items that leave in one turn, because their ends are recorded in one commit; what is behind them waits for
the next turn."""
WORKED_ON_MAX = 200
"""Limit of changes of one project that are worked on at once where each is tested alone; the others wait for their
turn."""


@dataclass(slots=True)
class WindowRoom:
    """Count the changes of each project that are worked on in queues with a single change each."""

    taken: Counter[str]

    @classmethod
    def of(cls, state: State) -> WindowRoom:
        return cls(Counter(queue.name for queue in state.queues if queue.dynamic and _begun(queue)))

    def admits(self, queue: Queue) -> bool:
        """Return whether the queue's change is worked on or may be; if it is yet to begin, take a place for it."""
        if not queue.dynamic or _begun(queue):
            return True
        if self.taken[queue.name] >= WORKED_ON_MAX:
            return False
        self.taken[queue.name] += 1
        return True


def _begun(queue: Queue) -> bool:
    return any(item.buildset is not None for item in queue.items)


def unfinished(actions: list[Action]) -> bool:
    """Return whether as many items have left as may leave in one turn, so that more may have to leave in the next."""
    return sum(isinstance(action, Record) for action in actions) >= LEAVES_MAX


def alone_and_begun(queue: Queue) -> bool:
    """Return whether only a result, or a fact from outside, can change the queue, whatever happens in other queues."""
    if not queue.dynamic or len(queue.items) != 1:
        return False
    buildset = queue.items[0].buildset
    carries = bool(queue.items[0].earlier)
    # An item with carried builds must be examined, because they have to be given up in time.
    return buildset is not None and buildset.begun and not buildset.waits and not carries and alone(queue.items[0])


def waits_for_room(queue: Queue, room: WindowRoom) -> bool:
    """Return whether the queue's change, tested alone and not begun, still waits for others to leave."""
    if not queue.dynamic or len(queue.items) != 1 or _begun(queue):
        return False
    return room.taken[queue.name] >= WORKED_ON_MAX and alone(queue.items[0])
