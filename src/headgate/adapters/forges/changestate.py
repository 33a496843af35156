"""Build the state of a change from a pull request: its files, who may do what, and the rules in force."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Generic, TypeVar
from urllib.parse import quote

import pygit2
from msgspec import structs

from headgate.adapters.forges.poll import Found
from headgate.adapters.forges.pulls import USUAL, AnyPull, ReportMark, Spoken, cut, distinguished, events
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotThere, Rejected, Rest
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import HEADS
from headgate.adapters.git.series import few, files
from headgate.base.texts import line
from headgate.config.forges.facts import Details, ForgeEvent
from headgate.gate.state.change import Change, ChangeState, TriggerEvent

LABELS_MAX, STATUSES_MAX, TITLE_MAX = 100, 500, 500
FRESH_S = 600.0
"""How long a permission, or our right to bypass a ruleset, is cached."""
KNOWN_MAX = 4_096
PERMISSIONS = {"owner": "admin"}
"""Permissions that forges name besides read, write, admin and none -> the equivalent one of these."""


Pull = TypeVar("Pull", bound=AnyPull)


class ChangeStateReader(ABC, Generic[Pull]):
    """Read the states of changes at one forge."""

    spoken: Spoken = USUAL
    """Names of events, as triggers of this forge use them."""
    times_in_seconds: bool = False
    """Whether the forge's times have whole seconds and nothing else distinguishes two events within one second."""

    def __init__(
        self, rest: Rest, connection: str, engine: Callable[[], GitEngine], now_s: Callable[[], float] = time.time
    ) -> None:
        self._rest, self._connection, self._engine, self._now_s = rest, connection, engine, now_s
        self._permissions: dict[tuple[str, str], tuple[float, str]] = {}
        """(owner/name, login) -> when the entry expires, and the permission."""

    @abstractmethod
    async def details(
        self, key: ForgeKey, pull: Pull, us: Collection[str], mark: ReportMark, files: Collection[str] | None
    ) -> Details:
        """Return the parts of the state that may change while the patchset stays the same. `mark`: how far events were
        reported; `files`: changed files, None if unknown."""

    @abstractmethod
    def forget_rules(self) -> None:
        """Discard the cached rules, since somebody has changed them."""

    async def of(
        self,
        key: ForgeKey,
        project: str,
        pull: Pull,
        was: ChangeState | None,
        us: Collection[str],
        heads: Mapping[str, str],
        *,
        first: bool,
    ) -> Found:
        """Return the change state of a pull request of `project` (canonical name), and what happened since `was`.

        `heads`: ref -> commit of its branches.  Raise ReporterAway, ForgeDenied, Rejected, NotThere."""
        mark = ReportMark.of(was.details.mark if was and was.details else "")
        if self.times_in_seconds:
            pull = replace(pull, updated=distinguished(pull.updated, mark, self._now_s()))
        same = was is not None and was.change.commit == pull.head and was.change.branch == pull.base
        paths = was.change.files if was is not None and same else None
        # Unknown files are read again: the last poll may not have been able to fetch the commit.
        if paths is None and pull.state == "OPEN":
            paths = await self._files(project, pull, heads)
        change = Change(
            connection=self._connection,
            project=project,
            branch=pull.base,
            commit=pull.head,
            ref=f"refs/pull/{pull.number}/head",
            message=cut(pull.message.replace("\0", "\ufffd")),
            owner=pull.author.name,
            url=pull.url,
            files=paths,
            number=str(pull.number),
            base=pull.base_commit,
            title=line(pull.title, TITLE_MAX),
        )
        if was is not None and same:
            # The scheduler has read the footers of this patchset;
            # leaving them out here would drop its needs for a moment.
            change = structs.replace(change, needs=was.change.needs, unresolved=was.change.unresolved)
        details = await self.details(key, pull, us, mark, paths)
        approved = pull.head if pull.approved else ""
        now = ChangeState(change, pull.state == "OPEN", approved, pull.state == "MERGED", details=details)
        at_ms = int(self._now_s() * 1000)
        trigger_events = list(events(now, was, pull, frozenset(us), at_ms, first=first, spoken=self.spoken))
        return now, [await self._with_permission(key, pull.project, event) for event in trigger_events]

    async def _files(self, project: str, pull: Pull, heads: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the changed files, from git, which has no limit on their number; None if they cannot be determined
        yet."""
        head = heads.get(HEADS + pull.base, "")
        if not head:
            return None
        try:
            mirror = self._engine().mirror(project, self._connection)
            if await mirror.bring({f"refs/pull/{pull.number}/head": pull.head, HEADS + pull.base: head}):
                return None
            return few((await files(mirror, head, {pull.head}))[pull.head])
        except (GitError, OSError, pygit2.GitError):
            return None  # the merge fetches again and reports the problem

    async def _with_permission(self, key: ForgeKey, project: str, event: TriggerEvent) -> TriggerEvent:
        happening = event.happening
        if happening is None or happening.who is None or not happening.who.name or happening.who.permission:
            return event
        who = structs.replace(happening.who, permission=await self.permission(key, project, happening.who.name))
        votes = tuple(structs.replace(vote, who=who) if vote.who.name == who.name else vote for vote in happening.votes)
        updated: ForgeEvent = structs.replace(happening, who=who, votes=votes)
        return structs.replace(event, happening=updated)

    async def permission(self, key: ForgeKey, project: str, login: str) -> str:
        """Return read, write, admin or none; empty if unknown."""
        now_s = self._now_s()
        until_s, known = self._permissions.get((project, login), (0.0, ""))
        if until_s > now_s:
            return known
        try:
            answer = await self._rest.get(key, f"/repos/{project}/collaborators/{quote(login, safe='')}/permission")
            known = PERMISSIONS.get(str(answer.content["permission"]), str(answer.content["permission"]))
        # The forge returns 404 for people who are not collaborators.
        except NotThere:
            known = "none"
        # Unknown is not `none`: requirements on permissions then wait instead of rejecting people who may write.
        except (ForgeDenied, Rejected):
            known = ""
        self._permissions[project, login] = (now_s + FRESH_S, known)
        while len(self._permissions) > KNOWN_MAX:
            self._permissions.pop(next(iter(self._permissions)))
        return known
