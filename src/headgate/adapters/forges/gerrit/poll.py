"""Look at one change: its state, and what happened since the last look, in the words of Gerrit's own events."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headgate.adapters.forges.gerrit.api import GerritNotThere, GerritRest
from headgate.adapters.forges.gerrit.entities import ChangeInfo, GerritComment, GerritMessage, Revision
from headgate.adapters.forges.gerrit.entities import GerritAccount as Person
from headgate.adapters.forges.gerrit.server import Server, change_number, change_project
from headgate.adapters.forges.gerrit.translation import GerritMark, Stack, change, change_state, stack, votes
from headgate.base.ids import derived
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, Vote
from headgate.gate.state.change import ChangeState, EventKind, TriggerEvent, numbered


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


OF_THE_SERVER = "autogenerated:gerrit:"
"""Tags of messages in which the server itself describes what a user did."""
MESSAGES_MAX = 100
"""Most new messages that one look reports; the latest are kept."""
_VOTED = re.compile(r"(?<!\S)(-?)([A-Za-z][A-Za-z0-9-]*?)([+-]\d+)?(?=$|\s)")
_OPENING = re.compile(r"\APatch Set \d+:?(.*)")


class _What(NamedTuple):
    kind: EventKind
    happening: ForgeEvent
    of: str
    """What distinguishes the event from others of its kind."""
    fresh: bool = False


def events(
    was: ChangeState | None, now: ChangeState, info: ChangeInfo, comments: Sequence[GerritComment], at_ms: int
) -> tuple[TriggerEvent, ...]:
    """Return the new events. `comments`: those on the patch set as a whole."""
    found = [
        *_proposed(was, now, info),
        *_comments(was, now, info, comments),
        *_set(was, now, info),
        *_closed(was, now, info),
    ]
    change = now.change
    return tuple(
        TriggerEvent(
            one.kind,
            change,
            derived(one.kind, change.key, change.commit, one.happening.event, one.of),
            at_ms,
            one.fresh,
            happening=one.happening,
        )
        for one in found
    )


def unheard(was: ChangeState | None, info: ChangeInfo) -> tuple[GerritMessage, ...]:
    """Return the messages that are not reported yet."""
    if was is None or was.details is None:
        return info.messages[-MESSAGES_MAX:]
    _, last, date = GerritMark.of(was.details.mark)
    ids = [message.id for message in info.messages]
    if last in ids:
        return info.messages[ids.index(last) + 1 :][-MESSAGES_MAX:]
    return tuple(one for one in info.messages if one.date > date)[-MESSAGES_MAX:]  # that message was deleted


def _proposed(was: ChangeState | None, now: ChangeState, info: ChangeInfo) -> Iterator[_What]:
    if not now.open:
        return
    moved = was is not None and was.change.branch != now.change.branch
    if was is None or moved or was.change.commit != now.change.commit:
        who = _account(info.current.uploader if info.current is not None else info.owner)
        of = f"{now.change.patchset} {now.change.branch}" if moved else now.change.patchset
        yield _What(EventKind.PROPOSED, ForgeEvent("patchset-created", who=who), of, was is None)
    elif not was.open:
        by = _by(info, "restore")
        yield _What(EventKind.STIRRED, ForgeEvent("change-restored", who=by), info.mark)


def _comments(
    was: ChangeState | None, now: ChangeState, info: ChangeInfo, comments: Sequence[GerritComment]
) -> Iterator[_What]:
    before = _values(was, now)
    for message in unheard(was, info):
        if str(message.revision) != now.change.patchset:
            continue  # its patch set no longer exists
        who = _account(message.author)
        if message.tag.startswith(f"{OF_THE_SERVER}deleteVote"):
            shown = _deleted(message, votes(info), before)
            yield _What(EventKind.STIRRED, ForgeEvent("vote-deleted", who=who, votes=shown), message.id)
        elif not message.tag.startswith(OF_THE_SERVER):
            texts = (message.message, *(one.message for one in comments if one.of_message == message.id))
            shown = _shown(message, who, votes(info), before)
            yield _What(
                EventKind.STIRRED, ForgeEvent("comment-added", who=who, comments=texts, votes=shown), message.id
            )


def _values(was: ChangeState | None, now: ChangeState) -> Mapping[tuple[ForgeAccount, str], str]:
    """Return the earlier votes on this patch set: account and label -> value."""
    if was is None or was.details is None or was.change.commit != now.change.commit:
        return {}
    return {(vote.who, vote.label): vote.value for vote in was.details.votes or ()}


def _shown(
    message: GerritMessage, who: ForgeAccount, now: Sequence[Vote], before: Mapping[tuple[ForgeAccount, str], str]
) -> tuple[Vote, ...]:
    """Return all votes of a message's author; votes of the message itself have their earlier values."""
    given = voted(message.message)
    found = []
    for vote in now:
        if vote.who == who:
            old = before.get((who, vote.label), "0") if vote.label in given else ""
            found.append(Vote(who, vote.label, vote.value, vote.since_ms, old))
    taken = (label for label, value in given.items() if value == "0")
    found += [Vote(who, label, "0", old_value=before.get((who, label), "")) for label in taken]
    return tuple(found)


