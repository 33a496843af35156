"""Query a Gitea: its open pull requests, and the state of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from headgate.adapters.forges.changestate import FRESH_S, KNOWN_MAX, LABELS_MAX, STATUSES_MAX, ChangeStateReader
from headgate.adapters.forges.gitea.client import GiteaClient
from headgate.adapters.forges.gitea.pull import GiteaPull, look, rule_book
from headgate.adapters.forges.poll import Found, Guarded, PollScope, ProjectLook, Words, in_turn, listed
from headgate.adapters.forges.pulls import OLD_MS, ReportMark, has_moved, marked
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, ListTooLong, NotThere, Query, Rejected
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.facts import Details, ForgeEvent, Vote
from headgate.config.operator.model import Protection
from headgate.gate.state.change import ChangeState

WORDS = Words("pull request", ForgeEvent("pull_request", "closed"), ForgeEvent("push"))
VOTERS_MAX = 50
"""Maximum number of reviewers whose permissions are read; those whose votes count come first."""
_HOLDS = "the last known answer stays valid; without one, every branch counts as protected"

Protections = Mapping[str, Mapping[str, Any]]
"""Name of a rule -> the rule."""


async def protection(client: GiteaClient, project: str) -> Guarded:
    """Return the protected branches of `project` (owner/name), and a message about what Gitea does not provide,
    for which the last known answer stays valid. Raise the errors of `GiteaClient.get`."""
    protected, path = set[str](), f"/repos/{project}/branches"
    try:
        async for page in client.pages(client.key, path, urgent=False, complete=True):
            protected |= {str(one["name"]) for one in page if one["protected"]}
    except ListTooLong:
        return None, f"it has too many branches to read their protection: {_HOLDS}"
    return Protection(frozenset(protected), frozenset()), ""


@dataclass(slots=True)
class GiteaSource:
    """Read projects of one Gitea; see `forges.watch.PollSource`."""

    client: GiteaClient
    engine: Callable[[], GitEngine]
    stands: GiteaStands
    turns: dict[str, int] = field(default_factory=dict)
    """Project -> number of the last unmoved change that was read in turn."""

    async def look(self, scope: PollScope) -> ProjectLook:
        """Start a poll of one project; see `forges.watch.PollSource`."""
        asking = GiteaProjectPoll(self.client, self.stands, await self.client.us(), scope.project, self.turns)
        at = self.client.account.name
        return ProjectLook(asking, at, self.engine, scope, asking.protection)

    def refused(self, project: str) -> None:
        """Discard refused credentials; see `forges.watch.PollSource`."""


@dataclass(slots=True)
class GiteaProjectPoll:
    """Query one project of a Gitea; see `forges.poll.ProjectPoll`."""

    client: GiteaClient
    stands: GiteaStands
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    turns: dict[str, int]
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """Return the open changes and, in turn, some unmoved ones; see `forges.poll.ProjectPoll`. A new status does
        not show in the list, and Gitea does not repeat failed deliveries."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        found: dict[int, bool] = {}
        query: Query = {"state": "open", "sort": "oldest"}
        async for page in self.client.pages(self.client.key, path, query, urgent=False):
            found |= listed(page, "number", known, has_moved)
        return in_turn(found, self.turns, self.project)

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """Return the state of one change and its new events; see `forges.poll.ProjectPoll`."""
        project = self.client.account.short(self.project)
        since = ReportMark.of(was.details.mark).since if was is not None and was.details is not None else ""
        # At the first query, older comments cause no events, so skip them.
        if was is None and first:
            old_s = self.client.now_s() - OLD_MS / 1000
            since = datetime.fromtimestamp(old_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pull = await look(self.client, project, number, since, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.client.key, self.project, pull, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """Return the protected branches; see `forges.poll.ProjectLook`."""
        return await protection(self.client, self.client.account.short(self.project))

    def forget_rules(self) -> None:
        """Discard the cached rules; see `forges.poll.ProjectPoll`."""
        self.stands.forget_rules()


class GiteaStands(ChangeStateReader[GiteaPull]):
    """Read the states of changes at one Gitea."""

    times_in_seconds = True

    def __init__(self, client: GiteaClient, engine: Callable[[], GitEngine]) -> None:
        super().__init__(client, client.account.name, engine, client.now_s)
        self._protections: dict[str, tuple[float, Protections]] = {}
        """owner/name -> when the entry expires, and the protections."""

    async def details(
        self, key: ForgeKey, pull: GiteaPull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """Return the details of a pull request; see `ChangeStateReader`."""
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
            # An official review proves write access, even if the permission itself is unknown.
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
            # Cache the refusal, too: otherwise every change would repeat the call.
            except (NotThere, ForgeDenied, Rejected):
                known = {}
            self._protections[pull.project] = (self._now_s() + FRESH_S, known)
            while len(self._protections) > KNOWN_MAX:
                self._protections.pop(next(iter(self._protections)))
        return known.get(name)

    def forget_rules(self) -> None:
        """Discard the cached rules; see `ChangeStateReader`."""
        self._protections.clear()
