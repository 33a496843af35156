"""Keep the latest status of each tenant: made anew once for each change that somebody looks at, whoever asks, and only
as often as its cost allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.config.dynamic import TenantLayouts
from headgate.web.budget import Spent
from headgate.web.estimates import Estimates
from headgate.web.places import ItemPlaces
from headgate.web.shapes import StatusShape, TroubleShape
from headgate.web.status import Configured, Status
from headgate.web.viewers.pieces import EncodedStatus, StatusEncoder

Troubles = tuple[TroubleShape, ...]


@dataclass(slots=True)
class Shot:
    """Hold the status of a tenant as last read."""

    status: StatusShape
    encoded: EncodedStatus
    moves: int
    layouts: TenantLayouts
    loaded: bool
    away: Troubles
    places: ItemPlaces | None = None
    """Of the changes in it, once somebody has asked for that."""

    @property
    def tag(self) -> str:
        """Return what is equal for equal statuses alone."""
        return self.encoded.tag


@dataclass(slots=True)
class Shots:
    """Make statuses. `away` is the trouble that the store cannot be reached, `troubles` are those of every tenant."""

    status: Status
    estimates: Estimates
    away: Callable[[], Troubles]
    troubles: Callable[[], Troubles]
    _latest: dict[str, Shot] = field(default_factory=dict)
    _spent: dict[str, Spent] = field(default_factory=dict)
    _encoders: dict[str, StatusEncoder] = field(default_factory=dict)

    async def of(self, configured: Configured) -> Shot:
        """Return the status now, made anew only if the mirror, the configuration or the reach of the store changed."""
        known, loaded = self._latest.get(configured.tenant.name), configured.loaded.is_set()
        if known is not None and known.loaded == loaded:
            same = (known.moves, known.away) == (self.status.context.mirror.moves, self.away())
            if same and known.layouts is configured.layouts:
                return known
        spent = self._spent.setdefault(configured.tenant.name, Spent())
        if not spent.may(time.monotonic()) and known is not None and known.loaded == loaded:
            return known
        found = self._made(configured, spent)
        if await self.estimates.learn():
            found = self._made(configured, spent)
        return found

    def _made(self, configured: Configured, spent: Spent) -> Shot:
        """Return the status now, which is at once that of everybody who asks meanwhile."""
        with spent.counting():
            name, moves = configured.tenant.name, self.status.context.mirror.moves
            status = self.status.of(name, self.estimates)
            status = replace(status, troubles=(*self.troubles(), *status.troubles))
            encoded = self._encoders.setdefault(name, StatusEncoder()).encoded(status)
            found = self._latest[name] = Shot(
                status, encoded, moves, configured.layouts, configured.loaded.is_set(), self.away()
            )
            return found

    def stale(self) -> None:
        """Have every status looked at again for whoever asks next, however lately somebody did."""
        for spent in self._spent.values():
            spent.once_more()
