"""Define changes, updates of refs, events about them, and the records of them that pipelines store.  Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property

import msgspec

from headgate.config.forges.facts import Details, ForgeEvent, PipelineCheck, Word

HEADS, TAGS = "refs/heads/", "refs/tags/"
ZEROS = "0" * 40
"""Commit that stands for a ref that does not exist."""
RECORD_MAX_BYTES = 400_000
"""Limit on the record of a change or an event from a forge, so that it fits into a commit of the store with others."""
SHORT_MIN = 7
"""Smallest number of digits of a commit that can name a patchset."""


class EventKind(StrEnum):
    """Name the trigger events that a pipeline can list in its `trigger`."""

    PROPOSED = "change-proposed"
    APPROVED = "change-approved"
    ABANDONED = "change-abandoned"
    MERGED = "change-merged"
    REF_UPDATED = "ref-updated"
    PARENT_ENQUEUED = "parent-change-enqueued"
    """A change entered a pipeline; the event concerns the changes that need it."""
    PROJECT_MERGED = "project-change-merged"
    """A change landed from a pipeline; the event concerns the open changes of its project."""
    STIRRED = "change-stirred"
    """Something else happened to a change at a forge; the event's `happening` has the details."""
    POSTED = "message-posted"
    OBJECT_CREATED = "object-created"
    OBJECT_UPDATED = "object-updated"
    OBJECT_DELETED = "object-deleted"
    IMAGE_BUILD = "image-build"
    """Somebody requested the build of an image, or the build is due."""
    IMAGE_VALIDATE = "image-validate"
    """An image was uploaded and has not been tested yet."""

    @property
    def ripples(self) -> bool:
        """Return whether the event concerns other changes than the one it happened to."""
        return self in (EventKind.PARENT_ENQUEUED, EventKind.PROJECT_MERGED)

    @property
    def is_of_image(self) -> bool:
        """Return whether it starts the jobs that build or test an image."""
        return self in (EventKind.IMAGE_BUILD, EventKind.IMAGE_VALIDATE)


class Occasion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what starts an item without a change: a message of a queue, or a change to an inventory object."""

    connection: str
    source: str
    """Name of the message's queue, or type of the object."""
    # Records keep the name that the member had when they were first written.
    ordering_key: str = msgspec.field(name="lane")
    """Part of the source within which order is kept: number of a partition of the queue, or uuid of the object."""
    id: str
    """Id of the message, or of the change to the object; unique in its connection."""
    name: str
    """The display name of the occasion."""
    body: str = "{}"
    """A JSON object, which jobs receive as `zuul.trigger`."""
    problem: str = msgspec.field(name="trouble", default="")
    """A message that explains why it cannot start anything; empty if it can."""

    @property
    def line(self) -> str:
        """Return the name of the line within which its order is kept."""
        return f"{self.connection} {self.source} {self.ordering_key}"


# `dict=True` gives cached properties a place for their values.
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
    """Paths that differ from the branch; None if unknown."""
    needs: tuple[str, ...] = ()
    """Keys of the changes that it is built on, and of those that its Depends-On footers name, in that order."""
    bases: tuple[str, ...] = ()
    """The keys among them that it is built on: their commits are its nearest ancestors that were proposed for the
    same branch and that the branch lacks."""
    stale: tuple[str, ...] = ()
    """The keys among `bases` that have a newer patchset than the one it is built on."""
    unresolved: tuple[str, ...] = ()
    """Texts of Depends-On footers that name no branch of a known project."""
    occasion: Occasion | None = None
    """Occasion that starts an item at the ref without an update of it; None for changes and updates."""
    number: str = ""
    """Number within the project, at a forge that numbers its changes; otherwise empty."""
    patchset: str = ""
    """Number of the patchset, where patchsets have numbers; otherwise empty, and the commit names the patchset."""
    base: str = ""
    """Commit of the branch with which the forge compares the change; empty if the forge does not say."""
    ignored: tuple[str, ...] = ()
    """Texts of Depends-On footers that name no change of any connection and do not count."""
    title: str = ""
    """Title of the change; empty if it is the first line of the message."""

    @property
    def is_change(self) -> bool:
        return bool(self.topic or self.number)

    @property
    def name(self) -> str:
        """Return its name within its project."""
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
        """Return the name of the updated tag; empty if the ref is not a tag."""
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


def is_called(change: Change, reference: str) -> bool:
    """Return whether the reference names this change, and this patchset of it if it names one.

    A reference is the key of the change or its name, with the branch before it or the patchset after it or both. It
    names a patchset by its number, its commit or the beginning of its commit.
    """
    if reference in (change.key, change.id):
        return True
    names = (change.name, f"{change.branch}/{change.name}", change.key)
    if reference in names:
        return change.is_change
    name, _, patchset = reference.rpartition(",")
    known = patchset in (change.patchset, change.commit) or (
        len(patchset) >= SHORT_MIN and change.commit.startswith(patchset)
    )
    return bool(patchset) and change.is_change and name in names and known


