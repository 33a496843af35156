"""Look at a Pagure: at what is open, and at one pull request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.adapters.forges.happenings import Mark
from headgate.adapters.forges.looking import Found, Known, ProjectLook, Words, in_turn, listed
from headgate.adapters.forges.pagure.client import Client
from headgate.adapters.forges.pagure.pull import MERGES, look, moment
from headgate.adapters.forges.pagure.standing import PagureStands
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.looking.names import Names
from headgate.config.forges.facts import Happening
from headgate.gate.change import Standing
from headgate.ports.forge import Hint

WORDS = Words("pull request", Happening("pg_pull_request", "merged"), Happening("pg_push"))


@dataclass(slots=True)
class Source:
    """See `forges.watching.Source`."""

    client: Client
    engine: Callable[[], GitEngine]
    stands: PagureStands
    turns: dict[str, int] = field(default_factory=dict)
    """Project -> the last number that was looked at in turn."""

    async def look(
        self,
        project: str,
        names: Names,
        known: Known,
        hints: Sequence[Hint],
        *,
        whole: bool,
        again: frozenset[int],
    ) -> ProjectLook:
        """See `forges.watching.Source`."""
        asking = Asking(self.client, self.stands, await self.client.us(), project, self.turns)
        at = self.client.account.name
        return ProjectLook(asking, at, self.engine, names, project, known, hints, whole, again)

    def refused(self, project: str) -> None:
        """See `forges.watching.Source`."""
        self.client.login = ""


@dataclass(slots=True)
class Asking:
    """See `forges.looking.Asking`."""

    client: Client
    stands: PagureStands
    us: tuple[str, ...]
    project: str
    """Canonical name."""
    turns: dict[str, int]
    words: Words = WORDS

    async def opened(self, known: Mapping[int, Standing]) -> Mapping[int, bool]:
        """See `forges.looking.Asking`.  Flags and options move nothing that the list shows, and Pagure sends what was
        not delivered never again."""
        path = f"{self.client.project(self.client.account.short(self.project))}/pull-requests"
        found: dict[int, bool] = {}
        async for page in self.client.requests(path, {"status": "Open"}):
            found |= listed(page, "id", known, _differs)
        return in_turn(found, self.turns, self.project)

    async def one(
        self, number: int, was: Standing | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.looking.Asking`."""
        pull = await look(self.client, self.client.account.short(self.project), number, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.client.key, self.project, pull, was, self.us, heads, first=first)

    def forget_rules(self) -> None:
        """See `forges.looking.Asking`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: Standing | None) -> bool:
    """Say whether it has to be asked for."""
    if known is None or not known.open or known.details is None or known.change.commit != there["commit_stop"]:
        return True
    details = known.details
    return bool(
        Mark.of(details.mark).updated != moment(there)
        or details.mergeable is not MERGES.get(str(there.get("cached_merge_status")))
        or details.approved is not there.get("threshold_reached")
    )
