"""Queue events as ordered entries, each of which names its body.

The consumer of an event deletes it in the commit that records the consequences, so an event takes effect exactly
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from headgate.base.ids import fresh
from headgate.recipes.codec import encode, readable
from headgate.recipes.mirror import Mirror
from headgate.store.types import Append, Delete, Entry, Op, Put

E = TypeVar("E")

LOOKED_AT_MAX = 10_000
"""Limit on the events examined to find the next ones in turn."""


class StreamEntry(msgspec.Struct, frozen=True):
    """Represent an entry of the queue; `data` is the name of its body under the data place."""

    data: str


class Unread(msgspec.Struct, Generic[E], frozen=True):
    """Represent an event that is not consumed yet."""

    entry: str
    body: str
    event: E
    besides: tuple[Op, ...] = ()
    """Further operations that belong to consuming the event: in the same commit, or soon after."""

    def consume(self) -> list[Op]:
        """Return the operations that consume the event, for the consumer's own commit."""
        return [Delete(self.entry), Delete(self.body)]


class Stream(msgspec.Struct, Generic[E], frozen=True):
    """Keep events in order: `queue` holds the order, `data` the bodies; `type` is what a body decodes to."""

    queue: str
    data: str
    type: type[E]

    def append(self, event: E) -> list[Op]:
        """Return the operations that append an event, for the producer's own commit."""
        name = fresh()
        return [Put(f"{self.data}/{name}", encode(event)), Append(self.queue, encode(StreamEntry(name)))]

    def waiting(self, mirror: Mirror, *, limit: int) -> list[Unread[E]]:
        """Return the oldest events, at most `limit`, without unreadable ones."""
        found = (self.one(entry, mirror) for entry in mirror.under(self.queue))
        return list(islice((waiting for waiting in found if waiting is not None), limit))

    def length(self, entries: Mirror) -> int:
        return len(entries.under(self.queue))

    def one(self, entry: Entry, mirror: Mirror) -> Unread[E] | None:
        """Read one event from the mirror. Return None if it is unreadable or has not arrived yet."""
        if (named := readable(entry, StreamEntry)) is None:
            return None
        path = f"{self.data}/{named.data}"
        body = mirror.get(path)
        if body is None:
            return None  # entry and body are written in one commit: the mirror has only part of it so far
        event = readable(body, self.type)
        return None if event is None else Unread(entry.path, path, event)


class StreamConsumer(Generic[E]):
    """Give one consumer the events of a stream: first events without an owner, then one event of each owner in turn,
    oldest first, so that a flood from one owner does not delay others.  Each event is decoded once."""

    def __init__(self, stream: Stream[E], mirror: Mirror, whose: Callable[[E], str]) -> None:
        """Make a consumer. `whose` returns the owner of an event, or an empty string for an event that concerns all
        owners; no later event may overtake it."""
        self.stream = stream
        self._mirror, self._whose = mirror, whose
        self._known: dict[str, Unread[E]] = {}

    def waiting(self, limit: int) -> list[Unread[E]]:
        """Return the next events in turn, at most `limit`, without unreadable ones."""
        # After a long outage there may be very many events, and the owner is known only after decoding.
        entries = self._mirror.under(self.stream.queue)[:LOOKED_AT_MAX]
        # Consumed events are forgotten only now and then, so that the cost is spread over many calls.
        if len(self._known) > 2 * len(entries) + limit:
            paths = {entry.path for entry in entries}
            self._known = {path: known for path, known in self._known.items() if path in paths}
        ranks, line = Counter[str](), list[tuple[int, int, Unread[E]]]()
        for entry in entries:
            waiting = self._known.get(entry.path) or self.stream.one(entry, self._mirror)
            if waiting is None:
                continue
            self._known[entry.path] = waiting
            whose = self._whose(waiting.event)
            line.append((ranks[whose] if whose else -1, len(line), waiting))
            ranks[whose] += 1
        return [waiting for _, _, waiting in nsmallest(limit, line, key=lambda one: one[:2])]


def consumed(events: Sequence[Unread[E]]) -> list[Op]:
    return [op for event in events for op in event.consume()]