def _deleted(
    message: GerritMessage, now: Sequence[Vote], before: Mapping[tuple[ForgeAccount, str], str]
) -> tuple[Vote, ...]:
    """Return the votes that were deleted. The author of the message is who deleted them; it tells whose they were:
    `Removed Code-Review+2 by <GERRIT_ACCOUNT_1000002>` or, at older servers, `by Bob <bob@example.org>`."""
    line, left = message.message.partition("\n")[0], {(vote.who, vote.label) for vote in now}
    # The space keeps `Review` apart from `Code-Review`.
    named = [(one, old) for one, old in before.items() if f" {one[1]}{int(old):+d} by " in line]
    whose = {_account(one) for one in message.accounts if f"<GERRIT_ACCOUNT_{one.id}>" in line}
    # An address may be hidden. Then it was one of the votes that are gone.
    found = [(one, old) for one, old in named if one[0] in whose or (one[0].email and f"<{one[0].email}>" in line)]
    found = found or [(one, old) for one, old in named if one not in left]
    return tuple(Vote(who, label, "0", old_value=old) for (who, label), old in found)


def voted(text: str) -> dict[str, str]:
    """Return the labels in a message's first line, with their values; `0` withdraws a vote."""
    opening = _OPENING.match(text)
    found = {}
    for away, label, value in _VOTED.findall(opening[1]) if opening is not None else ():
        if away and not value:
            found[label] = "0"
        elif value:
            found[label] = str(int(value))
    return found


def _set(was: ChangeState | None, now: ChangeState, info: ChangeInfo) -> Iterator[_What]:
    """Return what is set now and was different before."""
    old = was.details if was is not None and was.details is not None else None
    new = now.details or Details()
    if old is None or not now.open:
        return
    tags, tagged = set(old.hashtags or ()), set(new.hashtags or ())
    if tags != tagged:
        added, removed = tuple(sorted(tagged - tags)), tuple(sorted(tags - tagged))
        who = _by(info, "setHashtag")
        yield _What(EventKind.STIRRED, ForgeEvent("hashtags-changed", who=who, added=added, removed=removed), info.mark)
    if old.draft != new.draft:
        yield _What(EventKind.STIRRED, ForgeEvent("wip-state-changed"), info.mark)
    if (old.topic or "") != (new.topic or ""):
        yield _What(EventKind.STIRRED, ForgeEvent("topic-changed", who=_by(info, "setTopic")), info.mark)


def _closed(was: ChangeState | None, now: ChangeState, info: ChangeInfo) -> Iterator[_What]:
    if now.open or was is None:
        return
    if now.landed and (was.open or was.untold or not was.landed):
        who = _by(info, "merged")
        yield _What(EventKind.MERGED, ForgeEvent("change-merged", who=who), now.change.commit)
    elif not now.landed and was.open:
        who = _by(info, "abandon")
        yield _What(EventKind.ABANDONED, ForgeEvent("change-abandoned", who=who), info.mark)


def _by(info: ChangeInfo, did: str) -> ForgeAccount | None:
    """Return who caused the last event that the server describes; None if it does not name anybody."""
    found = (m.author for m in reversed(info.messages) if m.tag.startswith(f"{OF_THE_SERVER}{did}"))
    author = next(found, None)
    return _account(author) if author is not None else None


def _account(person: Person) -> ForgeAccount:
    return ForgeAccount(person.username, person.email)
