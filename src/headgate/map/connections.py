"""Declare what is recorded of a connection: hints where to look, request limits, and what it has started."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.map.records import Empty
from headgate.map.tree import Dir, place
from headgate.recipes.stream import Stream, StreamEntry


class ButtonOrder(msgspec.Struct, frozen=True):
    """Record the order of a person who clicked a button of Headgate's on a change: take the change out of a
    pipeline."""

    who: str
    """The account that the forge's genuine delivery names. The reader asks the forge what this account may do."""
    tenant: str
    pipeline: str
    event: str
    """The event that enqueued the item; later items are not affected."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name a place where something may have happened. Nothing else that a delivery contains is trusted."""

    id: str
    """The delivery's own id, so that a delivery that arrives twice counts once; a fresh id if it has none."""
    project: str = ""
    """Canonical name of the project; empty means any project."""
    number: str = ""
    """Number of the change; empty means the project's branches, or its open changes."""
    ref: str = ""
    """A branch or tag."""
    commit: str = ""
    """Commit by which the driver finds the change, where the delivery names only that."""
    order: ButtonOrder | None = None
    """An order for the change with this project and number. It causes no look at the forge by itself."""


class HintsQueue(Dir):
    """Hold hints where to look at a forge, until the look is done."""

    queue = place(StreamEntry, "Their order; each names its body.", by="web, scheduler", node="sequence", seed=False)
    data = place(Hint, "Where to look.", by="web, scheduler", node="keyed", seed=False)

    @cached_property
    def stream(self) -> Stream[Hint]:
        return Stream(self.queue.path, self.data.path, Hint)


class AccountLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record until when one account is limited."""

    all_ms: int = 0
    """Time before which no request may be sent, in milliseconds since the epoch, UTC."""
    spare_ms: int = 0
    """Time before which only requests that somebody waits for may be sent."""


class AccountLimits(msgspec.Struct, frozen=True):
    """Map account and kind of call to its limit; limits that are over are left out."""

    accounts: dict[str, AccountLimit]


class OccasionProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record how far one pipeline has read one partition: everything up to the position has been started, or cannot
    be."""

    tenant: str
    pipeline: str
    source: str
    """A queue, or a type of objects."""
    partition: str = msgspec.field(default="", name="lane")
    """Number of the queue's partition; empty for objects of a type, which are not divided."""
    position: str = ""


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a message, or a change of an object, whose item has not ended."""

    tenant: str
    pipeline: str
    source: str
    partition: str = msgspec.field(name="lane")
    id: str
    since_ms: int = 0


class PublishedMoment(msgspec.Struct, frozen=True):
    """Record up to which revision changes of the inventory are posted."""

    revision: int


class PublishedObjectsPlace(Dir):
    """Hold changes of the inventory on their way to the message queues that publish them."""

    published = place(PublishedMoment, "How far they are posted.", by="scheduler", seed=False)
    election = place(Empty, "Who posts them.", by="scheduler", node="lock", seed=False)


class OccasionPlaces(Dir):
    """Hold what the messages, or the objects, of one connection start."""

    taken = place(
        OccasionProgress,
        "How far each pipeline is; written with the events that tell of what it took.",
        by="scheduler",
        node="keyed",
        seed=False,
    )
    begun = place(
        Begun,
        "What has not ended, by its event; deleted with the record of its end.",
        by="scheduler",
        node="keyed",
        seed=False,
    )
