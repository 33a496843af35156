"""A queue of events: ordered entries that name their bodies.  Whoever consumes one deletes it in the commit that
records what it caused, so an event takes effect exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from headgate.base.ids import fresh
from headgate.recipes.codec import encode, readable
from headgate.recipes.mirror import Mirror
from headgate.store.types import Append, Delete, Entry, Op, Put

E = TypeVar("E")


class StreamEntry(msgspec.Struct, frozen=True):
    """An entry of the queue; `data` is the name of its body under the data place."""

    data: str


class Waiting(msgspec.Struct, Generic[E], frozen=True):
    """An event not yet consumed."""

    entry: str
    body: str
    event: E
    besides: tuple[Op, ...] = ()
    """What else goes with it."""

    def consume(self) -> list[Op]:
        """For the consumer's own commit."""
        return [Delete(self.entry), Delete(self.body), *self.besides]


class Stream(msgspec.Struct, Generic[E], frozen=True):
    """`queue` holds the order, `data` the bodies; `type` is what a body decodes to."""

    queue: str
    data: str
    type: type[E]

    def append(self, event: E) -> list[Op]:
        """For the producer's own commit."""
        name = fresh()
        return [Put(f"{self.data}/{name}", encode(event)), Append(self.queue, encode(StreamEntry(name)))]

    def waiting(self, mirror: Mirror, *, limit: int) -> list[Waiting[E]]:
        """The oldest events, at most `limit`, without those that cannot be read."""
        found = (self._waiting(entry, mirror) for entry in mirror.under(self.queue))
        return list(islice((waiting for waiting in found if waiting is not None), limit))

    def length(self, entries: Mirror) -> int:
        return len(entries.under(self.queue))

    def _waiting(self, entry: Entry, mirror: Mirror) -> Waiting[E] | None:
        if (named := readable(entry, StreamEntry)) is None:
            return None
        path = f"{self.data}/{named.data}"
        body = mirror.get(path)
        if body is None:
            return None  # written in one commit with its entry: the mirror is between the two
        event = readable(body, self.type)
        return None if event is None else Waiting(entry.path, path, event)


def consumed(events: Sequence[Waiting[E]]) -> list[Op]:
    return [op for event in events for op in event.consume()]
