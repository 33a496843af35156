"""Post changes of the inventory to the queues of a message server, like events of gates.

A published change names only the object and the user who changed it: receivers who may read the object read it in the
inventory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.inventory.journal import JournalKind, ObjectChange
from headgate.map.connections import PublishedMoment
from headgate.map.outbox import PublishedObjectChange
from headgate.ports.messages import PostRefused, QueueGone, SourceDown
from headgate.recipes.lock import lock
from headgate.services.context import Context
from headgate.services.inventory.errors import MomentExpired
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.journal import JournalCommit
from headgate.services.publisher import VERSION, ServerPosts
from headgate.store.store import Session
from headgate.store.types import At

log = logging.getLogger("headgate.published_events")

NAME = "published inventory changes"
TOGETHER_MAX = 200
"""Limit on the changes in one post."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 10.0
QUIET_S = 3_600.0
WORDS = {
    JournalKind.CREATED: "object-created",
    JournalKind.UPDATED: "object-updated",
    JournalKind.DELETED: "object-deleted",
}


def queue_of_partition(name: str) -> str:
    """Return the queue for a partition's changes; it is named after the partition if the name is valid for a queue."""
    queue = f"inventory-{name}"
    # Message servers limit names to this length; the digest distinguishes shortened names.
    if len(queue) <= 50 and re.fullmatch(r"[A-Za-z0-9._-]+", queue):
        return queue
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', queue)[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@dataclass(slots=True)
class ObjectPublisher:
    """Post changes of the inventory, one process at a time; `run` is the body. `inventory.journal.run()` must be
    running."""

    context: Context
    inventory: Inventory
    posts: ServerPosts
    _partitions: dict[str, str] = field(default_factory=dict)
    """Uuid of a partition -> its name."""

    async def run(self, session: Session) -> None:
        place, store = self.context.map.published_events.objects, self.context.store
        async with lock(store, session, place.election.path).hold() as guard:
            while True:
                entry = await store.get(place.published.path)
                revision = place.published.decode(entry.value).revision if entry is not None else 0
                try:
                    # The first start posts only changes from then on.
                    await self._follow(revision or await self.inventory.journal.now(), guard)
                # No process posted for so long that older changes are no longer in the journal.
                except MomentExpired as expired:
                    log.error("%s: %s; changes in the meantime are not posted", NAME, expired)
                    self.context.observer.dropped(NAME, 1)
                    await self._posted(await self.inventory.journal.now(), guard)

    async def _follow(self, revision: int, guard: At) -> None:
        """Post changes until cancelled. Raise MomentExpired."""
        await self.inventory.journal.wait_for(revision)
        await self._posted(revision, guard)
        async for commits, reached in self.inventory.journal.follow(revision, quiet_s=QUIET_S):
            for commit in commits:
                # Commits are posted one after the other, so that changes of one object stay in order.
                await self._post(commit)
            if commits:
                # Recorded after the posts: a crash repeats some posts, but under the same keys.
                await self._posted(reached, guard)

    async def _posted(self, revision: int, guard: At) -> None:
        """Record that everything up to the revision is posted."""
        put = self.context.map.published_events.objects.published.put(PublishedMoment(revision))
        await self.context.store.commit([], [put], guards=[guard])

    async def _post(self, commit: JournalCommit) -> None:
        """Post the changes of one commit until they are accepted; posting them again changes nothing."""
        recorded, together = commit.recorded, dict[str, list[PublishedObjectChange]]()
        for number, change in enumerate(recorded.changes, 1):
            published = _published(change, f"{commit.revision}.{number}", recorded.user, recorded.at_ms)
            queue = queue_of_partition(await self._named(change.object.partition))
            together.setdefault(queue, []).append(published)
        for queue, all_changes in together.items():
            for number, some in enumerate(_portions(all_changes)):
                bodies = [(one.uuid, msgspec.json.encode(one).decode()) for one in some]
                # The key contains commit and portion, so that the server recognises a repeated post.
                await self._until_taken(queue, bodies, f"objects-{commit.revision}-{number}")

    async def _named(self, partition: str) -> str:
        if partition not in self._partitions:
            # An unknown partition may be new; a deleted one is named by its uuid.
            self._partitions = {one.uuid: one.name for one, _ in await self.inventory.admin.partitions()}
        return self._partitions.get(partition, partition)

    async def _until_taken(self, queue: str, bodies: Sequence[tuple[str, str]], key: str) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                await self.posts.post(queue, bodies, key)
                return
            # Without this, one message that a server never takes would hold up all later ones.
            except PostRefused as refused:
                log.error("%s: the queue %s rejects it, and it is dropped: %s", NAME, queue, refused)
                self.context.observer.dropped(NAME, len(bodies))
                return
            except (SourceDown, QueueGone) as down:
                log.warning("%s: the message server: %s; trying again in %.1f s", NAME, down, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _published(change: ObjectChange, id: str, user: str, at_ms: int) -> PublishedObjectChange:
    object = change.object
    return PublishedObjectChange(
        v=VERSION,
        kind=WORDS[change.kind],
        id=id,
        at_ms=at_ms,
        user=user,
        partition=object.partition,
        type=object.type,
        project=object.project,
        uuid=object.uuid,
        name=object.name,
    )


def _portions(changes: Sequence[PublishedObjectChange]) -> Iterator[Sequence[PublishedObjectChange]]:
    for start in range(0, len(changes), TOGETHER_MAX):
        yield changes[start : start + TOGETHER_MAX]
