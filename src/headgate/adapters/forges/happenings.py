"""What happened to a pull request since it was last told of, by comparing.  Pure: the same however often it is asked.

A missed delivery is nothing: what it would have told is in the difference.  What is not in any state is remembered in
the mark: the last comment and review that were told, the moment of the last change that the forge counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.adapters.forges.pulls import AnyPull, Report, cut
from headgate.base.ids import derived
from headgate.config.forges.facts import Account, Details, Happening, Vote
from headgate.gate.change import Change, EventKind, Standing, TriggerEvent

OLD_MS = 3_600_000
"""Of what is seen for the first time ever, older comments are not told."""
_NOTHING = Details()


@dataclass(frozen=True, slots=True)
class Mark:
    """How far it was told."""

    updated: str = ""
    remark: int = 0
    review: int = 0
    again: str = ""
    """When the check ended that somebody wants to run once more, and that was told."""

    @classmethod
    def of(cls, text: str) -> Mark:
        """Return what a mark says; one of another form says nothing."""
        parts = text.split("|")
        if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            return cls()
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])

    @property
    def text(self) -> str:
        """Return it as it is kept."""
        return f"{self.updated}|{self.remark}|{self.review}|{self.again}"


def marked(pull: AnyPull, before: Mark) -> Mark:
    """Return the mark once everything is told."""
    remark = max((one.id for one in pull.remarks), default=0)
    review = max((one.id for one in pull.reviews), default=0)
    asked = _asked_again(pull)
    return Mark(pull.updated, max(remark, before.remark), max(review, before.review), asked)


def _asked_again(pull: AnyPull) -> str:
    return ",".join(str(one.at_ms) for one in pull.reports if one.asked_again)


def events(
    now: Standing, was: Standing | None, pull: AnyPull, us: frozenset[str], at_ms: int, *, first: bool
) -> Iterator[TriggerEvent]:
    """Yield what happened.  `us`: what Headgate said itself is not told; `first`: nobody ever looked at its project."""
    change, key = now.change, now.change.key
    before = was.details or _NOTHING if was is not None else _NOTHING
    mark = Mark.of(before.mark)

    def tell(kind: EventKind, happening: Happening, *what: object, fresh: bool = False) -> TriggerEvent:
        id = derived(key, happening.event, happening.action, *(str(one) for one in what))
        return TriggerEvent(kind, change, id, at_ms, fresh, happening=happening)

    if was is not None and was.untold:
        yield tell(EventKind.MERGED, Happening("pull_request", "closed"), "landed", change.commit)
        return
    if not now.open:
        if was is not None and was.open:
            kind = EventKind.MERGED if now.landed else EventKind.ABANDONED
            yield tell(kind, Happening("pull_request", "closed"), pull.updated)
        return
    if was is None or not was.open:
        action = "opened" if was is None else "reopened"
        who = pull.author if was is None else None
        yield tell(EventKind.PROPOSED, Happening("pull_request", action, who), pull.updated, fresh=True)
    elif was.change.commit != change.commit:
        yield tell(EventKind.PROPOSED, Happening("pull_request", "changed"), was.change.commit, change.commit)
    elif _edited(was.change, change):
        yield tell(EventKind.STIRRED, Happening("pull_request", "edited"), pull.updated)
    if was is not None and before.draft is not None and before.draft != pull.draft:
        action = "converted_to_draft" if pull.draft else "ready_for_review"
        yield tell(EventKind.STIRRED, Happening("pull_request", action), pull.updated)
    for happening, what in _said(pull, before, mark, us, since_ms=at_ms - OLD_MS if first else 0):
        yield tell(EventKind.STIRRED, happening, *what)


def _edited(was: Change, now: Change) -> bool:
    return (was.title, was.message, was.branch) != (now.title, now.message, now.branch)


def _said(
    pull: AnyPull, before: Details, mark: Mark, us: frozenset[str], since_ms: int
) -> Iterator[tuple[Happening, tuple[object, ...]]]:
    """Yield what people and programs said, each with what makes it this very thing."""
    for name in pull.labels:
        if name not in (before.labels or ()):
            yield Happening("pull_request", "labeled", added=(name,)), (name, pull.updated)
    for name in before.labels or ():
        if name not in pull.labels:
            yield Happening("pull_request", "unlabeled", removed=(name,)), (name, pull.updated)
    for remark in pull.remarks:
        if remark.id > mark.remark and remark.at_ms >= since_ms and remark.who.name not in us:
            yield Happening("pull_request", "comment", remark.who, (cut(remark.text),)), (remark.id,)
    yield from _reviewed(pull, before, mark, us)
    told = {(one.who, one.name, one.check): one.state for one in before.statuses or ()}
    for report in pull.reports:
        yield from _reported(report, told, us)
    asked = _asked_again(pull)
    if asked and asked != mark.again:
        again = tuple(one.status for one in pull.reports if one.asked_again)
        yield Happening("check_run", "rerequested", statuses=again), (asked,)


def _reviewed(
    pull: AnyPull, before: Details, mark: Mark, us: frozenset[str]
) -> Iterator[tuple[Happening, tuple[object, ...]]]:
    votes = {vote.who.name: vote for vote in before.votes or ()}
    for one in pull.reviews:
        if one.who.name in us:
            continue
        vote = Vote(one.who, "review", one.state, one.at_ms)
        known = votes.get(one.who.name)
        if one.state == "dismissed":
            if known is not None and known.value != "dismissed" and known.since_ms == one.at_ms:
                said = Happening("pull_request_review", "dismissed", votes=(vote,), state="dismissed")
                yield said, (one.id, "dismissed")
        elif one.id > mark.review:
            yield Happening("pull_request_review", "submitted", one.who, votes=(vote,), state=one.state), (one.id,)


def _reported(
    report: Report, told: dict[tuple[str, str, bool], str], us: frozenset[str]
) -> Iterator[tuple[Happening, tuple[object, ...]]]:
    one = report.status
    if one.who in us or told.get((one.who, one.name, one.check)) == one.state:
        return
    if not one.check:
        said = Happening("pull_request", "status", Account(one.who), statuses=(one,))
        yield said, (one.who, one.name, one.state, report.at_ms)
    elif report.at_ms:  # it has ended
        yield Happening("check_run", "completed", statuses=(one,)), (one.who, one.name, one.state, report.at_ms)
