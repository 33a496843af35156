"""Look at GitHub: who asks, what is open, and one pull request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.adapters.forges.github.client import Client
from headgate.adapters.forges.github.protection import protection
from headgate.adapters.forges.github.pull import look
from headgate.adapters.forges.github.standing import GitHubStands
from headgate.adapters.forges.github.tokens import Tokens
from headgate.adapters.forges.happenings import Mark
from headgate.adapters.forges.looking import Found, Guarded, Known, ProjectLook, Words
from headgate.adapters.forges.rest import Key, Query
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.looking.names import Names
from headgate.config.forges.facts import Happening
from headgate.gate.change import Standing
from headgate.ports.forge import Hint

HIDDEN = (
    "the app may not read classic rules of branches: its owner grants it Administration: read, and who installed it "
    "accepts; until then what they ask for is only known when GitHub refuses to merge, and which "
    "branches are protected is not"
)
WORDS = Words("pull request", Happening("pull_request", "closed"), Happening("push"))


@dataclass(slots=True)
class Source:
    """See `forges.watching.Source`."""

    client: Client
    tokens: Tokens
    engine: Callable[[], GitEngine]
    stands: GitHubStands

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
        key = await self.tokens.of(self.client.account.short(project))
        asking = Asking(self.client, self.stands, key, await self.tokens.us(), project)
        at = self.client.account.name
        look = ProjectLook(asking, at, self.engine, names, project, known, hints, whole, again)
        look.protection, look.may_write = asking.protection, asking.may_write
        asking.reads_rules = self.tokens.reads_rules(self.client.account.short(project))
        look.hidden = "" if asking.reads_rules else HIDDEN
        return look

    def refused(self, project: str) -> None:
        """See `forges.watching.Source`."""
        self.tokens.forget(self.client.account.short(project))


@dataclass(slots=True)
class Asking:
    """See `forges.looking.Asking`."""

    client: Client
    stands: GitHubStands
    key: Key
    us: tuple[str, ...]
    project: str
    """Canonical name."""
    words: Words = WORDS
    reads_rules: bool = True
    """Whether classic rules of branches are shown to us."""

    async def opened(self, known: Mapping[int, Standing]) -> Mapping[int, bool]:
        """See `forges.looking.Asking`."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        found: dict[int, bool] = {}
        query: Query = {"state": "open", "sort": "created", "direction": "asc"}
        async for page in self.client.pages(self.key, path, query, urgent=False):
            found |= {int(one["number"]): _differs(one, known.get(int(one["number"]))) for one in page}
        return found

    async def one(
        self, number: int, was: Standing | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.looking.Asking`."""
        project = self.client.account.short(self.project)
        pull = await look(self.client, self.key, project, number, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        pull = replace(pull, rules_shown=self.reads_rules)
        return await self.stands.of(self.key, self.project, pull, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """See `forges.looking.ProjectLook`."""
        if not self.reads_rules:
            return None, ""
        return await protection(self.client, self.key, self.client.account.short(self.project))

    async def may_write(self, who: str) -> bool:
        """See `forges.looking.ProjectLook`."""
        project = self.client.account.short(self.project)
        return await self.stands.permission(self.key, project, who) in ("write", "admin")

    def forget_rules(self) -> None:
        """See `forges.looking.Asking`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: Standing | None) -> bool:
    if known is None or not known.open or known.details is None or known.change.commit != there["head"]["sha"]:
        return True
    return bool(Mark.of(known.details.mark).updated != there["updated_at"])
