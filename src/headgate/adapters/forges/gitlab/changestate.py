"""Build the state of a change from a merge request: its files, who may do what, and what it lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import pygit2
from msgspec.structs import replace

from headgate.adapters.forges.gitlab.client import GitLabClient
from headgate.adapters.forges.gitlab.happenings import GitLabMark, events, marked
from headgate.adapters.forges.gitlab.people import People
from headgate.adapters.forges.gitlab.request import GitLabMergeRequest
from headgate.adapters.forges.gitlab.rules import rule_book
from headgate.adapters.forges.pulls import cut
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import HEADS
from headgate.adapters.git.series import few, files
from headgate.base.texts import line
from headgate.config.forges.facts import Details, ForgeAccount, Vote
from headgate.gate.change import Change, ChangeState, TriggerEvent

TITLE_MAX = 500
OPEN = frozenset({"opened", "locked"})


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
            return None  # the merge repeats the request

    async def _with_permission(self, request: GitLabMergeRequest, event: TriggerEvent) -> TriggerEvent:
        happening = event.happening
        if happening is None or happening.who is None or happening.who.name not in request.ids:
            return event
        may = await self._people.permission(request.project, request.ids[happening.who.name])
        return replace(event, happening=replace(happening, who=replace(happening.who, permission=may)))


def _details(request: GitLabMergeRequest, us: Collection[str], was: Details | None) -> Details:
    mark = marked(request, GitLabMark.of(was.mark if was is not None else ""))
    # Approvals and threads are not read of a closed one (`look`), so what was known of them stays.
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
