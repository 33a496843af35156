"""Query a GitHub: its open pull requests, and the state of each with the rules of its branch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from headgate.adapters.forges.changestate import FRESH_S, KNOWN_MAX, LABELS_MAX, STATUSES_MAX, ChangeStateReader
from headgate.adapters.forges.github.client import GitHubClient, Tokens
from headgate.adapters.forges.github.pull import GitHubPull, look
from headgate.adapters.forges.poll import Found, Guarded, PollScope, ProjectLook, Words
from headgate.adapters.forges.pulls import ReportMark, has_moved, marked
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Query, Rejected
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.facts import Details, ForgeEvent, Rule, Vote
from headgate.config.operator.model import Protection
from headgate.gate.state.change import ChangeState

PAGES_MAX = 100
"""Maximum number of pages of branches, with 100 branches each."""
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
_HOLDS = "the last known answer stays valid; without one, every branch counts as protected and none as locked"

HIDDEN = (
    "the app may not read classic branch protection: its owner must grant it Administration: read, and whoever "
    "installed it must accept; until then Headgate learns the required statuses and reviews only when GitHub refuses "
    "to merge, and does not know which branches are protected"
)
WORDS = Words("pull request", ForgeEvent("pull_request", "closed"), ForgeEvent("push"))
PASSES = frozenset({"success", "neutral", "skipped"})
"""States with which a required status is met."""
UNDER_WAY = frozenset({"pending", "expected", "queued", "in_progress", "waiting", "requested"})
BYPASSES = frozenset({"always", "pull_requests_only", "exempt"})
"""Values with which GitHub says that our account may bypass a ruleset."""


async def protection(client: GitHubClient, key: ForgeKey, project: str) -> tuple[Protection | None, str]:
    """Return GitHub's protections of the branches of `project` (owner/name), and a message about what GitHub does not
    provide, for which the last known answer stays valid. A ruleset protects a branch but never locks it, since Headgate
    may be allowed to bypass it. Raise NotThere, or the errors of `GitHubClient.query`."""
    owner, _, name = project.partition("/")
    protected, locked, after = set[str](), set[str](), None
    for _ in range(PAGES_MAX):
        data = await client.query(key, QUERY, urgent=False, owner=owner, name=name, after=after)
        # GraphQL returns null, not an error, for what the token may not see.
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
    return None, f"it has more than {PAGES_MAX * 100} branches, too many to read their protection: {_HOLDS}"


@dataclass(slots=True)
class GitHubSource:
    """Read projects of one GitHub; see `forges.watch.PollSource`."""

    client: GitHubClient
    tokens: Tokens
    engine: Callable[[], GitEngine]
    stands: GitHubStands

    async def look(self, scope: PollScope) -> ProjectLook:
        """Start a poll of one project; see `forges.watch.PollSource`."""
        short = self.client.account.short(scope.project)
        key, us = await self.tokens.of(short), await self.tokens.us()
        reads_rules = self.tokens.reads_rules(short)
        asking = GitHubProjectPoll(self.client, self.stands, key, us, scope.project, reads_rules=reads_rules)
        hidden, at = "" if reads_rules else HIDDEN, self.client.account.name
        return ProjectLook(asking, at, self.engine, scope, asking.protection, asking.may_write, hidden)

    def refused(self, project: str) -> None:
        """Discard refused credentials; see `forges.watch.PollSource`."""
        self.tokens.forget(self.client.account.short(project))


@dataclass(slots=True)
class GitHubProjectPoll:
    """Query one project of a GitHub; see `forges.poll.ProjectPoll`."""

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
        """Return the numbers of open changes, and whether each has moved; see `forges.poll.ProjectPoll`."""
        path = f"/repos/{self.client.account.short(self.project)}/pulls"
        found: dict[int, bool] = {}
        # Sort by creation: sorted by update, changes would shift between pages while they are read.
        query: Query = {"state": "open", "sort": "created", "direction": "asc"}
        async for page in self.client.pages(self.key, path, query, urgent=False):
            found |= {int(one["number"]): has_moved(one, known.get(int(one["number"]))) for one in page}
        return found

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """Return the state of one change and its new events; see `forges.poll.ProjectPoll`."""
        project = self.client.account.short(self.project)
        pull = await look(self.client, self.key, project, number, urgent=urgent)
        # It was closed between the list and this query.
        if was is None and pull.state != "OPEN":
            return None
        pull = replace(pull, rules_shown=self.reads_rules)
        return await self.stands.of(self.key, self.project, pull, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """Return the protected branches; see `forges.poll.ProjectLook`."""
        # Without the permission, the query would fail every time.
        if not self.reads_rules:
            return None, ""
        return await protection(self.client, self.key, self.client.account.short(self.project))

    async def may_write(self, who: str) -> bool:
        """Return whether a person may write; see `forges.poll.ProjectLook`."""
        project = self.client.account.short(self.project)
        return await self.stands.permission(self.key, project, who) in ("write", "admin")

    def forget_rules(self) -> None:
        """Discard the cached rules; see `forges.poll.ProjectPoll`."""
        self.stands.forget_rules()


class GitHubStands(ChangeStateReader[GitHubPull]):
    """Read the states of changes at one GitHub."""

    times_in_seconds = True

    def __init__(self, client: GitHubClient, engine: Callable[[], GitEngine]) -> None:
        super().__init__(client, client.account.name, engine, client.now_s)
        self._bypasses: dict[tuple[str, int], tuple[float, bool]] = {}

    async def details(
        self, key: ForgeKey, pull: GitHubPull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """Return the details of a pull request; see `ChangeStateReader`."""
        votes = tuple([await self._vote(key, pull, vote) for vote in pull.votes])
        rules = None
        if pull.state == "OPEN":
            # Query only rulesets with unmet rules, because each query is a call.
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
        # This saves a call for each stranger: people who cannot push have no permission worth querying.
        may = await self.permission(key, pull.project, vote.who.name) if pushes else "read"
        return structs.replace(vote, who=structs.replace(vote.who, permission=may or "write"))

    async def _bypasses_ruleset(self, key: ForgeKey, project: str, id: int) -> bool:
        now_s = self._now_s()
        until_s, known = self._bypasses.get((project, id), (0.0, False))
        if until_s > now_s:
            return known
        try:
            answer = await self._rest.get(key, f"/repos/{project}/rulesets/{id}")
            known = answer.content.get("current_user_can_bypass") in BYPASSES
        # Cache the refusal, too: otherwise every change would repeat the call.
        except (NotThere, ForgeDenied, Rejected):
            known = False
        self._bypasses[project, id] = (now_s + FRESH_S, known)
        while len(self._bypasses) > KNOWN_MAX:
            self._bypasses.pop(next(iter(self._bypasses)))
        return known

    def forget_rules(self) -> None:
        """Discard the cached rules; see `ChangeStateReader`."""
        self._bypasses.clear()


def rule_book(pull: GitHubPull, us: Collection[str], bypassed: Collection[int] = ()) -> tuple[Rule, ...] | None:
    """Return the rules in force; None if our account may not see all of them and the merge is blocked. `us`: logins and
    slugs that Headgate writes as; `bypassed`: ids of the rulesets that it may bypass, whose rules need not be met."""
    if pull.rules is None:
        return None
    found = [structs.replace(one, bypassed=True) if pull.as_admin else one for one in _classic(pull, frozenset(us))]
    for rule in pull.rules:
        ruleset = rule["repositoryRuleset"] or {}
        free = ruleset.get("databaseId") in bypassed
        where = f" (ruleset {ruleset.get('name') or 'without a name'})"
        found += [structs.replace(one, text=one.text + where, bypassed=free) for one in _of_ruleset(pull, rule)]
    named = any(one.met is not True and not one.bypassed for one in found)
    # GitHub blocks the merge for something that our account cannot see.
    if pull.merge_state == "BLOCKED" and not named and not pull.as_admin and not pull.rules_shown:
        return None  # the missing status may be the one that the gate will set
    if pull.merge_state == "BLOCKED" and not named and not pull.as_admin:
        found.append(Rule("is blocked by a rule that GitHub does not name: see the page of the change", False))
    return tuple(found)


def lacking(pull: GitHubPull, us: Collection[str]) -> set[int]:
    """Return the ids of the rulesets with unmet rules, so that the caller can find out which of them we may bypass."""
    return {
        rule["repositoryRuleset"]["databaseId"]
        for rule in pull.rules or ()
        if rule["repositoryRuleset"] and any(one.met is not True for one in _of_ruleset(pull, rule))
    }


def _classic(pull: GitHubPull, us: frozenset[str]) -> Iterator[Rule]:
    protection = pull.protection
    if protection is None:
        return
    if protection["requiresStatusChecks"]:
        yield from _checks(pull, protection["requiredStatusCheckContexts"] or ())
        if protection["requiresStrictStatusChecks"]:
            yield _strict(pull)
    if protection["requiresApprovingReviews"]:
        count, owners = protection["requiredApprovingReviewCount"] or 0, protection["requiresCodeOwnerReviews"]
        free = bool(us & _actors(protection["bypassPullRequestAllowances"]))
        yield structs.replace(_reviews(pull, count, owners), bypassed=free)
    if protection["requiresConversationResolution"]:
        yield _threads(pull)
    if protection["requiresCommitSignatures"]:
        yield _signatures(pull)
    if protection["lockBranch"]:
        yield Rule(f"needs the branch {pull.base} to be unlocked", False)
    if protection["restrictsPushes"]:
        ours = bool(us & _actors(protection["pushAllowances"]))
        yield Rule(f"needs Headgate to be among those who may push to {pull.base}", ours)


def _actors(allowances: Mapping[str, Any] | None) -> set[str]:
    actors = [one["actor"] or {} for one in allowances["nodes"]] if allowances else []
    return {str(actor.get("slug") or actor.get("login") or "") for actor in actors} - {""}


def _of_ruleset(pull: GitHubPull, rule: Mapping[str, Any]) -> Iterator[Rule]:
    how = rule["parameters"] or {}
    match rule["type"]:
        case "REQUIRED_STATUS_CHECKS":
            yield from _checks(pull, [one["context"] for one in how["requiredStatusChecks"]])
            if how["strictRequiredStatusChecksPolicy"]:
                yield _strict(pull)
        case "PULL_REQUEST":
            # A rule without either only demands that changes go through pull requests.
            if how["requiredApprovingReviewCount"] or how["requireCodeOwnerReview"]:
                yield _reviews(pull, how["requiredApprovingReviewCount"], how["requireCodeOwnerReview"])
            if how["requiredReviewThreadResolution"]:
                yield _threads(pull)
        case "REQUIRED_SIGNATURES":
            yield _signatures(pull)
        case "MERGE_QUEUE":
            text = "needs to go through GitHub's own merge queue: remove that rule, or let Headgate bypass it"
            yield Rule(text, False)
        case "UPDATE":
            yield Rule(f"needs the branch {pull.base} to permit updates", False)


def _checks(pull: GitHubPull, wanted: Collection[str]) -> Iterator[Rule]:
    states: dict[str, str] = {}
    for one in pull.reports:
        state = one.status.state
        # Several programs may use one name. A bad state must win over a good one, whatever the order.
        if states.get(one.status.name) not in PASSES or state not in PASSES:
            states[one.status.name] = state
    missing = tuple(sorted(name for name in wanted if states.get(name) not in PASSES))
    if not wanted:
        return
    text = f"needs {'these statuses' if len(wanted) > 1 else 'this status'} to be good: {', '.join(missing or wanted)}"
    # Statuses under way may still become good, so it is not yet decided.
    waits = bool(missing) and all(states.get(name) in UNDER_WAY for name in missing)
    yield Rule(text, None if waits else not missing, missing=missing)


def _strict(pull: GitHubPull) -> Rule:
    text = f"needs to contain the newest commit of {pull.base}; a gate makes that rule needless: let Headgate bypass it"
    # GitHub computes this in the background.
    return Rule(text, None if pull.merge_state == "UNKNOWN" else pull.merge_state != "BEHIND")


def _reviews(pull: GitHubPull, count: int, owners: bool) -> Rule:
    if pull.decision == "CHANGES_REQUESTED":
        return Rule("needs those who requested changes to approve it", False)
    people = f"{count} approving review{'s' if count > 1 else ''} of people who may write" if count else "a review"
    text = f"needs {people}{', and of the owners of its code' if owners else ''}"
    return Rule(text, pull.decision == "APPROVED")


def _threads(pull: GitHubPull) -> Rule:
    left = f"; {pull.unresolved} {'is' if pull.unresolved == 1 else 'are'} not" if pull.unresolved else ""
    return Rule(f"needs all its conversations to be resolved{left}", not pull.unresolved)


def _signatures(pull: GitHubPull) -> Rule:
    return Rule("needs all its commits to have verified signatures", pull.signed)
