"""What is published: made where it happens, kept in the store with what it tells of, then posted to queues in order."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headgate.base.ids import derived
from headgate.gate.change import Change
from headgate.map.records import Notice, Notices
from headgate.ports.messages import Poster, PostRefused, QueueGone, SourceDown
from headgate.queueing.lanes import QUEUE_NAME
from headgate.recipes.lock import lock
from headgate.recipes.stream import Waiting, consumed
from headgate.services.context import Context
from headgate.store.store import Session

log = logging.getLogger("headgate.notices")

VERSION = 1
BATCH_MAX = 50
RETRY_MAX_S = 10.0
PARTITIONS = 8


def notice(kind: str, what: str, tenant: str, pipeline: str, change: Change, item: str, at_ms: int) -> Notice:
    """`what` tells it apart from others of its kind."""
    return Notice(
        v=VERSION,
        kind=kind,
        id=derived(kind, tenant, pipeline, item, what),
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
    """The queue of a tenant's notices: named after it, if queues can be."""
    name = f"gate-{tenant}"
    if QUEUE_NAME.fullmatch(name):
        return name
    short = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:40]
    return f"{short}-{hashlib.sha256(tenant.encode()).hexdigest()[:8]}"


def partition_of(project: str, partitions: int) -> int:
    """All of a project in one, so that its order is kept."""
    return int.from_bytes(hashlib.sha256(project.encode()).digest()[:8]) % partitions + 1


@dataclass(slots=True)
class Publisher:
    """`run` is the body; one process at a time publishes."""

    context: Context
    poster: Poster
    partitions: int = PARTITIONS

    async def run(self, session: Session) -> None:
        place, mirror = self.context.map.notices, self.context.mirror
        wait_s = 0.1
        async with lock(self.context.store, session, place.election.path).hold() as guard:
            while True:
                seen = mirror.moves
                waiting = place.stream.waiting(mirror, limit=BATCH_MAX)
                if not waiting:
                    await mirror.moved(seen)
                    continue
                posted = await self._posted(waiting)
                if posted:
                    await self.context.store.commit([], consumed(posted), guards=[guard])
                    await mirror.gone(posted[-1].entry)
                    wait_s = 0.1
                if len(posted) < len(waiting):
                    log.warning("%s notices wait to be posted; trying again in %.1f s", len(waiting), wait_s)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _posted(self, waiting: Sequence[Waiting[Notices]]) -> Sequence[Waiting[Notices]]:
        """Those that the server took, up to the first that it did not."""
        for number, event in enumerate(waiting):
            try:
                await self._post(event)
            except (SourceDown, QueueGone) as down:
                log.warning("the message server: %s", down)
                return waiting[:number]
        return waiting

    async def _post(self, event: Waiting[Notices]) -> None:
        """Once, however often it is tried: the entry's name is the key."""
        by_queue: dict[str, list[tuple[str, int | None]]] = {}
        for one in event.event.notices:
            body = msgspec.json.encode(one).decode()
            by_queue.setdefault(queue_of(one.tenant), []).append((body, partition_of(one.project, self.partitions)))
        for queue, messages in by_queue.items():
            await self._post_to(queue, messages, f"notice-{event.body.rpartition('/')[2]}")

    async def _post_to(self, queue: str, messages: list[tuple[str, int | None]], key: str) -> None:
        try:
            await self.poster.post_many(queue, messages, key)
        except QueueGone:
            await self.poster.create(queue, self.partitions)
            await self.poster.post_many(queue, messages, key)
        except PostRefused as refused:
            log.error("%s takes not what happened, which nobody will be told: %s", queue, refused)
