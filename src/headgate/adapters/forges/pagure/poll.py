"""Look at a Pagure: at what is open, and at one pull request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.adapters.forges.happenings import ReportMark
from headgate.adapters.forges.pagure.changestate import PagureStands
from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.pagure.pull import MERGES, look, moment
from headgate.adapters.forges.poll import Found, KnownChanges, ProjectLook, Words, in_turn, listed
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import Names
from headgate.config.forges.facts import ForgeEvent
from headgate.gate.change import ChangeState
from headgate.ports.forge import Hint

WORDS = Words("pull request", ForgeEvent("pg_pull_request", "merged"), ForgeEvent("pg_push"))


@dataclass(slots=True)
class PagureSource:
    """See `forges.watch.Source`."""

    client: PagureClient
    engine: Callable[[], GitEngine]
    stands: PagureStands
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
        asking = PagureProjectPoll(self.client, self.stands, await self.client.us(), project, self.turns)
        at = self.client.account.name
        return ProjectLook(asking, at, self.engine, names, project, known, hints, full, again)

    def refused(self, project: str) -> None:
        """See `forges.watch.Source`."""
        # Forces a question with the token at the next look, which tells whether it is still valid.
        self.client.login = ""


@dataclass(slots=True)
class PagureProjectPoll:
    """See `forges.poll.Asking`."""

    client: PagureClient
    stands: PagureStands
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    turns: dict[str, int]
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """See `forges.poll.Asking`. New flags and options do not show in the list, and Pagure does not repeat failed
        deliveries."""
        path = f"{self.client.project(self.client.account.short(self.project))}/pull-requests"
        found: dict[int, bool] = {}
        async for page in self.client.requests(path, {"status": "Open"}):
            found |= listed(page, "id", known, _differs)
        return in_turn(found, self.turns, self.project)

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.poll.Asking`."""
        pull = await look(self.client, self.client.account.short(self.project), number, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.client.key, self.project, pull, was, self.us, heads, first=first)

    def forget_rules(self) -> None:
        """See `forges.poll.Asking`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    """Tell whether a request is necessary."""
    if known is None or not known.open or known.details is None or known.change.commit != there["commit_stop"]:
        return True
    details = known.details
    return bool(
        ReportMark.of(details.mark).updated != moment(there)
        # A view of its page changes this status without moving the time of the last update.
        or details.mergeable is not MERGES.get(str(there.get("cached_merge_status")))
        or details.approved is not there.get("threshold_reached")
    )
