"""Room that is kept for waiting requests. Pure.

Later requests may overtake a waiting request only as far as they leave it the room that it wants: of a limit of 5,
where a request waits for 3, those behind it may have 2. So it waits only for machines that were there before it. When
it waits for long, others may use all of the room for a moment, again and again, at growing intervals: room is not left
empty for hours, and sooner or later it is kept for longer than builds last. Nothing is kept for a request if machines
that people hold, or other users of an account, leave too little in any case; this also holds for its project's room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.inventory.choice import choose
from headgate.ports.cloud import Amounts
from headgate.services.nodes.machines.demand import add

PARTS = 1e-6
"""Amounts below this count as nothing, because shares of a machine do not add up exactly."""
KEPT_FIRST_S, KEPT_MAX_S = 300.0, 14_400.0
"""First and longest time for which room is kept; it doubles each time."""
OPEN_S = 60.0
"""Time between two such periods during which others may take the room."""


def is_open(waited_s: float) -> bool:
    """Return whether others may overtake a request that has waited for this time."""
    kept_s = KEPT_FIRST_S
    while waited_s >= kept_s:
        waited_s -= kept_s
        if waited_s < OPEN_S:
            return True
        waited_s -= OPEN_S
        kept_s = min(2 * kept_s, KEPT_MAX_S)
    return False


@dataclass(slots=True)
class ReservedRoom:
    """Reserve room of one limit for one request."""

    room: Mapping[str, float]
    wanted: Mapping[str, float]
    behind: dict[str, float] = field(default_factory=dict)
    """Amounts of the requests behind this one."""
    mains: set[str] = field(default_factory=set)
    """Machines of which these requests have slots: each counts once, for as long as one of the requests has a slot of
    it."""

    def leaves(self, more: Amounts, joined: Mapping[str, Amounts]) -> bool:
        """Return whether giving this much more to later requests leaves enough room; `joined` maps machines of which
        they then have slots to the amounts of these machines."""
        total = dict(more)
        for main, uses in joined.items():
            # Another slot of a machine that later requests have already costs nothing more.
            add(total, {kind: 0.0 if main in self.mains else much for kind, much in uses.items()})
        kinds = {kind for uses in (more, *joined.values()) for kind, much in uses.items() if much > 0}
        return all(
            self.behind.get(kind, 0.0) + total[kind] + self.wanted.get(kind, 0.0) <= self.room[kind] + PARTS
            for kind in kinds
            # Only kinds that this request wants are kept: in others, later requests do it no harm.
            if kind in self.room and self.wanted.get(kind)
        )

    def take(self, more: Amounts, joined: Mapping[str, Amounts]) -> None:
        """Count the amounts that later requests have now."""
        add(self.behind, more)
        for main, uses in joined.items():
            if main not in self.mains:
                add(self.behind, uses)
        self.mains.update(joined)


@dataclass(slots=True)
class KeptHosts:
    """Reserve listed machines for one request."""

    wanted: Sequence[Sequence[str]]
    """For each node, the machines that can serve it, free or not."""
    behind: set[str] = field(default_factory=set)

    def leaves(self, more: Collection[str]) -> bool:
        """Return whether giving these machines to later requests leaves enough others."""
        # Looked at first, because the matching is slow and most requests want other machines.
        touched = any(id in several for several in self.wanted for id in more)
        return not touched or choose(self.wanted, self.behind.union(more)) is not None
