"""Record the changes of each commit, and derive from them the state of objects at a past moment."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Self

import msgspec
from google.protobuf.message import DecodeError

from headgate.inventory.model import Object
from headgate.inventory.wire import inventory_pb2 as pb

HISTORY_MAX = 20
"""Limit of changes kept of one object."""
HISTORY_SIZE_MAX_BYTES = 120_000


class JournalKind(Enum):
    CREATED = pb.Change.CREATED
    UPDATED = pb.Change.UPDATED
    DELETED = pb.Change.DELETED


class ObjectChange(msgspec.Struct, frozen=True):
    """Describe the change of one object. A created object has no `old`, a deleted one no `new`."""

    kind: JournalKind
    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """Return the object as it is, or as it last was."""
        found = self.new or self.old
        assert found is not None, "a change is of something"
        return found


class Recorded(msgspec.Struct, frozen=True):
    """Describe one commit. Without changes of objects, it changed partitions, types or definitions."""

    changes: tuple[ObjectChange, ...]
    user: str
    project: str
    at_ms: int

    def to_wire(self) -> bytes:
        found = [change_message(one) for one in self.changes]
        return pb.Recorded(changes=found, user=self.user, project=self.project, at_ms=self.at_ms).SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        found = pb.Recorded.FromString(value)
        return cls(tuple(change_of(one) for one in found.changes), found.user, found.project, found.at_ms)


_KINDS = frozenset(kind.value for kind in JournalKind)


def of_facts(value: bytes) -> bool:
    """Return whether the recorded commit changed partitions, types or definitions. Raise ValueError if it is not a
    record."""
    try:
        found = pb.Recorded.FromString(value)
    except DecodeError as error:
        raise ValueError(f"no record of a commit: {error}") from error
    if any(change.kind not in _KINDS for change in found.changes):
        raise ValueError("a change of a kind that is not known")
    return not found.changes


class InventoryEvent(msgspec.Struct, frozen=True):
    """Represent a change of one object, for its history."""

    kind: JournalKind
    object: Object
    user: str
    project: str
    at_ms: int


class ObjectHistory(msgspec.Struct, frozen=True):
    """Hold the events of one object, oldest first."""

    events: tuple[InventoryEvent, ...] = ()

    def and_then(self, event: InventoryEvent) -> ObjectHistory:
        """Return the history with an event appended; drop the oldest ones if there are too many or they are too
        large."""
        events = (*self.events, event)[-HISTORY_MAX:]
        # The newest event stays in any case.
        while len(events) > 1 and len(ObjectHistory(events).to_wire()) > HISTORY_SIZE_MAX_BYTES:
            events = events[1:]
        return ObjectHistory(events)

    def to_wire(self) -> bytes:
        found = [
            pb.Change(kind=one.kind.value, new=message(one.object), user=one.user, project=one.project, at_ms=one.at_ms)
            for one in self.events
        ]
        return pb.Past(changes=found).SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        found = pb.Past.FromString(value).changes
        return cls(tuple(InventoryEvent(JournalKind(o.kind), of(o.new), o.user, o.project, o.at_ms) for o in found))


def undone(later: Iterable[Recorded]) -> dict[str, Object | None]:
    """Map each uuid to the object before these commits (given oldest first), or to None if it did not exist.
    Unchanged objects are omitted."""
    before: dict[str, Object | None] = {}
    for recorded in later:
        for change in recorded.changes:
            # The earliest change counts: its `old` is the state before all of them.
            before.setdefault(change.object.uuid, change.old)
    return before


def message(object: Object, generation: int = 0) -> pb.Object:
    return pb.Object(
        partition=object.partition,
        type=object.type,
        project=object.project,
        uuid=object.uuid,
        name=object.name,
        properties=object.properties,
        tags=object.tags,
        generation=generation,
    )


def of(found: pb.Object) -> Object:
    where = (found.partition, found.type, found.project, found.uuid, found.name)
    return Object(*where, dict(sorted(found.properties.items())), tuple(found.tags))


def change_message(change: ObjectChange) -> pb.Change:
    return pb.Change(
        kind=change.kind.value,
        old=message(change.old) if change.old else None,
        new=message(change.new) if change.new else None,
    )


def change_of(found: pb.Change) -> ObjectChange:
    old = of(found.old) if found.HasField("old") else None
    return ObjectChange(JournalKind(found.kind), old, of(found.new) if found.HasField("new") else None)
