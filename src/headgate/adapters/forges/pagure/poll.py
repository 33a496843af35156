"""Query a Pagure: its open pull requests, and the state of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pygit2
from msgspec import structs

from headgate.adapters.forges.changestate import FRESH_S, KNOWN_MAX, STATUSES_MAX, ChangeStateReader
from headgate.adapters.forges.pagure.client import PagureClient
from headgate.adapters.forges.pagure.pull import MERGES, PagurePull, look, moment
from headgate.adapters.forges.poll import Found, PollScope, ProjectLook, Words, in_turn, listed
from headgate.adapters.forges.pulls import ReportMark, Spoken, marked
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.config.forges.facts import Details, ForgeEvent, Rule, Vote
from headgate.gate.state.change import ChangeState

T = TypeVar("T")

WORDS = Words("pull request", ForgeEvent("pg_pull_request", "merged"), ForgeEvent("pg_push"))
SCORE, ASSIGNEE = "Minimum_score_to_merge_pull-request", "Only_assignee_can_merge_pull-request"
SIGNED, STRAIGHT = "Enforce_signed-off_commits_in_pull-request", "disable_non_fast-forward_merges"
"""Options of a project that decide what may be merged."""
VOTERS_MAX = 50
"""Maximum number of voters whose permissions are read; those who commented last come first."""
GROUPS_MAX = 20
"""Maximum number of groups of a project whose members are read."""
COMMITS_MAX = 200
"""Maximum number of commits of a change that are checked for sign-offs."""
HEAD_CHARS = 12
"""Characters of the commit id in the text of our flags: Pagure does not store the commit of a flag."""
LEVELS = {"owner": "admin", "admin": "admin", "commit": "write", "collaborator": "read", "ticket": "read"}
"""Pagure's access level -> the common permission; collaborators have access to some branches only."""
_RANK = ("", "none", "read", "write", "admin")
SPOKEN = Spoken(
    "pg_pull_request", "pg_pull_request_review", merged="merged", reopened="opened", edited="changed",
    labeled="tagged", unlabeled="", submitted="", flags=True,
)  # fmt: skip


@dataclass(slots=True)
class PagureSource:
    """Read projects of one Pagure; see `forges.watch.PollSource`."""

    client: PagureClient
    engine: Callable[[], GitEngine]
    stands: PagureStands
    turns: dict[str, int] = field(default_factory=dict)
    """Project -> number of the last unmoved change that was read in turn."""

    async def look(self, scope: PollScope) -> ProjectLook:
        """Start a poll of one project; see `forges.watch.PollSource`."""
        asking = PagureProjectPoll(self.client, self.stands, await self.client.us(), scope.project, self.turns)
        at = self.client.account.name
        return ProjectLook(asking, at, self.engine, scope)

    def refused(self, project: str) -> None:
        """Discard refused credentials; see `forges.watch.PollSource`."""
        # The next query then requests the login, which shows whether the token is still valid.
        self.client.forget()


@dataclass(slots=True)
class PagureProjectPoll:
    """Query one project of a Pagure; see `forges.poll.ProjectPoll`."""

    client: PagureClient
    stands: PagureStands
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    turns: dict[str, int]
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """Return the open changes and, in turn, some unmoved ones; see `forges.poll.ProjectPoll`. New flags and options
        do not show in the list, and Pagure does not repeat failed deliveries."""
        path = f"{self.client.project(self.client.account.short(self.project))}/pull-requests"
        found: dict[int, bool] = {}
        async for page in self.client.requests(path, {"status": "Open"}):
            found |= listed(page, "id", known, _differs)
        return in_turn(found, self.turns, self.project)

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """Return the state of one change and its new events; see `forges.poll.ProjectPoll`."""
        pull = await look(self.client, self.client.account.short(self.project), number, urgent=urgent)
        if was is None and pull.state != "OPEN":
            return None
        return await self.stands.of(self.client.key, self.project, pull, was, self.us, heads, first=first)

    def forget_rules(self) -> None:
        """Discard the cached rules; see `forges.poll.ProjectPoll`."""
        self.stands.forget_rules()


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    """Return whether the change must be queried."""
    if known is None or not known.open or known.details is None or known.change.commit != there["commit_stop"]:
        return True
    details = known.details
    return bool(
        ReportMark.of(details.mark).updated != moment(there)
        # Viewing its page changes this status without changing the time of the last update.
        or details.mergeable is not MERGES.get(str(there.get("cached_merge_status")))
        or details.approved is not there.get("threshold_reached")
    )


