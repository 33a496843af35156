"""The driver: see `ports.forge.Forge`."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlsplit

from headgate.adapters.forges.gitlab.client import Client
from headgate.adapters.forges.gitlab.hook import hint
from headgate.adapters.forges.gitlab.landing import Lander
from headgate.adapters.forges.gitlab.looking import Source
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.gitlab.request import look
from headgate.adapters.forges.gitlab.standing import Stands
from headgate.adapters.forges.gitlab.telling import Teller
from headgate.adapters.forges.rest import Denied, NotThere, Rejected
from headgate.adapters.forges.watching import EVERY_S, Watching
from headgate.adapters.git.engine import GitEngine
from headgate.config.tenants import TenantProject
from headgate.gate.change import Standing, numbered
from headgate.gate.work import Landing, LandRequest
from headgate.map.telling import Posting
from headgate.ports.forge import Abilities, Hint, Ignored, Landed, NotLanded, Sighting
from headgate.ports.reporter import ReporterAway

_NAME = r"(?!\.{1,2}/)[\w.][\w.-]{0,254}"
_REQUEST = re.compile(rf"/((?:{_NAME}/){{1,20}}?{_NAME})(?:/-)?/merge_requests/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)


class GitLabForge:
    """One GitLab; see `ports.forge.Forge`."""

    can = Abilities(
        lands="merge", votes=True, labels=True, statuses=True, drafts=True, threads=True, webhooks=True, protection=True
    )

    def __init__(
        self,
        client: Client,
        people: People,
        engine: Callable[[], GitEngine],
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.name = client.account.name
        self._client, self._people, self._now_s = client, people, now_s
        self._stands = Stands(client, people, engine)
        self._watching = Watching(Source(client, people, engine, self._stands), every_s)
        self._teller, self._lander = Teller(client, people), Lander(client, engine)

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """See `ports.forge.Watch`."""
        self._watching.look_at(projects)

    def sightings(
        self,
        known: Mapping[str, Standing],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """See `ports.forge.Watch`."""
        return self._watching.sightings(known, heads, refs)

    def stir(self, hint: Hint) -> None:
        """See `ports.forge.Forge`."""
        self._watching.stir(hint)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """See `ports.forge.Forge`."""
        return hint(self._client.account, self._people.name, self._watching.looks_at, headers, body, self._now_s())

    def named(self, url: str) -> str:
        """See `ports.forge.Forge`."""
        account = self._client.account
        root = urlsplit(account.web)
        try:
            parts = urlsplit(url)
            here = parts.hostname in {root.hostname, account.canonical_hostname} or parts.netloc == root.netloc
        except ValueError:  # anybody can write it: brackets that do not close, letters that stand for a slash
            return ""
        if not here or not parts.path.startswith(root.path):
            return ""
        found = _REQUEST.fullmatch(parts.path.removeprefix(root.path))
        return numbered(account.canonical(found[1]), str(int(found[2]))) if found is not None else ""

    async def look_up(self, key: str) -> Standing | None:
        """See `ports.forge.Forge`."""
        project, _, number = key.rpartition("#")
        if not number.isdecimal() or self._client.account.short(project) == project:
            return None
        try:
            request = await look(self._client, project, int(number))
            standing, _ = await self._stands.of(request, None, await self._people.us(), {}, first=True)
            return standing
        except (NotThere, Denied):
            return None
        except Rejected as error:
            raise ReporterAway(f"{key} cannot be looked up: {error}") from error

    async def report(self, posting: Posting) -> None:
        """See `ports.forge.Forge`."""
        await self._teller.tell(posting)

    async def land(self, work: LandRequest, part: Landing) -> Landed | NotLanded:
        """See `ports.forge.Forge`."""
        return await self._lander.land(work, part)

    async def close(self) -> None:
        """Talk with nobody any more."""
        await self._client.close()
