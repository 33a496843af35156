"""Discover new queues: one worker at a time records the queues that the server lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.map.workers import Application, QueueSettings
from headgate.ports.messages import SourceDown
from headgate.queue.workers.calls import log
from headgate.queue.workers.processor import MessageProcessor
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import NEW, Progress
from headgate.recipes.mirror import Mirror
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, Op, Unavailable

GONE_MAX_MS = 7 * 86_400_000
"""Milliseconds for which the progress of removed queues is kept."""
GONE_MAX = 10_000
"""Limit on the partitions of removed queues whose progress is kept; those removed first are forgotten."""


@dataclass(slots=True)
class DiscoveryTurn:
    """Run discovery in the oldest worker, so that no agreement is needed. Two workers that do so do no harm: every
    write checks what it saw."""

    ours: bool = False
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, workers: Iterable[str], name: str) -> None:
        before, self.ours = self.ours, min(workers, default="") == name
        if self.ours and not before:
            self.requested.set()


Change = tuple[At, tuple[Op, ...]]


async def discover(
    processor: MessageProcessor, store: Store, app: Application, mirror: Mirror, turn: DiscoveryTurn
) -> None:
    """Discover queues until cancelled, on request and at intervals, while it is this worker's turn."""
    await mirror.ready()
    while True:
        turn.requested.clear()
        if turn.ours:
            await _look(processor, store, app, mirror)
        await _until(turn.requested, processor.pace.discover_s)


async def _look(processor: MessageProcessor, store: Store, app: Application, mirror: Mirror) -> None:
    try:
        partitions = await processor.source.partitions()
        priorities = await processor.source.priorities()
        # Shapes come first: a worker that sees partitions without their shape takes them one by one and not as strands.
        found = [*shaped(app, mirror, priorities), *changes(app, mirror, partitions, processor.now_ms())]
        for piece in _pieces(found):
            await store.commit([check for check, _ in piece], [op for _, ops in piece for op in ops])
    except SourceDown as down:
        processor.figures.source_errors.inc()
        log.warning("the queues could not be listed: %s", down)
    except (Conflict, Unavailable) as error:
        log.info("%s: the queues are checked again later", error)


def shaped(app: Application, mirror: Mirror, priorities: Mapping[str, int]) -> list[Change]:
    """Return the changes that record the number of priorities of queues before the queues appear; rewrite unreadable
    records."""
    known = {queue: e for e in mirror.under(app.shapes.path) if (queue := app.queue_of(e.path)) is not None}
    found: list[Change] = []
    for queue, count in sorted(priorities.items()):
        place, entry = app.shape(queue), known.get(queue)
        wanted = place.put(QueueSettings(count))
        if entry is None or entry.value != wanted.value:
            found.append((At(place.path, entry.version if entry is not None else None), (wanted,)))
    for queue in sorted(known.keys() - priorities.keys()):
        entry = known[queue]
        found.append((At(entry.path, entry.version), (Delete(entry.path),)))
    return found


def changes(app: Application, mirror: Mirror, partitions: Iterable[QueuePartition], now_ms: int) -> list[Change]:
    """Return the changes that bring the store in line with the server. A partition with an owner is changed only by
    its owner."""
    there = frozenset(partitions)
    known: dict[QueuePartition, Entry] = {
        partition: e for e in mirror.under(app.queues.path) if (partition := app.partition_of(e.path))
    }
    owned = {partition for e in mirror.under(app.owners.path) if (partition := app.partition_of(e.path))}
    found: list[Change] = []
    gone: list[tuple[int, Change]] = []
    for partition in sorted(there - known.keys()):
        place = app.progress(partition)
        found.append((At(place.path, None), (place.put(NEW),)))
    for partition, entry in known.items():
        place = app.progress(partition)
        try:
            progress = place.decode(entry.value)
        except ValueError:
            continue  # the worker that tries to take the partition reports it
        ops = _marked(partition, progress, partition in there, partition in owned, now_ms, app)
        if ops:
            found.append((At(place.path, entry.version), ops))
        elif progress.gone_ms and partition not in there:
            gone.append((progress.gone_ms, (At(place.path, entry.version), _forgotten(partition, app))))
    # Names of queues that exist for seconds would otherwise fill the store, which a gate may share.
    gone.sort(key=lambda one: one[0])
    return [*found, *(change for _, change in gone[: max(len(gone) - GONE_MAX, 0)])]


def _forgotten(partition: QueuePartition, app: Application) -> tuple[Op, ...]:
    return Delete(app.progress(partition).path), app.controls(partition).delete()


def _marked(
    partition: QueuePartition, progress: Progress, there: bool, owned: bool, now_ms: int, app: Application
) -> tuple[Op, ...]:
    place = app.progress(partition)
    if there:
        # A queue that is created again within GONE_MAX_MS continues where it was; its ids follow the former ones.
        return (place.put(replace(progress, gone_ms=0)),) if progress.gone_ms else ()
    if not progress.gone_ms:
        # Its owner learns from the server that the queue is gone, and records that in its own progress.
        return () if owned else (place.put(replace(progress, gone_ms=now_ms)),)
    if now_ms - progress.gone_ms < GONE_MAX_MS:
        return ()
    return _forgotten(partition, app)


def _pieces(found: list[Change]) -> Iterable[list[Change]]:
    # A change has two operations at most.
    for first in range(0, len(found), OPS_MAX // 2):
        yield found[first : first + OPS_MAX // 2]


async def _until(event: asyncio.Event, for_s: float) -> None:
    try:
        async with asyncio.timeout(for_s):
            await event.wait()
    except TimeoutError:
        return
