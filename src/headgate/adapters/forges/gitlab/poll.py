"""Query a GitLab: its open merge requests, the state of each, and what happened to it.

A missed delivery loses nothing: the next query finds the difference. The mark records what no state shows: the last
comment that was reported, and the time of the last update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pygit2
from msgspec.structs import replace

from headgate.adapters.forges.gitlab.client import GitLabClient, People
from headgate.adapters.forges.gitlab.request import GitLabMergeRequest, look, rule_book
from headgate.adapters.forges.poll import Found, Guarded, PollScope, ProjectLook, Words, listed
from headgate.adapters.forges.pulls import OLD_MS, cut
from headgate.adapters.forges.rest import ListTooLong, Query
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import HEADS
from headgate.adapters.git.series import few, files
from headgate.base.ids import derived
from headgate.base.texts import line
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, Vote
from headgate.config.operator.model import Protection
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent

TITLE_MAX = 500
OPEN = frozenset({"opened", "locked"})
"""States of merge requests that are open."""
EVENT = "gl_merge_request"
_NOTHING = Details()
WORDS = Words("merge request", ForgeEvent(EVENT, "merged"), ForgeEvent("gl_push"), settles=True)


def ref_of(number: int) -> str:
    """Return the ref of a merge request's head, which also exists if its fork is deleted."""
    return f"refs/merge-requests/{number}/head"