def rule_book(
    pull: PagurePull, options: Mapping[str, Any], us: Collection[str], signed: bool | None
) -> tuple[Rule, ...]:
    """Return the rules in force. `options`: those of the project, empty if our account may not see them; `signed`:
    whether all commits are signed off. There is no rule about our account's permission to merge: Pagure does not list
    the site's administrators."""
    return tuple(_rules(pull, options, us, signed))


def _rules(pull: PagurePull, options: Mapping[str, Any], us: Collection[str], signed: bool | None) -> Iterator[Rule]:
    if pull.reached is not None:
        wanted = f" of {options[SCORE]}" if SCORE in options else ""
        yield Rule(f"needs the score{wanted} that its project requires", pull.reached)
    if options.get(ASSIGNEE):
        assigned = f"is assigned to {pull.assignee}" if pull.assignee else "is assigned to nobody"
        yield Rule(
            f"needs to be assigned to {_of(us)}, as only assignees may merge there, and {assigned}", _is(pull, us)
        )
    if options.get(SIGNED):
        yield Rule("needs a line Signed-off-by in each of its commits", signed)
    if options.get(STRAIGHT):
        text = (
            f"needs to contain the newest commit of {pull.base}; a gate makes that rule needless: disable that option"
        )
        yield Rule(text, {"FFORWARD": True, "MERGE": False}.get(pull.merges))
    if pull.merges == "NO_CHANGE":
        yield Rule(f"needs commits that {pull.base} does not have", False)


def _is(pull: PagurePull, us: Collection[str]) -> bool:
    return pull.assignee in us


def _of(us: Collection[str]) -> str:
    return " or ".join(us) or "Headgate's account"


