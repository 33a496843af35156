"""Describe pull requests at one moment, and compare them with known states to find what happened since. Pure.

A missed delivery loses nothing: the next query finds the difference. The mark records what no state shows: the last
comment and review that were reported, and the time of the last update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headgate.base.ids import derived
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, ProgramStatus, Vote
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent

MESSAGE_MAX_CHARS, FOOTERS_MAX_CHARS = 16_000, 4_000
"""Limits on message and footers; the middle of a longer message is left out."""

OLD_MS = 3_600_000
"""Age above which comments on a change that is seen for the first time are not reported."""
YOUNG_S = 10.0
"""For this long after a change's last update, another update may carry the same time, since times have whole
seconds."""
UNDER_WAY = frozenset({"pending", "queued", "in_progress"})
"""States of Headgate's own checks while they run, which are not reported as events."""
_NOTHING = Details()


class PullRemark(msgspec.Struct, frozen=True):
    """Represent a comment on the pull request itself, not on a line."""

    id: int
    who: ForgeAccount
    text: str
    at_ms: int


class Reviewed(msgspec.Struct, frozen=True):
    """Represent a review."""

    id: int
    who: ForgeAccount
    state: str
    """approved | changes_requested | commented | dismissed | pending"""
    at_ms: int
    pushes: bool
    """Whether its author may push."""


class ProgramReport(msgspec.Struct, frozen=True):
    """Represent what a program reports on the head."""

    status: ProgramStatus
    at_ms: int
    rerequested: bool = False
    """Whether somebody requested another run of the check."""


class PullAction(msgspec.Struct, frozen=True):
    """Record an action, since the state shows only its outcome."""

    action: str
    """Name of the action in GitHub's triggers: labeled, closed, converted_to_draft."""
    who: ForgeAccount
    what: str = ""
    """The label, for actions on labels."""


@dataclass(frozen=True, slots=True)
class AnyPull(ABC):
    """Describe a pull request by what all forges with pull requests provide."""

    project: str
    """Current name of the project, as owner/name."""
    number: int
    title: str
    body: str
    url: str
    state: str
    """OPEN | CLOSED | MERGED"""
    draft: bool
    created_ms: int
    updated: str
    head: str
    base: str
    base_commit: str
    author: ForgeAccount
    mergeable: bool | None
    merge_commit: str
    labels: tuple[str, ...]
    reviews: tuple[Reviewed, ...]
    """The newest reviews; reviews of strangers can push older ones off this list."""
    remarks: tuple[PullRemark, ...]
    reports: tuple[ProgramReport, ...]
    deeds: tuple[PullAction, ...] = field(default=(), kw_only=True)
    """The newest actions, oldest first, if the forge provides them."""

    @property
    def message(self) -> str:
        """Return the text that contains footers."""
        return f"{self.title}\n\n{self.body}" if self.body else self.title

    @property
    @abstractmethod
    def approved(self) -> bool:
        """Return whether the forge counts it as approved."""

    def doer(self, action: str, what: str = "") -> ForgeAccount | None:
        """Return the author of the last action of a kind; None if the forge does not provide it."""
        found = (one.who for one in reversed(self.deeds) if (one.action, one.what) == (action, what))
        return next(found, None)

    @property
    @abstractmethod
    def votes(self) -> tuple[Vote, ...]:
        """Return one vote of each author."""


def newest_of_each(reviews: Collection[Reviewed], opinions: Collection[Reviewed] = ()) -> tuple[Vote, ...]:
    """Return the newest vote of each author; a mere comment does not replace another vote. `opinions`: votes in
    addition to the reviews, one of each author."""
    found = {one.who.name: one for one in opinions}
    for one in reviews:
        # `opinions` may hold a newer review than the list, which strangers' reviews can push others off.
        if one.who.name in found and found[one.who.name].id > one.id:
            continue
        if one.state == "commented" and one.who.name in found and found[one.who.name].state != "commented":
            continue
        found[one.who.name] = one
    return tuple(Vote(one.who, "review", one.state, one.at_ms) for one in found.values())


def ms(at: str) -> int:
    """Return a time of a forge as milliseconds since the epoch."""
    return int(datetime.fromisoformat(at).timestamp() * 1000)


def cut(message: str) -> str:
    """Return a message as it is stored, shortened because each change is stored many times; its footers are at the
    end."""
    if len(message) <= MESSAGE_MAX_CHARS:
        return message
    return f"{message[: MESSAGE_MAX_CHARS - FOOTERS_MAX_CHARS]}\n[…]\n{message[-FOOTERS_MAX_CHARS:]}"


