"""Find by comparing what happened to a merge request since it was last told of.  Pure: the same however often asked.

A missed delivery is nothing: what it would have told is in the difference.  What is in no state is remembered in the
mark: the last comment that was told, and the moment of the last change that GitLab counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.adapters.forges.gitlab.request import GitLabMergeRequest
from headgate.adapters.forges.pulls import cut
from headgate.base.ids import derived
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent
from headgate.gate.change import ChangeState, EventKind, TriggerEvent

OLD_MS = 3_600_000
"""Age above which comments on a change that is seen for the first time are not reported."""
EVENT = "gl_merge_request"
_NOTHING = Details()


@dataclass(frozen=True, slots=True)
class GitLabMark:
    """Mark how far events were derived."""

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
    """Yield the events. `us`: our account, whose own actions are not reported; `first`: whether this is the first look
    at the project."""
    change = now.change
    before = was.details or _NOTHING if was is not None else _NOTHING

    def tell(kind: EventKind, happening: ForgeEvent, *what: object, fresh: bool = False) -> TriggerEvent:
        id = derived(change.key, happening.event, happening.action, *(str(one) for one in what))
        return TriggerEvent(kind, change, id, at_ms, fresh, happening=happening)

    # The gate has landed it and says so here. GitLab's own news of the merge would be a second event for one merge.
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
    """Tell whether the description or target changed, or a draft became ready: then another test is necessary."""
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
    # By time as well as by name, so that an approval withdrawn and given again between two looks is found.
    fresh = [one.who.name for one in request.approvals if known.get(one.who.name) != one.at_ms]
    fresh = [name for name in fresh if name not in us]
    gone = known.keys() - {one.who.name for one in request.approvals} - us
    if request.approved and fresh:
        yield ForgeEvent(EVENT, "approved", ForgeAccount(fresh[-1])), (request.head, *fresh, request.updated)
    # Approvals that a push took away are no act of a person.
    elif before.approved and not request.approved and gone and same:
        yield ForgeEvent(EVENT, "unapproved"), (request.head, *sorted(gone), request.updated)
    for remark in request.remarks:
        if remark.at_ms >= since_ms and remark.who.name not in us:
            yield ForgeEvent(EVENT, "comment", ForgeAccount(remark.who.name), (cut(remark.text),)), (remark.id,)