class GitLabChangeStateReader:
    """Read the states of changes at one GitLab."""

    def __init__(
        self,
        client: GitLabClient,
        people: People,
        engine: Callable[[], GitEngine],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._people, self._engine, self._now_s = client, people, engine, now_s

    async def of(
        self,
        request: GitLabMergeRequest,
        was: ChangeState | None,
        us: Collection[str],
        heads: Mapping[str, str],
        *,
        first: bool,
    ) -> tuple[ChangeState, list[TriggerEvent]]:
        """Return the change state of a merge request, and what happened since `was`.  `heads`: ref -> commit of the
        branches.  Raise ReporterAway."""
        project, open = request.project, request.state in OPEN
        same = was is not None and was.change.commit == request.head and was.change.branch == request.target
        paths = was.change.files if was is not None and same else None
        if paths is None and open:
            paths = await self._files(request, heads)
        change = Change(
            connection=self._client.account.name,
            project=project,
            branch=request.target,
            commit=request.head,
            ref=ref_of(request.number),
            message=cut((request.body or request.title).replace("\0", "\ufffd")),
            owner=request.author.name,
            url=request.url,
            files=paths,
            number=str(request.number),
            base=request.base,
            title=line(request.title, TITLE_MAX),
        )
        if was is not None and same:
            change = replace(change, needs=was.change.needs, unresolved=was.change.unresolved)
        details = _details(request, us, was.details if was is not None else None)
        approved = request.head if request.approved else ""
        now = ChangeState(change, open, approved, request.state == "merged", details=details)
        trigger_events = list(events(now, was, request, frozenset(us), int(self._now_s() * 1000), first=first))
        return now, [await self._with_permission(request, event) for event in trigger_events]

    async def _files(self, request: GitLabMergeRequest, heads: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the changed files, from git, which has no limit on their number; None if they cannot be determined
        yet."""
        head = heads.get(HEADS + request.target, "")
        if not head:
            return None
        try:
            mirror = self._engine().mirror(request.project, self._client.account.name)
            if await mirror.bring({ref_of(request.number): request.head, HEADS + request.target: head}):
                return None
            return few((await files(mirror, head, {request.head}))[request.head])
        except (GitError, OSError, pygit2.GitError):
            return None  # the merge fetches again and reports the problem

    async def _with_permission(self, request: GitLabMergeRequest, event: TriggerEvent) -> TriggerEvent:
        happening = event.happening
        if happening is None or happening.who is None or happening.who.name not in request.ids:
            return event
        may = await self._people.permission(request.project, request.ids[happening.who.name])
        return replace(event, happening=replace(happening, who=replace(happening.who, permission=may)))


def _details(request: GitLabMergeRequest, us: Collection[str], was: Details | None) -> Details:
    mark = marked(request, GitLabMark.of(was.mark if was is not None else ""))
    # `look` does not read the approvals and threads of a closed merge request, so keep the last known ones.
    if request.state not in OPEN:
        return replace(was or Details(), us=tuple(us), state=request.state.upper(), mark=mark.text)
    votes = (Vote(ForgeAccount(one.who.name), "review", "approved", one.at_ms) for one in request.approvals)
    return Details(
        us=tuple(us),
        state=request.state.upper(),
        draft=request.draft,
        votes=tuple(votes),
        approved=request.approved,
        statuses=tuple(one.status for one in request.jobs) or None,
        labels=request.labels,
        mergeable=request.mergeable,
        rules=rule_book(request),
        mark=mark.text,
    )


@dataclass(frozen=True, slots=True)
class GitLabMark:
    """Mark up to where events were derived."""

    updated: str = ""
    remark: int = 0

    @classmethod
    def of(cls, text: str) -> GitLabMark:
        """Parse a mark; an invalid one counts as empty."""
        updated, _, remark = text.partition("|")
        return cls(updated, int(remark)) if remark.isdecimal() else cls()

    @property
    def text(self) -> str:
        """Return the mark as it is stored."""
        return f"{self.updated}|{self.remark}"


def marked(request: GitLabMergeRequest, before: GitLabMark) -> GitLabMark:
    """Return the mark after all events are reported."""
    return GitLabMark(request.updated, max((before.remark, *(one.id for one in request.remarks))))


def events(
    now: ChangeState,
    was: ChangeState | None,
    request: GitLabMergeRequest,
    us: frozenset[str],
    at_ms: int,
    *,
    first: bool,
) -> Iterator[TriggerEvent]:
    """Yield the events. `us`: our account, whose own actions are not reported; `first`: whether this is the first query
    of the project."""
    change = now.change
    before = was.details or _NOTHING if was is not None else _NOTHING

    def tell(kind: EventKind, happening: ForgeEvent, *what: object, fresh: bool = False) -> TriggerEvent:
        id = derived(change.key, happening.event, happening.action, *(str(one) for one in what))
        return TriggerEvent(kind, change, id, at_ms, fresh, happening=happening)

    # The gate has landed the change, and `untold` requests the event of the merge. Return then, as GitLab's own report
    # of the merge would be a second event for the same merge.
    if was is not None and was.untold:
        yield tell(EventKind.MERGED, ForgeEvent(EVENT, "merged"), "landed", change.commit)
        return
    if not now.open:
        if was is not None and was.open:
            kind, action = (EventKind.MERGED, "merged") if now.landed else (EventKind.ABANDONED, "closed")
            yield tell(kind, ForgeEvent(EVENT, action), request.updated)
        return
    author = ForgeAccount(request.author.name)
    if was is None:
        yield tell(EventKind.PROPOSED, ForgeEvent(EVENT, "opened", author), request.updated, fresh=True)
    elif not was.open:
        yield tell(EventKind.PROPOSED, ForgeEvent(EVENT, "reopened"), request.updated, fresh=True)
    elif was.change.commit != change.commit:
        yield tell(EventKind.PROPOSED, ForgeEvent(EVENT, "changed"), was.change.commit, change.commit)
    elif _edited(was, now):
        yield tell(EventKind.STIRRED, ForgeEvent(EVENT, "changed"), request.updated)
    same = was is not None and was.change.commit == change.commit
    for happening, what in _activity(request, before, us, same=same, since_ms=at_ms - OLD_MS if first else 0):
        yield tell(EventKind.STIRRED, happening, *what)


def _edited(was: ChangeState, now: ChangeState) -> bool:
    """Return whether the description or target changed, or a draft became ready: then another test is necessary."""
    drafted = was.details is not None and was.details.draft is True
    ready = drafted and now.details is not None and now.details.draft is False
    return ready or (was.change.message, was.change.branch) != (now.change.message, now.change.branch)


def _activity(
    request: GitLabMergeRequest, before: Details, us: frozenset[str], *, same: bool, since_ms: int
) -> Iterator[tuple[ForgeEvent, tuple[object, ...]]]:
    """Yield the changes of labels and approvals, and the comments, each with its identity. `same`: no other commit was
    pushed."""
    old, new = before.labels or (), request.labels
    added, removed = tuple(n for n in new if n not in old), tuple(n for n in old if n not in new)
    if added or removed:
        yield ForgeEvent(EVENT, "labeled", added=added, removed=removed), (*added, "-", *removed, request.updated)
    known = {vote.who.name: vote.since_ms for vote in before.votes or ()}
    # Compare times as well as names, to find an approval that was withdrawn and given again between two queries.
    fresh = [one.who.name for one in request.approvals if known.get(one.who.name) != one.at_ms]
    fresh = [name for name in fresh if name not in us]
    gone = known.keys() - {one.who.name for one in request.approvals} - us
    if request.approved and fresh:
        yield ForgeEvent(EVENT, "approved", ForgeAccount(fresh[-1])), (request.head, *fresh, request.updated)
    # An approval that a push removes is not withdrawn by a person, hence `same`.
    elif before.approved and not request.approved and gone and same:
        yield ForgeEvent(EVENT, "unapproved"), (request.head, *sorted(gone), request.updated)
    for remark in request.remarks:
        if remark.at_ms >= since_ms and remark.who.name not in us:
            yield ForgeEvent(EVENT, "comment", ForgeAccount(remark.who.name), (cut(remark.text),)), (remark.id,)


@dataclass(slots=True)
class GitLabSource:
    """Read projects of one GitLab; see `forges.watch.PollSource`."""

    client: GitLabClient
    people: People
    engine: Callable[[], GitEngine]
    stands: GitLabChangeStateReader

    async def look(self, scope: PollScope) -> ProjectLook:
        """Start a poll of one project; see `forges.watch.PollSource`."""
        asking = GitLabProjectPoll(self.client, self.stands, await self.people.us(), scope.project)
        connection = self.client.account.name
        return ProjectLook(asking, connection, self.engine, scope, asking.protection)

    def refused(self, project: str) -> None:
        """Forget our account, so that the next query checks the token, whose state git's errors do not show clearly;
        see `forges.watch.PollSource`."""
        self.people.forget()


@dataclass(slots=True)
class GitLabProjectPoll:
    """Query one project of a GitLab; see `forges.poll.ProjectPoll`."""

    client: GitLabClient
    stands: GitLabChangeStateReader
    us: tuple[str, ...]
    project: str
    """Canonical name of the project."""
    words: Words = WORDS

    async def opened(self, known: Mapping[int, ChangeState]) -> Mapping[int, bool]:
        """Return the numbers of open changes, and whether each has moved; see `forges.poll.ProjectPoll`."""
        path = f"{self.client.account.path(self.project)}/merge_requests"
        found: dict[int, bool] = {}
        # Sort by creation: sorted by update, changes would shift between pages while they are read.
        query: Query = {"state": "opened", "order_by": "created_at", "sort": "asc"}
        async for page in self.client.pages(self.client.key, path, query, urgent=False):
            found |= listed(page, "iid", known, _differs)
        return found

    async def one(
        self, number: int, was: ChangeState | None, heads: Mapping[str, str], *, first: bool, urgent: bool
    ) -> Found | None:
        """Return the state of one change and its new events; see `forges.poll.ProjectPoll`."""
        # A known change without comments gets 1: unlike 0, it makes `look` read more pages than at the first query.
        after = max(GitLabMark.of(was.details.mark).remark, 1) if was is not None and was.details is not None else 0
        request = await look(self.client, self.project, number, after, urgent=urgent)
        if was is None and request.state not in OPEN:
            return None
        return await self.stands.of(request, was, self.us, heads, first=first)

    async def protection(self) -> Guarded:
        """Return the protected branches, from the list of branches; see `forges.poll.ProjectLook`. GitLab locks
        none."""
        found: set[str] = set()
        path = f"{self.client.account.path(self.project)}/repository/branches"
        try:
            async for page in self.client.pages(self.client.key, path, urgent=False, complete=True):
                found |= {str(one["name"]) for one in page if one["protected"]}
        except ListTooLong:
            return None, "it has too many branches to read their protection: the last known answer stays valid"
        return Protection(frozenset(found), frozenset()), ""

    def forget_rules(self) -> None:
        """Do nothing: GitLab applies the rules itself in each response; see `forges.poll.ProjectPoll`."""


def _differs(there: Mapping[str, Any], known: ChangeState | None) -> bool:
    """Return whether to query a merge request. One that lacks something is always queried: it may lack a pipeline, and
    `updated_at` does not change with the state of a pipeline."""
    if known is None or not known.open or known.details is None or known.change.commit != there["sha"]:
        return True
    return bool(known.details.rules) or GitLabMark.of(known.details.mark).updated != there["updated_at"]