class Spoken(NamedTuple):
    """Name events and actions as the forge's triggers do; empty means that the forge has no name for it."""

    pull: str = "pull_request"
    review: str = "pull_request_review"
    check: str = "check_run"
    merged: str = "closed"
    reopened: str = "reopened"
    edited: str = "edited"
    labeled: str = "labeled"
    unlabeled: str = "unlabeled"
    submitted: str = "submitted"
    """Action of a submitted review; empty: the review's state is the action."""
    flags: bool = False
    """Whether the state of a status is the action of the event."""


USUAL = Spoken()


@dataclass(frozen=True, slots=True)
class ReportMark:
    """Mark up to where events were derived."""

    updated: str = ""
    """Time of the last update; `distinguished` adds a number after a tilde."""
    remark: int = 0
    review: int = 0
    again: str = ""
    """End time of the check whose re-run request was last reported."""
    floor: int = 0
    """Number of the last comment on former commits, for forges that do not attach comments to commits."""

    @classmethod
    def of(cls, text: str) -> ReportMark:
        """Parse a mark; an invalid one counts as empty."""
        parts = text.split("|")
        if len(parts) not in (4, 5) or not all(part.isdecimal() for part in (*parts[1:3], *parts[4:])):
            return cls()
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3], *map(int, parts[4:]))

    @property
    def since(self) -> str:
        """Return the time as the forge writes it."""
        return self.updated.partition("~")[0]

    @property
    def text(self) -> str:
        """Return the mark as it is stored."""
        text = f"{self.updated}|{self.remark}|{self.review}|{self.again}"
        return f"{text}|{self.floor}" if self.floor else text


def distinguished(updated: str, before: ReportMark, now_s: float) -> str:
    """Return a time that distinguishes updates within the same second. A recent time gets a number, so that it differs
    from the time in every list, and the change is queried again."""
    if now_s - ms(updated) / 1000 > YOUNG_S:
        return updated
    known, _, number = before.updated.partition("~")
    return f"{updated}~{int(number) + 1 if known == updated and number else 0}"


def has_moved(listed: Mapping[str, Any], known: ChangeState | None) -> bool:
    """Return whether a pull request, as a list of GitHub or Gitea shows it, may differ from its known state."""
    # Their times are whole seconds, so `updated_at` may miss a push, which the head shows.
    if known is None or not known.open or known.details is None or known.change.commit != listed["head"]["sha"]:
        return True
    return bool(ReportMark.of(known.details.mark).updated != listed["updated_at"])


def marked(pull: AnyPull, before: ReportMark) -> ReportMark:
    """Return the mark after all events are reported."""
    remark = max((one.id for one in pull.remarks), default=0)
    review = max((one.id for one in pull.reviews), default=0)
    rerequested = _rerequested(pull)
    return ReportMark(pull.updated, max(remark, before.remark), max(review, before.review), rerequested)


def _rerequested(pull: AnyPull) -> str:
    return ",".join(str(one.at_ms) for one in pull.reports if one.rerequested)


def events(
    now: ChangeState,
    was: ChangeState | None,
    pull: AnyPull,
    us: frozenset[str],
    at_ms: int,
    *,
    first: bool,
    spoken: Spoken = USUAL,
) -> Iterator[TriggerEvent]:
    """Yield the events. `us`: our accounts, whose actions are not reported except results; `first`: whether this is the
    first query of the project."""
    change, key = now.change, now.change.key
    before = was.details or _NOTHING if was is not None else _NOTHING
    mark = ReportMark.of(before.mark)

    def tell(kind: EventKind, happening: ForgeEvent, *what: object, fresh: bool = False) -> TriggerEvent:
        # The same fact gives the same id whenever it is derived, so a query that is repeated after a crash reports
        # nothing twice.
        id = derived(key, happening.event, happening.action, *(str(one) for one in what))
        return TriggerEvent(kind, change, id, at_ms, fresh, happening=happening)

    # The gate has landed the change, and `untold` requests the event of the merge. Return then, as the forge's own
    # report of the merge would be a second event for the same merge.
    if was is not None and was.untold:
        yield tell(EventKind.MERGED, ForgeEvent(spoken.pull, spoken.merged), "landed", change.commit)
        return
    # What happened to a change while it was closed starts nothing.
    if not now.open:
        if was is not None and was.open:
            kind, action = (EventKind.MERGED, spoken.merged) if now.landed else (EventKind.ABANDONED, "closed")
            yield tell(kind, ForgeEvent(spoken.pull, action, pull.doer("closed")), pull.updated)
        return
    if was is None or not was.open:
        action = "opened" if was is None else spoken.reopened
        who = pull.author if was is None else pull.doer("reopened")
        yield tell(EventKind.PROPOSED, ForgeEvent(spoken.pull, action, who), pull.updated, fresh=True)
    elif was.change.commit != change.commit:
        yield tell(EventKind.PROPOSED, ForgeEvent(spoken.pull, "changed"), was.change.commit, change.commit)
    elif _edited(was.change, change):
        yield tell(EventKind.STIRRED, ForgeEvent(spoken.pull, spoken.edited), pull.updated)
    if was is not None and before.draft is not None and before.draft != pull.draft:
        action = "converted_to_draft" if pull.draft else "ready_for_review"
        yield tell(EventKind.STIRRED, ForgeEvent(spoken.pull, action, pull.doer(action)), pull.updated)
    for happening, what in _activity(pull, before, mark, us, since_ms=at_ms - OLD_MS if first else 0, spoken=spoken):
        yield tell(EventKind.STIRRED, happening, *what)


