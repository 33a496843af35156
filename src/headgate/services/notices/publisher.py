"""What waits to be told is posted to the queues of a message server, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from headgate.map.records import Notices, Postings
from headgate.ports.messages import PostedAlready, Poster, PostRefused, QueueGone, SourceDown
from headgate.recipes.lock import lock
from headgate.recipes.stream import Stream, Waiting, consumed
from headgate.services.context import Context
from headgate.services.notices.naming import partition_of, queue_of
from headgate.services.quarantine.quarantine import Quarantine, Tries
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.notices")

E = TypeVar("E")

BATCH_MAX = 50
RETRY_MAX_S = 10.0
PARTITIONS = 8


class Letter(NamedTuple):
    """A message on its way."""

    queue: str
    project: str
    body: str
    ttl_s: int | None = None


@dataclass(frozen=True, slots=True)
class Outbox(Generic[E]):
    """Where it waits for one server, and what it says."""

    name: str
    stream: Stream[E]
    election: str
    """Path of the lock of who posts it."""
    letters: Callable[[E], Sequence[Letter]]


def notices_of(context: Context) -> Outbox[Notices]:
    """Everything that happens."""
    place = context.map.notices
    return Outbox("notices", place.stream, place.election.path, _of_notices)


def reports_to(context: Context, connection: str) -> Outbox[Postings]:
    """What pipelines report to this connection."""
    place = context.map.reports(connection)
    return Outbox(connection, place.stream, place.election.path, _of_postings)


def _of_notices(event: Notices) -> list[Letter]:
    return [Letter(queue_of(one.tenant), one.project, _text(one)) for one in event.notices]


def _of_postings(event: Postings) -> list[Letter]:
    return [Letter(one.queue, one.report.project, _text(one.report), one.ttl_s) for one in event.postings]


def _text(record: object) -> str:
    return msgspec.json.encode(record).decode()


@dataclass(slots=True)
class Publisher(Generic[E]):
    """`run` is the body; one process at a time posts what is in one outbox."""

    context: Context
    poster: Poster
    outbox: Outbox[E]
    partitions: int = PARTITIONS
    """Of queues that are made."""
    _known: dict[str, int] = field(default_factory=dict)
    """Queue -> how many partitions it has."""
    _tries: Tries = field(default_factory=Tries)

    async def run(self, session: Session) -> None:
        stream, mirror = self.outbox.stream, self.context.mirror
        wait_s = 0.1
        async with lock(self.context.store, session, self.outbox.election).hold() as guard:
            while True:
                seen = mirror.moves
                waiting = stream.waiting(mirror, limit=BATCH_MAX)
                if not waiting:
                    await mirror.moved(seen)
                    continue
                posted = await self._posted(waiting, guard)
                if posted:
                    await self.context.store.commit([], consumed(posted), guards=[guard])
                    await mirror.gone(posted[-1].entry)
                    wait_s = 0.1
                if len(posted) < len(waiting):
                    log.warning("%s: not all could be posted; trying again in %.1f s", self.outbox.name, wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _posted(self, waiting: Sequence[Waiting[E]], guard: At) -> Sequence[Waiting[E]]:
        """Those that the server took, up to the first that it did not.  What raises is set aside after a few tries."""
        for number, event in enumerate(waiting):
            try:
                await self._post(event)
            except (SourceDown, QueueGone) as down:
                log.warning("%s: the message server: %s", self.outbox.name, down)
                return waiting[:number]
            except Exception as error:
                log.exception("%s: %s cannot be posted", self.outbox.name, event.entry)
                if self._tries.spent(event.entry):
                    ops = Quarantine(self.context).event(event, self.outbox.stream.queue, error)
                    await self.context.store.commit([], ops, guards=[guard])
                    await self.context.mirror.gone(event.entry)
                return waiting[:number]
        return waiting

    async def _post(self, event: Waiting[E]) -> None:
        """Once, however often it is tried: the entry's name is the key."""
        together: dict[tuple[str, int | None], list[Letter]] = {}
        for letter in self.outbox.letters(event.event):
            together.setdefault((letter.queue, letter.ttl_s), []).append(letter)
        name = event.body.rpartition("/")[2]
        for (queue, ttl_s), letters in together.items():
            await self._post_to(queue, letters, ttl_s, f"notice-{name}" + (f"-{ttl_s}" if ttl_s else ""))

    async def _post_to(self, queue: str, letters: Sequence[Letter], ttl_s: int | None, key: str) -> None:
        """A queue may have been made anew since it was last looked at: then it is looked at again."""
        for known in (queue in self._known, False):
            partitions = await self._partitions(queue)
            messages = [(letter.body, partition_of(letter.project, partitions)) for letter in letters]
            try:
                await self.poster.post_many(queue, messages, key, ttl_s=ttl_s)
                return
            except PostedAlready:
                return
            except (QueueGone, PostRefused) as error:
                self._known.pop(queue, None)
                if isinstance(error, PostRefused) and not known:
                    log.error("%s: the queue %s does not take it, nobody is told: %s", self.outbox.name, queue, error)
                    self.context.observer.untold(self.outbox.name, len(letters))
                    return
        raise QueueGone(queue)

    async def _partitions(self, queue: str) -> int:
        """The queue is made if need be."""
        if queue not in self._known:
            try:
                found = await self.poster.partitions(queue)
            except QueueGone:
                await self.poster.create(queue, self.partitions)
                found = await self.poster.partitions(queue)
            self._known[queue] = found
        return self._known[queue]
