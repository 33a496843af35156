"""Define what is proposed: changes, refs, and the events that tell of them.  Pure data."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

from headgate.config.forges.facts import Details, ForgeEvent, PipelineCheck, Word

HEADS, TAGS = "refs/heads/", "refs/tags/"
ZEROS = "0" * 40
"""What a ref names that is not there."""


class EventKind(StrEnum):
    """Name the trigger events that a pipeline can list in its `trigger`."""

    PROPOSED = "change-proposed"
    APPROVED = "change-approved"
    ABANDONED = "change-abandoned"
    MERGED = "change-merged"
    REF_UPDATED = "ref-updated"
    PARENT_ENQUEUED = "parent-change-enqueued"
    """A change came into a pipeline: concerns those that need it."""
    PROJECT_MERGED = "project-change-merged"
    """A change landed from a pipeline: concerns the open ones of its project."""
    STIRRED = "change-stirred"
    """Something else was said of it or done to it, at a forge: the event's `happening` says what."""
    POSTED = "message-posted"
    OBJECT_CREATED = "object-created"
    OBJECT_UPDATED = "object-updated"
    OBJECT_DELETED = "object-deleted"
    IMAGE_BUILD = "image-build"
    """Somebody wants an image built, or it is due."""
    IMAGE_VALIDATE = "image-validate"
    """An image was uploaded that nobody has tried yet."""

    @property
    def ripples(self) -> bool:
        """Return whether the event concerns other changes than the one it happened to."""
        return self in (EventKind.PARENT_ENQUEUED, EventKind.PROJECT_MERGED)

    @property
    def is_of_image(self) -> bool:
        """Return whether it starts the jobs that build or try an image."""
        return self in (EventKind.IMAGE_BUILD, EventKind.IMAGE_VALIDATE)


class Occasion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what starts an item without a change: a message of a queue, or a change to an inventory object."""

    connection: str
    source: str
    """The queue it was posted to; the type of the object."""
    lane: str
    """What keeps its order in there: a partition of the queue; the object."""
    id: str
    """The message's, or the change's; unique in its connection."""
    name: str
    """The name of the occasion, for people."""
    body: str = "{}"
    """A JSON object, which jobs find as `zuul.trigger`."""
    trouble: str = ""
    """Why nothing can be started by it, for people."""

    @property
    def line(self) -> str:
        """Return the name of what its order is kept in."""
        return f"{self.connection} {self.source} {self.lane}"


class Change(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Represent one patchset of a proposed change, or one update of a ref (then without topic and number).

    `key` names the change over all its patchsets; `id` one patchset of it.  Where changes have numbers, their key is
    `<project>#<number>`, so that a change that is moved to another branch is the same one.
    """

    connection: str
    project: str
    """Canonical name, `<host>/<path>`; for a git connection the host is the connection's canonical hostname."""
    branch: str
    topic: str = ""
    commit: str = ""
    """The proposed commit, 40 hex digits (of a ref update: the new head)."""
    old_commit: str = ""
    ref: str = ""
    message: str = ""
    owner: str = ""
    url: str = ""
    files: tuple[str, ...] | None = None
    """Changed paths against the branch; None is unknown."""
    needs: tuple[str, ...] = ()
    """Keys of the changes it is built on, and of those its Depends-On footers name, in the order written."""
    bases: tuple[str, ...] = ()
    """The keys among them that it is built on: their commits are its nearest ancestors that were proposed for the
    same branch and that the branch lacks."""
    stale: tuple[str, ...] = ()
    """The keys among `bases` that have a newer patchset than the one it is built on."""
    unresolved: tuple[str, ...] = ()
    """Depends-On footers that name no branch of a project that is known; the text as written."""
    occasion: Occasion | None = None
    """Why there is something to do at the ref, although nobody updated it."""
    number: str = ""
    """The number within the project, at a forge that numbers its changes."""
    patchset: str = ""
    """Where patchsets have numbers of their own; elsewhere the commit names them."""
    base: str = ""
    """The commit of the branch that the forge compares it with, where it says so."""
    ignored: tuple[str, ...] = ()
    """Depends-On footers that name no change of any connection, and do not count; the text as written."""
    title: str = ""
    """Where it is not the first line of the message."""

    @property
    def is_change(self) -> bool:
        return bool(self.topic or self.number)

    @property
    def name(self) -> str:
        """Return what people call it within its project."""
        return self.number or self.topic

    @cached_property
    def key(self) -> str:
        if self.occasion is not None:
            return f"{self.project}@{self.ref}#{self.occasion.connection}/{self.occasion.id}"
        if self.number:
            return numbered(self.project, self.number)
        return f"{self.project}/{self.branch}/{self.topic}" if self.topic else f"{self.project}@{self.ref}"

    @property
    def tag(self) -> str:
        """Return the name of the tag that was updated; empty: it is no update of a tag."""
        return "" if self.is_change or not self.ref.startswith(TAGS) else self.ref.removeprefix(TAGS)

    @property
    def deletes(self) -> bool:
        """Return whether this is the deletion of a ref."""
        return not self.is_change and self.commit == ZEROS

    @property
    def id(self) -> str:
        if self.occasion is not None:
            return self.occasion.name
        return f"{self.name},{self.patchset or self.commit[:8]}" if self.is_change else self.commit


