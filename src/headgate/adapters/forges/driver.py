"""Hold what drivers of forges with numbered changes and REST share: see `ports.forge.Forge`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from headgate.adapters.forges.accounts import OnTheWeb
from headgate.adapters.forges.rest import ForgeDenied, ForgeServerError, NotThere, Rejected, Rest
from headgate.adapters.forges.watch import Watching
from headgate.config.tenants import TenantProject
from headgate.gate.change import ChangeState, numbered
from headgate.gate.work import Landing, LandRequest
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import Abilities, Hint, MergeLanded, NotLanded, Sighting
from headgate.ports.reporter import ReportPutOff


class Tells(Protocol):
    """Report on changes."""

    async def tell(self, outgoing: OutboxMessage) -> None: ...


class Lands(Protocol):
    """Merge changes."""

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded: ...


class RestDriver(ABC):
    """Watch one forge, report to it and merge there; verifying deliveries is up to the driver."""

    can: Abilities
    page: re.Pattern[str]
    """Pattern of the path of a change's page, with the project's name and the change's number."""

    def __init__(self, account: OnTheWeb, rest: Rest, watching: Watching, teller: Tells, lander: Lands) -> None:
        self.name = account.name
        self._at, self._rest = account, rest
        self._watching, self._teller, self._lander = watching, teller, lander

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """See `ports.forge.Watch`."""
        self._watching.look_at(projects)

    def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """See `ports.forge.Watch`."""
        return self._watching.sightings(known, heads, refs)

    def stir(self, hint: Hint) -> None:
        """See `ports.forge.Forge`."""
        self._watching.stir(hint)

    def named(self, url: str) -> str:
        """See `ports.forge.Forge`."""
        found = self.page.fullmatch(self._at.below(url))
        # `int` drops leading zeros, so that one change has one key.
        return numbered(self._at.canonical(found[1]), str(int(found[2]))) if found is not None else ""

    async def look_up(self, key: str) -> ChangeState | None:
        """See `ports.forge.Forge`."""
        project, _, number = key.rpartition("#")
        # An unshortened name belongs to another connection.
        if not number.isdecimal() or self._at.short(project) == project:
            return None
        try:
            return await self.now(project, int(number))
        except (NotThere, ForgeDenied):
            return None
        except Rejected as error:
            raise ReportPutOff(f"{key} cannot be looked up: {error}") from error

    @abstractmethod
    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change of a project (canonical name). Raise NotThere, ForgeDenied, Rejected,
        ReporterAway."""

    async def report(self, outgoing: OutboxMessage) -> None:
        """See `ports.forge.Forge`."""
        try:
            await self._teller.tell(outgoing)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        """See `ports.forge.Forge`."""
        try:
            return await self._lander.land(work, part)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()
