"""The driver: see `ports.forge.Forge`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from headgate.adapters.forges.driver import RestDriver
from headgate.adapters.forges.gitlab.changestate import GitLabChangeStateReader
from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.gitlab.hook import hint
from headgate.adapters.forges.gitlab.lander import GitLabLander
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.gitlab.poll import GitLabSource
from headgate.adapters.forges.gitlab.reporter import GitLabReporter
from headgate.adapters.forges.gitlab.request import look
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.engine import GitEngine
from headgate.gate.change import Change, ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored

_NAME = r"(?!\.{1,2}/)[\w.][\w.-]{0,254}"


class GitLabForge(RestDriver):
    """Connect to one GitLab; see `ports.forge.Forge`."""

    page = re.compile(rf"/((?:{_NAME}/){{1,20}}?{_NAME})(?:/-)?/merge_requests/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)

    can = Abilities(
        lands="merge",
        votes=True,
        labels=True,
        statuses=True,
        drafts=True,
        threads=True,
        webhooks=True,
        any_case=True,
        edits=True,
        protection=True,
    )

    def __init__(
        self,
        client: GitLabClient,
        people: People,
        engine: Callable[[], GitEngine],
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.time,
        lands: str = "merge",
    ) -> None:
        """Make a driver. For `lands`, see `ports.forge.Abilities`."""
        self.can = replace(self.can, lands=lands)
        self._own = GitLabReporter(client, people)
        self._client, self._people, self._now_s = client, people, now_s
        self._stands = GitLabChangeStateReader(client, people, engine)
        watching = Watching(GitLabSource(client, people, engine, self._stands), every_s)
        super().__init__(client.account, client, watching, self._own, GitLabLander(client, engine))

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """See `ports.forge.Forge`."""
        return hint(self._client.account, self._people.name, self._watching.looks_at, headers, body, self._now_s())

    async def conclude(self, change: Change, commit: str) -> None:
        """See `ports.forge.Shows`."""
        await self._own.conclude(change, commit)

    async def now(self, project: str, number: int) -> ChangeState:
        """See `RestDriver`."""
        request = await look(self._client, project, number)
        change_state, _ = await self._stands.of(request, None, await self._people.us(), {}, first=True)
        return change_state
