"""The driver: see `ports.forge.Forge`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from headgate.adapters.forges.branches import BranchReader
from headgate.adapters.forges.driver import RestDriver
from headgate.adapters.forges.gitea.changestate import GiteaStands
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.gitea.hook import hint
from headgate.adapters.forges.gitea.lander import GiteaLander
from headgate.adapters.forges.gitea.poll import GiteaSource
from headgate.adapters.forges.gitea.pull import look
from headgate.adapters.forges.gitea.reporter import GiteaTeller
from headgate.adapters.forges.rest import ForgeServerError
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.engine import GitEngine
from headgate.gate.change import Change, ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored
from headgate.ports.reporter import ReportPutOff

_NAME = r"(?!\.{1,2}/)[\w.-]{1,100}"


class GiteaForge(RestDriver):
    """Connect to one Gitea or Forgejo; see `ports.forge.Forge`."""

    page = re.compile(rf"/({_NAME}/{_NAME})/(?:pulls?|issues)/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)

    can = Abilities(
        lands="merge",
        votes=True,
        labels=True,
        statuses=True,
        drafts=True,
        file_comments=True,
        webhooks=True,
        any_case=True,
        edits=True,
        protection=True,
    )

    def __init__(
        self, client: GiteaClient, engine: Callable[[], GitEngine], every_s: float = EVERY_S, lands: str = "merge"
    ) -> None:
        """Make a driver. For `lands`, see `ports.forge.Abilities`."""
        self.can = replace(self.can, lands=lands)
        self._own = GiteaTeller(client)
        self._client, self._stands = client, GiteaStands(client, engine)
        watching = Watching(GiteaSource(client, engine, self._stands), every_s)
        lander = GiteaLander(client, BranchReader(engine, client.account.name))
        super().__init__(client.account, client, watching, self._own, lander)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """See `ports.forge.Forge`."""
        us = frozenset(filter(None, (self._client.login,)))
        return hint(self._client.account, us, self._watching.looks_at, headers, body)

    async def conclude(self, change: Change, commit: str) -> None:
        """See `ports.forge.Shows`."""
        try:
            await self._own.conclude(change, commit)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def now(self, project: str, number: int) -> ChangeState:
        """See `RestDriver`."""
        pull = await look(self._client, self._client.account.short(project), number, "")
        us, none = await self._client.us(), dict[str, str]()
        change_state, _ = await self._stands.of(self._client.key, project, pull, None, us, none, first=True)
        return change_state
