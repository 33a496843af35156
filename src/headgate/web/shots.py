"""Keep the latest status of each tenant: made anew once for each change that somebody looks at, whoever asks, and only
as often as its cost allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.config.dynamic import TenantLayouts
from headgate.web.estimates import Estimates
from headgate.web.places import ItemPlaces
from headgate.web.shapes import ProblemShape, StatusShape
from headgate.web.status import Configured, Status
from headgate.web.viewers.pieces import EncodedStatus, StatusEncoder

SHARE, BURST_S = 0.02, 0.2
"""Processor time for statuses of each tenant: this share of it, after a burst of this many seconds. Statuses are made
on request within it, so any number of clients costs a fiftieth of the loop; beyond it the last status is shown.
"""
LEAST_S = 0.005
"""Smallest cost that a status counts as, for its encoding, compression and sending. It limits them to four a second
where they are cheap, which people cannot tell from more.
"""


@dataclass(slots=True)
class Spent:
    """Account for the processor time that the statuses of one tenant have cost."""

    left_s: float = BURST_S
    """Processor time left, in seconds; negative when more was used than allowed."""
    at_s: float = 0.0
    """Time at which that was computed, by the clock of the process."""

    def may(self, now_s: float) -> bool:
        """Return whether another status may be made, and count it."""
        self.left_s = min(BURST_S, self.left_s + SHARE * (now_s - self.at_s))
        self.at_s = now_s
        if self.left_s <= 0.0:
            return False
        self.left_s -= LEAST_S
        return True

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the processor time of the block, which must not wait for anything."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            # `may` has charged the smallest cost already, before the work, so only what exceeds it is charged here.
            self.left_s -= max(0.0, time.thread_time() - began_s - LEAST_S)

    def once_more(self) -> None:
        """Allow one more status, whatever the earlier ones cost."""
        self.left_s = max(self.left_s, SHARE)


Problems = tuple[ProblemShape, ...]


@dataclass(slots=True)
class Shot:
    """Hold the status of a tenant as last read."""

    status: StatusShape
    encoded: EncodedStatus
    moves: int
    layouts: TenantLayouts
    loaded: bool
    away: Problems
    places: ItemPlaces | None = None
    """Places of the changes in the status; None until first requested."""

    @property
    def tag(self) -> str:
        """Return a tag that differs for different statuses."""
        return self.encoded.tag


@dataclass(slots=True)
class Shots:
    """Make statuses. `away` is the problem that the store cannot be reached, `problems` are those of every tenant."""

    status: Status
    estimates: Estimates
    away: Callable[[], Problems]
    problems: Callable[[], Problems]
    _latest: dict[str, Shot] = field(default_factory=dict)
    _spent: dict[str, Spent] = field(default_factory=dict)
    _encoders: dict[str, StatusEncoder] = field(default_factory=dict)

    async def of(self, configured: Configured) -> Shot:
        """Return the current status, rebuilt only if the mirror, configuration or availability of the store changed."""
        known, loaded = self._latest.get(configured.tenant.name), configured.loaded.is_set()
        if known is not None and known.loaded == loaded:
            same = (known.moves, known.away) == (self.status.context.mirror.moves, self.away())
            if same and known.layouts is configured.layouts:
                return known
        spent = self._spent.setdefault(configured.tenant.name, Spent())
        # Without a known status one is made even beyond the budget: there is nothing else to show.
        if not spent.may(time.monotonic()) and known is not None and known.loaded == loaded:
            return known
        found = self._made(configured, spent)
        # The first status names the jobs whose estimates are missing; the second has what the history said of them.
        if await self.estimates.learn():
            found = self._made(configured, spent)
        return found

    def _made(self, configured: Configured, spent: Spent) -> Shot:
        """Return a new status, which all requests share that arrive meanwhile."""
        with spent.counting():
            name, moves = configured.tenant.name, self.status.context.mirror.moves
            status = self.status.of(name, self.estimates)
            status = replace(status, problems=(*self.problems(), *status.problems))
            encoded = self._encoders.setdefault(name, StatusEncoder()).encoded(status)
            found = self._latest[name] = Shot(
                status, encoded, moves, configured.layouts, configured.loaded.is_set(), self.away()
            )
            return found

    def stale(self) -> None:
        """Have every status checked for changes at the next request, however recent the last check is."""
        for spent in self._spent.values():
            spent.once_more()