class PagureStands(ChangeStateReader[PagurePull]):
    """Read the states of changes at one Pagure."""

    spoken = SPOKEN

    def __init__(self, client: PagureClient, engine: Callable[[], GitEngine]) -> None:
        super().__init__(client, client.account.name, engine, client.now_s)
        self._client = client
        self._options: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """Project -> when the entry expires, and the options."""
        self._people: dict[str, tuple[float, Mapping[str, str] | None]] = {}
        """Project -> when the entry expires, and login -> permission; None if Pagure does not provide them."""

    async def of(
        self,
        key: ForgeKey,
        project: str,
        pull: PagurePull,
        was: ChangeState | None,
        us: Collection[str],
        heads: Mapping[str, str],
        *,
        first: bool,
    ) -> Found:
        """Return the state of a change and its new events; see `ChangeStateReader`. Comments and reports on former
        commits do not count for new commits, whether or not Pagure announces the new commits."""
        mark = ReportMark.of(was.details.mark if was is not None and was.details is not None else "")
        moved = was is not None and was.change.commit != pull.head
        # Pagure attaches neither comments nor votes to commits, so those that were known before a new head count as
        # old.
        floor = max(pull.floor, mark.floor, mark.remark if moved else 0, mark.review if moved else 0)
        reports = tuple(one for one in pull.reports if _is_of(one, pull, us))
        return await super().of(key, project, replace(pull, floor=floor, reports=reports), was, us, heads, first=first)

    async def details(
        self, key: ForgeKey, pull: PagurePull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """Return the details of a pull request; see `ChangeStateReader`."""
        rules = None
        if pull.state == "OPEN":
            options = await self._cached(self._options, pull.project, self._ask_options, {})
            signed = await self._signed(pull) if options.get(SIGNED) else None
            rules = rule_book(pull, options, us, signed)
        return Details(
            us=tuple(us),
            state=pull.state,
            votes=await self._votes(key, pull),
            approved=pull.reached,
            score=pull.score,
            statuses=tuple(one.status for one in pull.reports[:STATUSES_MAX]),
            labels=pull.labels,
            mergeable=pull.mergeable,
            rules=rules,
            mark=replace(marked(pull, mark), floor=pull.floor).text,
        )

    async def _votes(self, key: ForgeKey, pull: PagurePull) -> tuple[Vote, ...]:
        votes = sorted(pull.votes, key=lambda vote: -vote.since_ms)[:VOTERS_MAX]
        may = [await self.permission(key, pull.project, vote.who.name) for vote in votes]
        return tuple(
            structs.replace(v, who=structs.replace(v.who, permission=m)) for v, m in zip(votes, may, strict=True)
        )

    async def _signed(self, pull: PagurePull) -> bool | None:
        """Return whether all commits are signed off; None if that cannot be determined."""
        mirror = self._engine().mirror(self._client.account.canonical(pull.project), self._connection)
        at = pull.head
        try:
            if await mirror.missing((at,)):
                return None
            for _ in range(COMMITS_MAX):
                commit = mirror.repository[at]
                if not isinstance(commit, pygit2.Commit):
                    return None
                if b"signed-off-by" not in commit.raw_message.lower():
                    return False
                if at == pull.begins:
                    return True
                if not commit.parent_ids:
                    return None
                at = str(commit.parent_ids[0])
        except (GitError, OSError, KeyError, ValueError, pygit2.GitError):
            return None
        return None

    # --- options and people of a project

    async def permission(self, key: ForgeKey, project: str, login: str) -> str:
        """Return the permission of a person in a project; see `ChangeStateReader`. Pagure returns all permissions in
        one response."""
        known = await self._cached(self._people, project, self._ask_people, None)
        return known.get(login, "read") if known is not None and login else ""

    async def _cached(
        self,
        cache: dict[str, tuple[float, T]],
        project: str,
        ask: Callable[[str], Awaitable[T]],
        hidden: T,
    ) -> T:
        """Return the cached response about a project; `hidden`: the response to assume if our account may not see
        it."""
        until_s, known = cache.get(project, (0.0, hidden))
        if until_s <= self._now_s():
            try:
                known = await ask(project)
            # Cache the refusal, too: otherwise every change would repeat the call.
            except (NotThere, ForgeDenied, Rejected):
                known = hidden
            cache[project] = (self._now_s() + FRESH_S, known)
            while len(cache) > KNOWN_MAX:
                cache.pop(next(iter(cache)))
        return known

    async def _ask_options(self, project: str) -> Mapping[str, Any]:
        content = (await self._client.get(self._client.key, f"{self._client.project(project)}/options")).content
        found: Mapping[str, Any] = content["settings"]
        return found

    async def _ask_people(self, project: str) -> Mapping[str, str]:
        content = (await self._client.get(self._client.key, self._client.project(project))).content
        found: dict[str, str] = {}
        groups = [(word, name) for word, names in (content.get("access_groups") or {}).items() for name in names]
        people = [(word, names) for word, names in (content.get("access_users") or {}).items()]
        for word, name in groups[:GROUPS_MAX]:
            members = (await self._client.get(self._client.key, f"/group/{name}")).content
            people.append((word, members.get("members") or ()))
        for word, names in people:
            for one in names:
                # A person may have several roles, and the highest one counts.
                found[one] = max(found.get(one, ""), LEVELS.get(word, "read"), key=_RANK.index)
        return found

    def forget_rules(self) -> None:
        """Discard the cached rules; see `ChangeStateReader`."""
        self._options.clear()
        self._people.clear()


def _is_of(one: Any, pull: PagurePull, us: Collection[str]) -> bool:
    """Return whether a flag belongs to the current commits: our flags contain the commit, others must be at least a
    second newer than the commits."""
    if one.status.who in us:
        return f"({pull.head[:HEAD_CHARS]})" in one.text
    return bool(one.at_ms > pull.renewed_ms)
