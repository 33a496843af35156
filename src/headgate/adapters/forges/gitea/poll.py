"""Look at a Gitea: at what is open, and at one pull request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headgate.adapters.forges.gitea.changestate import GiteaStands
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.gitea.pull import look
from headgate.adapters.forges.happenings import OLD_MS, ReportMark
from headgate.adapters.forges.poll import Found, Guarded, KnownChanges, ProjectLook, Words, in_turn, listed
from headgate.adapters.forges.rest import ListTooLong, Query
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import Names
from headgate.config.forges.facts import ForgeEvent
from headgate.config.tenants import Protection
from headgate.gate.change import ChangeState
from headgate.ports.forge import Hint

_HOLDS = "what was known before holds; where nothing was, every branch counts as protected"


async def protection(client: GiteaClient, project: str) -> Guarded:
    """Return Gitea's protections of the branches of `project` (owner/name), and, for people, what Gitea does not
    provide: earlier values hold for that. Raise as `GiteaClient.get`."""
    protected, path = set[str](), f"/repos/{project}/branches"
    try:
        async for page in client.pages(client.key, path, urgent=False, complete=True):
            protected |= {str(one["name"]) for one in page if one["protected"]}
    except ListTooLong:
        return None, f"it has too many branches to ask which are protected: {_HOLDS}"
    return Protection(frozenset(protected), frozenset()), ""


WORDS = Words("pull request", ForgeEvent("pull_request", "closed"), ForgeEvent("push"))


@dataclass(slots=True)
class GiteaSource:
    """See `forges.watch.Source`."""

    client: GiteaClient
    engine: Callable[[], GitEngine]
    stands: GiteaStands
    turns: dict[str, int] = field(default_factory=dict)
    """Project -> number of the last change that was looked at in turn."""

    async def look(
        self,
        project: str,
        names: Names,
        known: KnownChanges,
        hints: Sequence[Hint],
        *,
        full: bool,
        again: frozenset[int],
    ) -> ProjectLook:
        """See `forges.watch.Source`."""
        asking = GiteaProjectPoll(self.client, self.stands, await self.client.us(), project, self.turns)
        at = self.client.account.name
        look = ProjectLook(asking, at, self.engine, names, project, known, hints, full, again)
        look.protection = asking.protection
        return look

    def refused(self, project: str) -> None:
        """See `forges.watch.Source`."""


@dataclass(slots=True)
class GiteaProjectPoll:
    """See `forges.poll.Asking`."""

    client: GiteaClient
    stands: GiteaStands
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    turns: dict[str, int]
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """See `forges.poll.Asking`. A new status does not show in the list, and Gitea does not repeat failed
        deliveries."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        found: dict[int, bool] = {}
        query: Query = {"state": "open", "sort": "oldest"}
        async for page in self.client.pages(self.client.key, path, query, urgent=False):
            found |= listed(page, "number", known, _differs)
        return in_turn(found, self.turns, self.project)

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.poll.Asking`."""
        project = self.client.account.short(self.project)
        since = ReportMark.of(was.details.mark).since if was is not None and was.details is not None else ""
        # At the first look, older comments cause no events, so they are not read either.
        if was is None and first:
            old_s = self.client.now_s() - OLD_MS / 1000
            since = datetime.fromtimestamp(old_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pull = await look(self.client, project, number, since, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.client.key, self.project, pull, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """See `forges.poll.ProjectLook`."""
        return await protection(self.client, self.client.account.short(self.project))

    def forget_rules(self) -> None:
        """See `forges.poll.Asking`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    if known is None or not known.open or known.details is None or known.change.commit != there["head"]["sha"]:
        return True
    return bool(ReportMark.of(known.details.mark).updated != there["updated_at"])
