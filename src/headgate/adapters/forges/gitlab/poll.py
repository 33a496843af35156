"""Look at GitLab: at what is open, and one merge request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.adapters.forges.gitlab.changestate import OPEN, GitLabChangeStateReader
from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.gitlab.happenings import EVENT, GitLabMark
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.gitlab.request import look
from headgate.adapters.forges.poll import Found, Guarded, KnownChanges, ProjectLook, Words, listed
from headgate.adapters.forges.rest import ListTooLong, Query
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import Names
from headgate.config.forges.facts import ForgeEvent
from headgate.config.tenants import Protection
from headgate.gate.change import ChangeState
from headgate.ports.forge import Hint

WORDS = Words("merge request", ForgeEvent(EVENT, "merged"), ForgeEvent("gl_push"), settles=True)


@dataclass(slots=True)
class GitLabSource:
    """See `forges.watch.Source`."""

    client: GitLabClient
    people: People
    engine: Callable[[], GitEngine]
    stands: GitLabChangeStateReader

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
        asking = GitLabProjectPoll(self.client, self.stands, await self.people.us(), project)
        connection = self.client.account.name
        look = ProjectLook(asking, connection, self.engine, names, project, known, hints, full, again)
        look.protection = asking.protection
        return look

    def refused(self, project: str) -> None:
        """See `forges.watch.Source`: check whether the token is still valid, which git's errors do not show clearly."""
        self.people.name = ""


@dataclass(slots=True)
class GitLabProjectPoll:
    """See `forges.poll.Asking`."""

    client: GitLabClient
    stands: GitLabChangeStateReader
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """See `forges.poll.Asking`."""
        path = f"{self.client.account.path(self.project)}/merge_requests"
        found: dict[int, bool] = {}
        # By creation, because an order by update would shift changes between pages while they are read.
        query: Query = {"state": "opened", "order_by": "created_at", "sort": "asc"}
        async for page in self.client.pages(self.client.key, path, query, urgent=False):
            found |= listed(page, "iid", known, _differs)
        return found

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.poll.Asking`."""
        # 1 rather than 0 for a known change without comments: it is not the first look, so more pages are read.
        after = max(GitLabMark.of(was.details.mark).remark, 1) if was is not None and was.details is not None else 0
        request = await look(self.client, self.project, number, after, urgent=urgent)
        if was is None and request.state not in OPEN:
            return None
        return await self.stands.of(request, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """See `forges.poll.ProjectLook`: the list of branches contains the protection of each; none is locked."""
        found: set[str] = set()
        path = f"{self.client.account.path(self.project)}/repository/branches"
        try:
            async for page in self.client.pages(self.client.key, path, urgent=False, complete=True):
                found |= {str(one["name"]) for one in page if one["protected"]}
        except ListTooLong:
            return None, "it has too many branches to ask which are protected: what was known before holds"
        return Protection(frozenset(found), frozenset()), ""

    def forget_rules(self) -> None:
        """See `forges.poll.Asking`: GitLab applies the rules itself in each answer."""


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    """Tell whether a request is necessary; it is for each merge request that lacks something, which may be a pipeline,
    whose changes do not update any time."""
    if known is None or not known.open or known.details is None or known.change.commit != there["sha"]:
        return True
    return bool(known.details.rules) or GitLabMark.of(known.details.mark).updated != there["updated_at"]