SHORT_MIN = 7
"""Digits of a commit by which a patchset can be named."""


def is_called(change: Change, said: str) -> bool:
    """Return whether somebody means this change, and this patchset of it: by its name, with the branch before it or the
    patchset behind it or both, or by its key.  A patchset is named by its number or its commit, or the commit's
    beginning."""
    if said in (change.key, change.id):
        return True
    names = (change.name, f"{change.branch}/{change.name}", change.key)
    if said in names:
        return change.is_change
    name, _, patchset = said.rpartition(",")
    known = patchset in (change.patchset, change.commit) or (
        len(patchset) >= SHORT_MIN and change.commit.startswith(patchset)
    )
    return bool(patchset) and change.is_change and name in names and known


def numbered(project: str, number: str) -> str:
    """Return the key of a change that has a number."""
    return f"{project}#{number}"


class ChangeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold what the connection currently knows about a change: the entry of the change cache."""

    change: Change
    open: bool = True
    approved: str = ""
    """The commit that was approved; approval counts only while it equals `change.commit`."""
    landed: bool = False
    reason: str = ""
    """Why it is not open, for people, when nobody withdrew it."""
    approvals: tuple[Word, ...] = ()
    """The approvals of people, for whichever patchset."""
    vetoes: tuple[Word, ...] = ()
    proposers: tuple[str, ...] = ()
    """The people who pushed this patchset, as far as the server tells."""
    untold: bool = False
    """The gate landed it, and the connection has not told yet that it is merged."""
    checks: tuple[PipelineCheck, ...] = ()
    """What pipelines said of it that other pipelines ask for."""
    details: Details | None = None
    """What its forge says of it; plain git says all of it above."""
    looked_up: bool = False
    """Another change needs it, and its connection has not told of it: what happened to it is still to be told."""

    @property
    def is_approved(self) -> bool:
        return self.open and self.approved == self.change.commit


class TriggerEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent something that happened at a connection."""

    kind: EventKind
    change: Change
    id: str
    """Unique, and the same when the same happening is told twice."""
    at_ms: int = 0
    """Milliseconds since the epoch, UTC, when it was seen."""
    fresh: bool = False
    """It is proposed, and was not before in any patchset."""
    pipeline: str = ""
    """Where it happened, of what happens in a pipeline; of an occasion, the pipeline that it starts."""
    shared: bool = False
    """More than one tenant has its project: that one of them does nothing about it says nothing."""
    happening: ForgeEvent | None = None
    """The same in the words of the forge's driver."""


class Tell(msgspec.Struct, frozen=True):
    """Ask to send this event to another pipeline."""

    pipeline: str
    event: TriggerEvent


def whose(event: TriggerEvent) -> str:
    """Return whose the event is among those of which there may be a flood: a project's changes, or its tags and other
    refs.  What happens to branches is nobody's: it may concern all, and nothing that comes later may be before it."""
    change = event.change
    if change.occasion is not None:
        return change.occasion.line
    if change.is_change:
        return change.project
    return "" if change.ref.startswith(HEADS) else f"{change.project}@"
