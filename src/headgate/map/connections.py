"""Declare the records of a connection: hints of what to read, request limits, and what its messages have started."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.map.records import Empty
from headgate.map.tree import Dir, place
from headgate.recipes.stream import Stream, StreamEntry


class ButtonOrder(msgspec.Struct, frozen=True):
    """Record the order of a person who clicked Headgate's button on a change: dequeue the change from a pipeline."""

    who: str
    """The account named in the verified delivery. The reader queries the forge for the permissions of this account."""
    tenant: str
    pipeline: str
    event: str
    """The event that enqueued the item; later items are not affected."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name a project, change or ref where something may have happened. Nothing else in a delivery is trusted."""

    id: str
    """The delivery's own id, so that a repeated delivery counts once; a new id if it has none."""
    project: str = ""
    """Canonical name of the project; empty means any project."""
    number: str = ""
    """Number of the change; empty means the project's branches, or its open changes."""
    ref: str = ""
    """A branch or tag."""
    commit: str = ""
    """Commit by which the driver finds the change, if the delivery names only a commit."""
    order: ButtonOrder | None = None
    """An order for the change with this project and number. It alone does not cause a query of the forge."""


class HintsQueue(Dir):
    """Hold hints of what to read from a forge, until it has been read."""

    queue = place(
        StreamEntry, "The order of hints; each names its body.", by="web, scheduler", node="sequence", seed=False
    )
    data = place(Hint, "What to read.", by="web, scheduler", node="keyed", seed=False)

    @cached_property
    def stream(self) -> Stream[Hint]:
        return Stream(self.queue.path, self.data.path, Hint)


class AccountLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record the time until which one account is limited."""

    all_ms: int = 0
    """Time before which no request may be sent, in milliseconds since the epoch."""
    spare_ms: int = 0
    """Time before which only requests that somebody waits for may be sent, in milliseconds since the epoch."""


class AccountLimits(msgspec.Struct, frozen=True):
    """Map account and kind of call to its limit; expired limits are left out."""

    accounts: dict[str, AccountLimit]


class OccasionProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record how far one pipeline has read one partition: every occasion up to the position has started an item, or
    cannot."""

    tenant: str
    pipeline: str
    source: str
    """A queue, or a type of objects."""
    partition: str = msgspec.field(default="", name="lane")
    """Number of the queue's partition; empty for objects of a type, which have no partitions."""
    position: str = ""


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a message, or a change of an object, whose item has not ended yet."""

    tenant: str
    pipeline: str
    source: str
    partition: str = msgspec.field(name="lane")
    id: str
    since_ms: int = 0


class PublishedMoment(msgspec.Struct, frozen=True):
    """Record the revision up to which changes of the inventory have been posted."""

    revision: int


class PublishedObjectsPlace(Dir):
    """Hold the progress of posting changes of the inventory to the message queues that publish them."""

    published = place(PublishedMoment, "How far they have been posted.", by="scheduler", seed=False)
    election = place(Empty, "Elects the scheduler that posts them.", by="scheduler", node="lock", seed=False)


class OccasionPlaces(Dir):
    """Hold the items that the messages, or the objects, of one connection have started."""

    taken = place(
        OccasionProgress,
        "How far each pipeline has read; written in the same commit as the events for what it read.",
        by="scheduler",
        node="keyed",
        seed=False,
    )
    begun = place(
        Begun,
        "Items that have not ended yet, by event; an item's entry is deleted in the commit that records its end.",
        by="scheduler",
        node="keyed",
        seed=False,
    )
