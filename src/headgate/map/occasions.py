"""Record how far messages and changes of objects have been read, and which items that they started have not ended."""

from __future__ import annotations

import msgspec

from headgate.map.records import Empty
from headgate.map.tree import Dir, place


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
