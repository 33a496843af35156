"""Show the queues of messages and their workers, if they are in the same store."""

from __future__ import annotations

import msgspec

from headgate.map.tree import unescape
from headgate.map.workers import QueueMap
from headgate.queue.workers.status import PartitionShape, partition_statuses, shape, workers
from headgate.rest import HttpRequest, get
from headgate.web.site import Site, must_read


class WorkerShape(msgspec.Struct, frozen=True):
    worker: str
    host: str
    """Host and process."""
    queues: tuple[str, ...]
    """Partitions it processes."""


class ApplicationShape(msgspec.Struct, frozen=True):
    application: str
    workers: list[WorkerShape]
    partitions: list[PartitionShape]


@get("/api/queues")
async def queues(site: Site, request: HttpRequest) -> list[ApplicationShape]:
    """Return every application with its workers and partitions, as of now."""
    must_read(site, request)
    root = QueueMap()
    entries = await site.context.store.list(root.path)
    names = sorted({unescape(entry.path[len(root.path) + 1 :].split("/")[0]) for entry in entries})
    found = []
    for name in names:
        app = root.app(name)
        by, known = workers(app, entries), partition_statuses(app, entries)
        found.append(
            ApplicationShape(
                name,
                [WorkerShape(worker, record.name, record.queues) for worker, record in sorted(by.items())],
                [shape(partition, known[partition], by, known=True) for partition in sorted(known)],
            )
        )
    return found


ROUTES = (queues,)
