"""A look at one change: its state, and what happened since the last look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from headgate.adapters.forges.gerrit.entities import ChangeInfo, Revision
from headgate.adapters.forges.gerrit.happenings import events, unheard
from headgate.adapters.forges.gerrit.rest import GerritNotThere, GerritRest
from headgate.adapters.forges.gerrit.server import Server, change_number, change_project
from headgate.adapters.forges.gerrit.translation import Stack, change, change_state, stack
from headgate.gate.change import ChangeState, TriggerEvent, numbered


class GerritLookResult(NamedTuple):
    change_state: ChangeState
    events: tuple[TriggerEvent, ...] = ()


class Looker:
    """Look at changes of one server."""

    def __init__(self, rest: GerritRest, server: Server, now_ms: Callable[[], int]) -> None:
        self._rest, self._server, self._now_ms = rest, server, now_ms
        self._projects: dict[int, str] = {}
        """Number -> canonical name of the project, of changes that were seen: people refer to them by number alone."""
        self.whole_topics = False
        """Whether the server submits all changes of a topic at once."""

    async def look(
        self, number: int, was: ChangeState | None, projects: Collection[str], *, afresh: bool = False
    ) -> GerritLookResult | None:
        """Return the news of a change; None if there are none, or it belongs to none of the projects. `was`: its known
        state; `afresh`: whether the changes below it may have changed as well. Raise GerritAway, GerritRefused."""
        try:
            info = await self._rest.change(number)
        except GerritNotThere as gone:
            return self._gone(was, gone)
        project = self._server.project(info.project)
        if project not in projects:
            return None
        if was is not None and was.change.project != project:
            # It was moved to another project, where it is a new change.
            was = None
        now = await self.read(info, was, afresh=afresh)
        if was is not None and was.landed and info.is_open and was.change.commit == now.change.commit:
            return None  # the gate has landed it, and Gerrit does not show that yet
        if was is not None and was.change.commit == now.change.commit:
            now = replace(now, checks=was.checks)
        # Gerrit mentions comments in the message that publishes
        # them, as `(1 comment)`; without a mention, a call is saved.
        talks = any("omment" in message.message for message in unheard(was, info))
        comments = await self._rest.patchset_comments(number) if talks and was != now else ()
        new_events = events(was, now, info, comments, self._now_ms())
        return GerritLookResult(now, new_events) if new_events or was != now else None

    async def read(self, info: ChangeInfo, was: ChangeState | None, *, afresh: bool = False) -> ChangeState:
        """Return the state of a change after an answer. Raise GerritAway, GerritRefused."""
        below = await self._below(info, was, afresh)
        if info.current is not None and len(info.current.commit.parents) > 1:
            # For a merge, Gerrit shows only what differs from an automatic
            # merge; the gate needs all that the branch will gain.
            files = await self._rest.files(info.number, info.current_revision, parent=1)
            current: Revision = replace(info.current, files=files)
            info = replace(info, revisions={**info.revisions, info.current_revision: current})
        found = change(self._server, info, below)
        self._projects[info.number] = found.project
        now = change_state(self._server, info, found)
        return replace(now, details=replace(now.details, together=self.whole_topics)) if now.details else now

    def _gone(self, was: ChangeState | None, why: GerritNotThere) -> GerritLookResult | None:
        if was is None or not was.open:
            return None
        reason = f"change {was.change.number} was deleted, or is hidden from {self._server.user}: {why}"
        return GerritLookResult(replace(was, open=False, reason=reason))

    async def _below(self, info: ChangeInfo, was: ChangeState | None, afresh: bool) -> Stack:
        if info.current is None or not info.current.commit.parents:
            return Stack()
        if was is not None and was.change.commit == info.current_revision and not (afresh and info.is_open):
            return Stack(was.change.bases, was.change.stale)
        return stack(self._server, info, await self._rest.related(info.number, info.current_revision))

    def learn(self, known: Iterable[ChangeState]) -> None:
        """Learn the projects of changes that were seen elsewhere."""
        self._projects |= {int(s.change.number): s.change.project for s in known if s.change.number}

    def named(self, url: str) -> str:
        """Return the key of this server's change in a URL, as far as it can be determined without a call; empty if
        there is none."""
        number = change_number(self._server, url)
        if number is None:
            return ""
        project = change_project(self._server, url) or self._projects.get(number, "")
        return numbered(project, str(number)) if project else ""
