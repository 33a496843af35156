"""Post events to the queues of a message server, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.map.outbox import PublishedEvents
from headgate.ports.messages import PostRefused, QueueGone, SourceDown
from headgate.recipes.lock import lock
from headgate.recipes.stream import Unread, consumed
from headgate.services.context import Context
from headgate.services.publisher.names import queue_of
from headgate.services.publisher.posts import ServerPosts
from headgate.services.quarantine.quarantine import Quarantine, Tries
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.notices")

NAME = "notices"
BATCH_MAX = 50
RETRY_MAX_S = 10.0


@dataclass(slots=True)
class Publisher:
    """Post the events of gates; `run` is the body, and one process at a time posts."""

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
                    # Everything before it is gone, too, since the mirror applies commits in order.
                    await mirror.gone(posted[-1].entry)
                    wait_s = 0.1
                if len(posted) < len(waiting):
                    log.warning("%s: not all could be posted; trying again in %.1f s", NAME, wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _posted(self, waiting: Sequence[Unread[PublishedEvents]], guard: At) -> Sequence[Unread[PublishedEvents]]:
        """Return the records that the server accepted, up to the first that it did not. A record that raises an error
        is set aside after a few attempts."""
        for number, event in enumerate(waiting):
            try:
                await self._post(event)
            except (SourceDown, QueueGone) as down:
                log.warning("%s: the message server: %s", NAME, down)
                # What was posted is consumed; the rest keeps its order for the next round.
                return waiting[:number]
            except Exception as error:
                log.exception("%s: %s cannot be posted", NAME, event.entry)
                if self._tries.spent(event.entry):
                    ops = Quarantine(self.context).event(event, self.context.map.published_events.queue.path, error)
                    await self.context.store.commit([], ops, guards=[guard])
                    await self.context.mirror.gone(event.entry)
                # Nothing behind it is posted either: events of a tenant must arrive in order.
                return waiting[:number]
        return waiting

    async def _post(self, event: Unread[PublishedEvents]) -> None:
        """Post a record once, however often it is tried: the entry's name is the key."""
        together: dict[str, list[tuple[str, str]]] = {}
        for one in event.event.events:
            together.setdefault(queue_of(one.tenant), []).append((one.project, msgspec.json.encode(one).decode()))
        # The body's name never changes, so a record that is posted again is recognised by the server.
        key = f"notice-{event.body.rpartition('/')[2]}"
        for queue, bodies in together.items():
            try:
                await self.posts.post(queue, bodies, key)
            # One queue's refusal must not keep the events from the others.
            except PostRefused as refused:
                log.error("%s: the queue %s rejects it, and it is dropped: %s", NAME, queue, refused)
                self.context.observer.untold(NAME, len(bodies))
