"""Find what is known of a pull request at GitHub beside what all forges have: votes, rules, and who may bypass them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from msgspec.structs import replace

from headgate.adapters.forges.changestate import FRESH_S, KNOWN_MAX, LABELS_MAX, STATUSES_MAX, ChangeStateReader
from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.pull import GitHubPull
from headgate.adapters.forges.github.rules import BYPASSES, lacking, rule_book
from headgate.adapters.forges.happenings import ReportMark, marked
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.facts import Details, Vote


class GitHubStands(ChangeStateReader[GitHubPull]):
    """Read the states of changes at one GitHub."""

    whole_seconds = True

    def __init__(self, client: GitHubClient, engine: Callable[[], GitEngine]) -> None:
        super().__init__(client, client.account.name, engine, client.now_s)
        self._bypasses: OrderedDict[tuple[str, int], tuple[float, bool]] = OrderedDict()

    async def details(
        self, key: ForgeKey, pull: GitHubPull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """See `ChangeStateReader`."""
        votes = tuple([await self._vote(key, pull, vote) for vote in pull.votes])
        rules = None
        if pull.state == "OPEN":
            bypassed = {id for id in lacking(pull, us) if await self._bypasses_ruleset(key, pull.project, id)}
            rules = rule_book(pull, us, bypassed)
        return Details(
            us=tuple(us),
            state=pull.state,
            draft=pull.draft,
            votes=votes,
            approved=pull.decision == "APPROVED" if pull.decision else None,
            statuses=tuple(one.status for one in pull.reports[:STATUSES_MAX]),
            labels=pull.labels[:LABELS_MAX],
            unresolved=pull.unresolved,
            mergeable=pull.mergeable,
            rules=rules,
            mark=marked(pull, mark).text,
        )

    async def _vote(self, key: ForgeKey, pull: GitHubPull, vote: Vote) -> Vote:
        pushes = {one.who.name: one.pushes for one in (*pull.reviews, *pull.opinions)}.get(vote.who.name, False)
        # Saves a call for each stranger: whoever cannot push has no permission worth asking for.
        may = await self.permission(key, pull.project, vote.who.name) if pushes else "read"
        return replace(vote, who=replace(vote.who, permission=may or "write"))

    async def _bypasses_ruleset(self, key: ForgeKey, project: str, id: int) -> bool:
        now_s = self._now_s()
        until_s, known = self._bypasses.get((project, id), (0.0, False))
        if until_s > now_s:
            return known
        try:
            answer = await self._rest.get(key, f"/repos/{project}/rulesets/{id}")
            known = answer.content.get("current_user_can_bypass") in BYPASSES
        except (NotThere, ForgeDenied, Rejected):
            known = False
        self._bypasses[project, id] = (now_s + FRESH_S, known)
        while len(self._bypasses) > KNOWN_MAX:
            self._bypasses.popitem(last=False)
        return known

    def forget_rules(self) -> None:
        """See `ChangeStateReader`."""
        self._bypasses.clear()
