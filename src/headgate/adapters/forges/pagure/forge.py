"""The driver: see `ports.forge.Forge`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from headgate.adapters.forges.branches import BranchReader
from headgate.adapters.forges.driver import RestDriver
from headgate.adapters.forges.pagure.changestate import PagureStands
from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.pagure.hook import hint
from headgate.adapters.forges.pagure.lander import PagureLander
from headgate.adapters.forges.pagure.poll import PagureSource
from headgate.adapters.forges.pagure.pull import look
from headgate.adapters.forges.pagure.reporter import PagureTeller
from headgate.adapters.forges.pagure.secrets import PagureSecrets
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.engine import GitEngine
from headgate.gate.change import ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored, Unsure

_NAME = r"(?!\.{1,2}/)[\w.+-]{1,100}"


class PagureForge(RestDriver):
    """Connect to one Pagure; see `ports.forge.Forge`."""

    page = re.compile(rf"/((?:fork/{_NAME}/)?(?:{_NAME}/)?{_NAME})/pull-request/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)
    can = Abilities(lands="merge", votes=True, labels=True, statuses=True, webhooks=True)

    def __init__(self, client: PagureClient, engine: Callable[[], GitEngine], every_s: float = EVERY_S) -> None:
        self._client, self._stands, self._secrets = client, PagureStands(client, engine), PagureSecrets(client)
        watching = Watching(PagureSource(client, engine, self._stands), every_s)
        lander = PagureLander(client, BranchReader(engine, client.account.name))
        super().__init__(client.account, client, watching, PagureTeller(client), lander)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored | Unsure:
        """See `ports.forge.Forge`."""
        us = frozenset(filter(None, (self._client.login,)))
        return hint(self._client.account, self._secrets, us, self._watching.looks_at, headers, body)

    async def now(self, project: str, number: int) -> ChangeState:
        """See `RestDriver`."""
        pull = await look(self._client, self._client.account.short(project), number)
        us, none = await self._client.us(), dict[str, str]()
        change_state, _ = await self._stands.of(self._client.key, project, pull, None, us, none, first=True)
        return change_state
