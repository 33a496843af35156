"""Look at GitHub: credentials, open pull requests, and each pull request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.adapters.forges.github.changestate import GitHubStands
from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.pull import look
from headgate.adapters.forges.github.tokens import Tokens
from headgate.adapters.forges.happenings import ReportMark
from headgate.adapters.forges.poll import Found, Guarded, KnownChanges, ProjectLook, Words
from headgate.adapters.forges.rest import ForgeKey, NotThere, Query
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import Names
from headgate.config.forges.facts import ForgeEvent
from headgate.config.tenants import Protection
from headgate.gate.change import ChangeState
from headgate.ports.forge import Hint

PAGES_MAX = 100
"""Most pages of branches, with 100 branches each."""
QUERY = """
query($owner: String!, $name: String!, $after: String) {
  repository(owner: $owner, name: $name) {
    refs(refPrefix: "refs/heads/", first: 100, after: $after) {
      nodes { name branchProtectionRule { lockBranch } rules(first: 1) { totalCount } }
      pageInfo { hasNextPage endCursor }
    }
  }
}
"""
"""GraphQL query for branches."""
_HOLDS = "what was known before holds; where nothing was, every branch counts as protected and none as locked"


async def protection(client: GitHubClient, key: ForgeKey, project: str) -> tuple[Protection | None, str]:
    """Return GitHub's protections of the branches of `project` (owner/name), and, for people, what GitHub does not
    provide: earlier values hold for that. A ruleset protects a branch but never locks it, since Headgate may be allowed
    to bypass it. Raise as `GitHubClient.query`, or NotThere."""
    owner, _, name = project.partition("/")
    protected, locked, after = set[str](), set[str](), None
    for _ in range(PAGES_MAX):
        data = await client.query(key, QUERY, urgent=False, owner=owner, name=name, after=after)
        refs = (data.get("repository") or {}).get("refs")
        if refs is None:
            raise NotThere(f"the branches of {project} cannot be seen")
        for one in refs["nodes"]:
            classic, rules = one["branchProtectionRule"], one["rules"]
            if rules is None and classic is None:
                return None, f"GitHub does not say which branches rulesets protect: {_HOLDS}"
            if classic is not None or rules["totalCount"]:
                protected.add(str(one["name"]))
            if classic is not None and classic["lockBranch"]:
                locked.add(str(one["name"]))
        if not refs["pageInfo"]["hasNextPage"]:
            return Protection(frozenset(protected), frozenset(locked)), ""
        after = str(refs["pageInfo"]["endCursor"])
    return None, f"it has more than {PAGES_MAX * 100} branches, too many to ask which are protected: {_HOLDS}"


HIDDEN = (
    "the app may not read classic rules of branches: its owner grants it Administration: read, and who installed it "
    "accepts; until then what they ask for is only known when GitHub refuses to merge, and which "
    "branches are protected is not"
)
WORDS = Words("pull request", ForgeEvent("pull_request", "closed"), ForgeEvent("push"))


@dataclass(slots=True)
class GitHubSource:
    """See `forges.watch.Source`."""

    client: GitHubClient
    tokens: Tokens
    engine: Callable[[], GitEngine]
    stands: GitHubStands

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
        key = await self.tokens.of(self.client.account.short(project))
        asking = GitHubProjectPoll(self.client, self.stands, key, await self.tokens.us(), project)
        at = self.client.account.name
        look = ProjectLook(asking, at, self.engine, names, project, known, hints, full, again)
        look.protection, look.may_write = asking.protection, asking.may_write
        asking.reads_rules = self.tokens.reads_rules(self.client.account.short(project))
        look.hidden = "" if asking.reads_rules else HIDDEN
        return look

    def refused(self, project: str) -> None:
        """See `forges.watch.Source`."""
        self.tokens.forget(self.client.account.short(project))


@dataclass(slots=True)
class GitHubProjectPoll:
    """See `forges.poll.Asking`."""

    client: GitHubClient
    stands: GitHubStands
    key: ForgeKey
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    words: Words = WORDS
    reads_rules: bool = True
    """Whether our account may see classic branch protection."""

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """See `forges.poll.Asking`."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        found: dict[int, bool] = {}
        # By creation, because an order by update would shift changes between pages while they are read.
        query: Query = {"state": "open", "sort": "created", "direction": "asc"}
        async for page in self.client.pages(self.key, path, query, urgent=False):
            found |= {int(one["number"]): _differs(one, known.get(int(one["number"]))) for one in page}
        return found

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """See `forges.poll.Asking`."""
        project = self.client.account.short(self.project)
        pull = await look(self.client, self.key, project, number, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        pull = replace(pull, rules_shown=self.reads_rules)
        return await self.stands.of(self.key, self.project, pull, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """See `forges.poll.ProjectLook`."""
        if not self.reads_rules:
            return None, ""
        return await protection(self.client, self.key, self.client.account.short(self.project))

    async def may_write(self, who: str) -> bool:
        """See `forges.poll.ProjectLook`."""
        project = self.client.account.short(self.project)
        return await self.stands.permission(self.key, project, who) in ("write", "admin")

    def forget_rules(self) -> None:
        """See `forges.poll.Asking`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    if known is None or not known.open or known.details is None or known.change.commit != there["head"]["sha"]:
        return True
    return bool(ReportMark.of(known.details.mark).updated != there["updated_at"])
