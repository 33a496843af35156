"""Post the events of gates to the queues of a message server, in order."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.base.ids import derived
from headgate.gate.state.change import Change
from headgate.map.outbox import PublishedEvent, PublishedEvents
from headgate.ports.messages import PostedAlready, Poster, PostRefused, QueueGone, SourceDown
from headgate.queueing.partitions import QUEUE_NAME
from headgate.recipes.lock import lock
from headgate.recipes.stream import Unread, consumed
from headgate.services.context import Context
from headgate.services.quarantine import Quarantine, Tries
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.published_events")

VERSION = 1
PARTITIONS = 8
NAME = "published events"
BATCH_MAX = 50
RETRY_MAX_S = 10.0


def published_event(
    kind: str, subject: str, tenant: str, pipeline: str, change: Change, item: str, at_ms: int
) -> PublishedEvent:
    """Create a published event. `subject` distinguishes it from others of its kind."""
    return PublishedEvent(
        v=VERSION,
        kind=kind,
        id=derived(kind, tenant, pipeline, item, subject),
        at_ms=at_ms,
        tenant=tenant,
        pipeline=pipeline,
        project=change.project,
        branch=change.branch,
        change=change.id,
        commit=change.commit,
        item=item,
        url=change.url,
    )


def queue_of(tenant: str) -> str:
    """Return the queue of a tenant's events; it is named after the tenant if the name is valid for a queue."""
    name = f"gate-{tenant}"
    if QUEUE_NAME.fullmatch(name):
        return name
    # The digest distinguishes tenants whose names differ only in characters that queue names cannot contain.
    short = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:40]
    return f"{short}-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}"


def partition_of(project: str, partitions: int) -> int:
    """Return the partition for all events of a project, so that they stay in order."""
    # Python's `hash` differs from process to process.
    return int.from_bytes(hashlib.sha256(project.encode()).digest()[:8]) % partitions + 1


@dataclass(slots=True)
class ServerPosts:
    """Post to the queues of one message server."""

    poster: Poster
    partitions: int = PARTITIONS
    """Number of partitions of new queues."""
    _known: dict[str, int] = field(default_factory=dict)
    """Queue -> number of its partitions."""

    async def post(self, queue: str, bodies: Sequence[tuple[str, str]], key: str, ttl_s: int | None = None) -> None:
        """Post `bodies`, pairs of project and text: all or none, and only once for the same key. Detect a queue that
        was recreated. Raise SourceDown, QueueGone or PostRefused."""
        # The second round is for a queue that was deleted, or recreated with other partitions, since its last check.
        for known in (queue in self._known, False):
            partitions = await self._partitions(queue)
            messages = [(text, partition_of(project, partitions)) for project, text in bodies]
            try:
                await self.poster.post_many(queue, messages, key, ttl_s=ttl_s)
                return
            except PostedAlready:
                return
            except (QueueGone, PostRefused) as error:
                self._known.pop(queue, None)
                # A refusal may be about a partition that no longer exists; only one after a fresh check is final.
                if isinstance(error, PostRefused) and not known:
                    raise
        raise QueueGone(queue)

    async def _partitions(self, queue: str) -> int:
        """Return the number of partitions of the queue, after creating it if necessary."""
        if queue not in self._known:
            try:
                found = await self.poster.partition_count(queue)
            # Another process may create it at the same time with another number of partitions, so the number is read
            # again afterwards.
            except QueueGone:
                await self.poster.create(queue, self.partitions)
                found = await self.poster.partition_count(queue)
            self._known[queue] = found
        return self._known[queue]


@dataclass(slots=True)
class Publisher:
    """Post the events of gates, one process at a time; `run` is the body."""

    context: Context
    posts: ServerPosts
    _tries: Tries = field(default_factory=Tries)

    async def run(self, session: Session) -> None:
        place, mirror = self.context.map.published_events, self.context.mirror
        wait_s = 0.1
        async with lock(self.context.store, session, place.election.path).hold() as guard:
            while True:
                seen = mirror.moves
                waiting = place.stream.waiting(mirror, limit=BATCH_MAX)
                if not waiting:
                    await mirror.moved(seen)
                    continue
                posted = await self._posted(waiting, guard)
                if posted:
                    await self.context.store.commit([], consumed(posted), guards=[guard])
                    # The mirror applies commits in order, so all earlier entries are also gone.
                    await mirror.gone(posted[-1].entry)
                    wait_s = 0.1
                if len(posted) < len(waiting):
                    log.warning("%s: not all could be posted; trying again in %.1f s", NAME, wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _posted(self, waiting: Sequence[Unread[PublishedEvents]], guard: At) -> Sequence[Unread[PublishedEvents]]:
        """Return the records that the server accepted, up to the first one that it did not. Move a record that raises
        an error to the quarantine after a few attempts."""
        for number, event in enumerate(waiting):
            try:
                await self._post(event)
            except (SourceDown, QueueGone) as down:
                log.warning("%s: the message server: %s", NAME, down)
                # The posted records are consumed; the rest stays in order for the next round.
                return waiting[:number]
            except Exception as error:
                log.exception("%s: %s cannot be posted", NAME, event.entry)
                if self._tries.spent(event.entry):
                    ops = Quarantine(self.context).event(event, self.context.map.published_events.queue.path, error)
                    await self.context.store.commit([], ops, guards=[guard])
                    await self.context.mirror.gone(event.entry)
                # Later records are not posted either, because a tenant's events must arrive in order.
                return waiting[:number]
        return waiting

    async def _post(self, event: Unread[PublishedEvents]) -> None:
        """Post a record. The entry's name is the key, so that repeated attempts post it only once."""
        together: dict[str, list[tuple[str, str]]] = {}
        for one in event.event.events:
            together.setdefault(queue_of(one.tenant), []).append((one.project, msgspec.json.encode(one).decode()))
        # The body's name never changes, so the server recognises a record that is posted again.
        key = f"notice-{event.body.rpartition('/')[2]}"
        for queue, bodies in together.items():
            try:
                await self.posts.post(queue, bodies, key)
            # A refusal by one queue must not block the events for the others.
            except PostRefused as refused:
                log.error("%s: the queue %s rejects it, and it is dropped: %s", NAME, queue, refused)
                self.context.observer.dropped(NAME, len(bodies))
