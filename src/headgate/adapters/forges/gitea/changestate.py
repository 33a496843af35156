"""Find what is known of a pull request at Gitea beside what all forges have: votes, and the rules in force."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from headgate.adapters.forges.changestate import FRESH_S, KNOWN_MAX, LABELS_MAX, STATUSES_MAX, ChangeStateReader
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.gitea.pull import GiteaPull
from headgate.adapters.forges.gitea.rules import rule_book
from headgate.adapters.forges.happenings import ReportMark, marked
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.facts import Details, Vote

VOTERS_MAX = 50
"""Most reviewers whose permissions are requested; those whose votes count come first."""

Protections = Mapping[str, Mapping[str, Any]]
"""Name of a rule -> the rule."""


class GiteaStands(ChangeStateReader[GiteaPull]):
    """Read the states of changes at one Gitea."""

    whole_seconds = True

    def __init__(self, client: GiteaClient, engine: Callable[[], GitEngine]) -> None:
        super().__init__(client, client.account.name, engine, client.now_s)
        self._protections: OrderedDict[str, tuple[float, Protections]] = OrderedDict()
        """owner/name -> when the entry expires, and the protections."""

    async def details(
        self, key: ForgeKey, pull: GiteaPull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """See `ChangeStateReader`."""
        rules = None
        if pull.state == "OPEN":
            rules = rule_book(pull, await self._protection(key, pull), files)
        return Details(
            us=tuple(us),
            state=pull.state,
            draft=pull.draft,
            votes=await self._votes(key, pull),
            approved=pull.approved if (pull.branch or {}).get("required_approvals") else None,
            statuses=tuple(one.status for one in pull.reports[:STATUSES_MAX]),
            labels=pull.labels[:LABELS_MAX],
            mergeable=pull.mergeable,
            rules=rules,
            mark=marked(pull, mark).text,
        )

    async def _votes(self, key: ForgeKey, pull: GiteaPull) -> tuple[Vote, ...]:
        official = {one.who.name for one in pull.reviews if one.pushes}
        # Anybody may review, so strangers must not use up the places of those whose votes count.
        votes = sorted(pull.votes, key=lambda vote: (vote.who.name not in official, vote.value == "commented"))
        found = []
        for number, vote in enumerate(votes):
            name = vote.who.name
            may = await self.permission(key, pull.project, name) if number < VOTERS_MAX else ""
            found.append(replace(vote, who=replace(vote.who, permission=may or ("write" if name in official else ""))))
        return tuple(found)

    async def _protection(self, key: ForgeKey, pull: GiteaPull) -> Mapping[str, Any] | None:
        """Return the protection of the branch; None if there is none, or only administrators may see it."""
        name = str((pull.branch or {}).get("effective_branch_protection_name") or "")
        if not name:
            return None
        until_s, known = self._protections.get(pull.project, (0.0, {}))
        if until_s <= self._now_s():
            try:
                protections = (await self._rest.get(key, f"/repos/{pull.project}/branch_protections")).content or []
                known = {str(one.get("rule_name") or one.get("branch_name")): one for one in protections}
            except (NotThere, ForgeDenied, Rejected):
                known = {}
            self._protections[pull.project] = (self._now_s() + FRESH_S, known)
            while len(self._protections) > KNOWN_MAX:
                self._protections.popitem(last=False)
        return known.get(name)

    def forget_rules(self) -> None:
        """See `ChangeStateReader`."""
        self._protections.clear()