def numbered(project: str, number: str) -> str:
    """Return the key of a change that has a number."""
    return f"{project}#{number}"


class ChangeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the facts that the connection currently knows about a change: the entry of the change cache."""

    change: Change
    open: bool = True
    approved: str = ""
    """The commit that was approved; approval counts only while it equals `change.commit`."""
    landed: bool = False
    reason: str = ""
    """A message that explains why it is not open; empty if it is open or was withdrawn."""
    approvals: tuple[Word, ...] = ()
    """Approvals by people, of any patchset."""
    vetoes: tuple[Word, ...] = ()
    proposers: tuple[str, ...] = ()
    """The people who pushed this patchset, as far as the server reports them."""
    untold: bool = False
    """Whether the gate has landed it but the connection has not yet reported it as merged."""
    checks: tuple[PipelineCheck, ...] = ()
    """Results of pipelines for it that other pipelines require."""
    details: Details | None = None
    """Facts that only forges have; None for plain git, which provides only the members above."""
    looked_up: bool = False
    """Whether it was only looked up because another change needs it; its connection has not yet reported events about
    it."""

    @property
    def is_approved(self) -> bool:
        return self.open and self.approved == self.change.commit


class TriggerEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent something that happened at a connection."""

    kind: EventKind
    change: Change
    id: str
    """Unique id; a repeated report of the same event has the same id."""
    at_ms: int = 0
    """Time at which it was seen, milliseconds since the epoch, UTC."""
    fresh: bool = False
    """Whether this event proposes the change for the first time, in any patchset."""
    pipeline: str = ""
    """Pipeline in which the event happened, if any; for an occasion, the pipeline that it starts."""
    shared: bool = False
    """Whether several tenants have its project; then it is normal that one of them ignores the event."""
    happening: ForgeEvent | None = None
    """The event in the terms of the forge's driver; None if the driver has none for it."""


class Tell(msgspec.Struct, frozen=True):
    """Ask to send this event to another pipeline."""

    pipeline: str
    event: TriggerEvent


def storable(change_state: ChangeState, events: Iterable[TriggerEvent] = ()) -> None:
    """Check that the store takes the records, and that they can be read there. Raise ValueError."""
    for record in (change_state, *events):
        encoded = msgspec.json.encode(record)
        if len(encoded) > RECORD_MAX_BYTES:
            raise ValueError(f"it is larger than {RECORD_MAX_BYTES} bytes")
        # Encoding checks no types, so a number in place of a string would make the record unreadable.
        msgspec.json.decode(encoded, type=type(record))


def whose(event: TriggerEvent) -> str:
    """Return the group of the event. Events on a project's changes form one group, those on its tags and other refs
    another; either may be a flood. Events on branches are in no group (empty): they may concern everything, and no
    later event may overtake them."""
    change = event.change
    if change.occasion is not None:
        return change.occasion.line
    if change.is_change:
        return change.project
    return "" if change.ref.startswith(HEADS) else f"{change.project}@"


class Deferred(msgspec.Struct, frozen=True):
    """Represent a patchset that was refused only because what it needs has not landed; it is enqueued once that has
    landed."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""


class OutsideRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a patchset that was refused, with the last comment about that."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""
    # Records keep the names that these two members had when they were first written.
    comment_digest: str = msgspec.field(name="said", default="")
    """Digest of the last comment; empty when there was none."""
    comment_ms: int = msgspec.field(name="told_ms", default=0)
    """Time of that comment, milliseconds since the epoch, UTC."""
    due_ms: int = 0
    """Time at which to comment again if the state differs by then; 0 when no comment is due."""


class Parted(msgspec.Struct, frozen=True):
    """Report a circle of several repositories of which only a part could land."""

    item: str
    """The id of its item."""
    landed: Mapping[str, str]
    """Key of a change -> head of its branch after it landed."""
    missing: tuple[str, ...]
    """Keys of the changes that have not landed."""
    since_ms: int


class Strayed(msgspec.Struct, frozen=True):
    """Report a change that landed with a tree other than the tested one."""

    key: str
    commit: str
    """Head of its branch after it landed; empty if unknown."""
    branch: str
    since_ms: int


class Successor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a newer patchset, which is enqueued if the one that is landing does not land."""

    change: Change
    event: str
    by_hand: bool = False


class Landed(msgspec.Struct, frozen=True):
    """Represent a landed change of a circle, with the resulting head of its branch."""

    change: Change
    commit: str