def _edited(was: Change, now: Change) -> bool:
    return (was.title, was.message, was.branch) != (now.title, now.message, now.branch)


def _activity(
    pull: AnyPull, before: Details, mark: ReportMark, us: frozenset[str], since_ms: int, spoken: Spoken
) -> Iterator[tuple[ForgeEvent, tuple[object, ...]]]:
    """Yield the changes of labels, the comments and reviews of people, and the reports of programs, each with its
    identity."""
    for name in pull.labels:
        if name not in (before.labels or ()):
            yield (
                ForgeEvent(spoken.pull, spoken.labeled, pull.doer("labeled", name), added=(name,)),
                (name, pull.updated),
            )
    for name in before.labels or () if spoken.unlabeled else ():
        if name not in pull.labels:
            who = pull.doer("unlabeled", name)
            yield ForgeEvent(spoken.pull, spoken.unlabeled, who, removed=(name,)), (name, pull.updated)
    for remark in pull.remarks:
        # Ignore our own comments: they may quote commands, which Headgate would then obey.
        if remark.id > mark.remark and remark.at_ms >= since_ms and remark.who.name not in us:
            yield ForgeEvent(spoken.pull, "comment", remark.who, (cut(remark.text),)), (remark.id,)
    yield from _reviewed(pull, before, mark, us, spoken)
    known_states = {(one.who, one.name, one.check): one.state for one in before.statuses or ()}
    for report in pull.reports:
        own = report.status.who in us
        # The end of our own check is an event, since the status of one pipeline may trigger another.
        if not own or (before.statuses is not None and report.status.state not in UNDER_WAY):
            yield from _reported(
                report, known_states, ForgeAccount(report.status.who, permission="write" if own else ""), spoken
            )
    rerequested = _rerequested(pull)
    if rerequested and rerequested != mark.again:
        again = tuple(one.status for one in pull.reports if one.rerequested)
        yield ForgeEvent(spoken.check, "rerequested", statuses=again), (rerequested,)


def _reviewed(
    pull: AnyPull, before: Details, mark: ReportMark, us: frozenset[str], spoken: Spoken
) -> Iterator[tuple[ForgeEvent, tuple[object, ...]]]:
    votes = {vote.who.name: vote for vote in before.votes or ()}
    for one in pull.reviews:
        if one.who.name in us:
            continue
        vote = Vote(one.who, "review", one.state, one.at_ms)
        known = votes.get(one.who.name)
        if one.state == "dismissed":
            # Dismissal does not change a review's id or time, so the mark does not show it; compare its state instead.
            if known is not None and known.value != "dismissed" and known.since_ms == one.at_ms:
                event = ForgeEvent(spoken.review, "dismissed", votes=(vote,), state="dismissed")
                yield event, (one.id, "dismissed")
        elif one.id > mark.review:
            action, state = (spoken.submitted, one.state) if spoken.submitted else (one.state, "")
            yield ForgeEvent(spoken.review, action, one.who, votes=(vote,), state=state), (one.id,)


def _reported(
    report: ProgramReport, known_states: dict[tuple[str, str, bool], str], who: ForgeAccount, spoken: Spoken
) -> Iterator[tuple[ForgeEvent, tuple[object, ...]]]:
    one = report.status
    if known_states.get((one.who, one.name, one.check)) == one.state:
        return
    if not one.check:
        state = one.state if spoken.flags else ""
        event = ForgeEvent(spoken.pull, "status", who, statuses=(one,), state=state)
        yield event, (one.who, one.name, one.state, report.at_ms)
    elif report.at_ms:  # the check has ended
        yield ForgeEvent(spoken.check, "completed", statuses=(one,)), (one.who, one.name, one.state, report.at_ms)
