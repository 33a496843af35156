"""The driver: see `ports.forge.Forge`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlsplit

import pygit2

from headgate.adapters.forges.gitea.client import Broken, Client
from headgate.adapters.forges.gitea.hook import hint
from headgate.adapters.forges.gitea.landing import Lander
from headgate.adapters.forges.gitea.looking import Source
from headgate.adapters.forges.gitea.pull import look
from headgate.adapters.forges.gitea.standing import GiteaStands
from headgate.adapters.forges.gitea.telling import GiteaTeller
from headgate.adapters.forges.rest import Denied, NotThere, Rejected
from headgate.adapters.forges.watching import EVERY_S, Watching
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.looking.names import HEADS
from headgate.config.tenants import TenantProject
from headgate.gate.change import Standing, numbered
from headgate.gate.work import Landing, LandRequest
from headgate.map.telling import Posting
from headgate.ports.forge import Abilities, Hint, Ignored, Landed, NotLanded, Sighting
from headgate.ports.reporter import ReporterAway, ReportPutOff

_NAME = r"(?!\.{1,2}/)[\w.-]{1,100}"
_PULL = re.compile(rf"/({_NAME}/{_NAME})/(?:pulls?|issues)/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)


class GiteaForge:
    """One Gitea or Forgejo; see `ports.forge.Forge`."""

    can = Abilities(
        lands="merge",
        votes=True,
        labels=True,
        statuses=True,
        drafts=True,
        file_comments=True,
        webhooks=True,
        protection=True,
    )

    def __init__(self, client: Client, engine: Callable[[], GitEngine], every_s: float = EVERY_S) -> None:
        self.name = client.account.name
        self._client, self._engine = client, engine
        self._stands = GiteaStands(client, engine)
        self._watching = Watching(Source(client, engine, self._stands), every_s)
        self._teller = GiteaTeller(client)
        self._lander = Lander(client, self._head_of)

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
        us = frozenset(filter(None, (self._client.login,)))
        return hint(self._client.account, us, self._watching.looks_at, headers, body)

    def named(self, url: str) -> str:
        """See `ports.forge.Forge`."""
        account = self._client.account
        try:
            parts = urlsplit(url)
            hosts = {account.host, urlsplit(account.web).hostname, account.canonical_hostname}
            ours = parts.hostname in hosts or parts.netloc in hosts
        except ValueError:  # anybody can write it: brackets that do not close, letters that stand for a slash
            return ""
        if not ours or not parts.path.startswith(f"{account.path}/"):
            return ""
        found = _PULL.fullmatch(parts.path.removeprefix(account.path))
        return numbered(account.canonical(found[1]), str(int(found[2]))) if found is not None else ""

    async def look_up(self, key: str) -> Standing | None:
        """See `ports.forge.Forge`."""
        project, _, number = key.rpartition("#")
        short = self._client.account.short(project)
        if not number.isdecimal() or short == project:
            return None
        try:
            pull = await look(self._client, short, int(number), "")
            us, none = await self._client.us(), dict[str, str]()
            standing, _ = await self._stands.of(self._client.key, project, pull, None, us, none, first=True)
            return standing
        except (NotThere, Denied):
            return None
        except Rejected as error:
            raise ReporterAway(f"{key} cannot be looked up: {error}") from error

    async def report(self, posting: Posting) -> None:
        """See `ports.forge.Forge`."""
        try:
            await self._teller.tell(posting)
        except Broken as error:
            raise ReportPutOff(str(error)) from error

    async def land(self, work: LandRequest, part: Landing) -> Landed | NotLanded:
        """See `ports.forge.Forge`."""
        try:
            return await self._lander.land(work, part)
        except Broken as error:
            raise ReportPutOff(str(error)) from error

    async def _head_of(self, project: str, branch: str) -> str:
        ref = HEADS + branch
        try:
            return (await self._engine().mirror(project, self.name).remote.refs(ref)).get(ref, "")
        except (GitError, OSError, pygit2.GitError) as error:
            raise ReporterAway(f"{project} cannot be read: {error}") from error

    async def close(self) -> None:
        """Talk with nobody any more."""
        await self._client.close()
