"""Declare the places of queue workers. Paths follow the seed byte for byte; additions to it are marked."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headgate.map.records import Raw
from headgate.map.tree import Address, Dir, each, place, unescape
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import Progress

R = TypeVar("R")

ROOT = "/mozilla/services/qdo"
WORKER_PREFIX = "worker-"


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a worker. `queues` is for people only: the owner entry is what entitles a worker to a partition."""

    queues: tuple[str, ...]
    """Names of queues, for their first partitions; other partitions are written `<queue>:<n>`."""
    name: str = ""
    """Host and process of the worker, for people."""
    takes: tuple[str, ...] = ()
    """Patterns of the queues that the worker has jobs for; empty: all queues."""
    manual: bool = False
    """Whether the worker takes exactly the queues that it names and has no part in the distribution of queues."""
    url: str = ""
    """Address at which the worker answers; empty if it does not listen."""
    leaving: bool = False
    """Whether the worker is leaving: it takes nothing more, and hands back what it has."""
    was: tuple[str, ...] = ()
    """Names that this process had in sessions that it lost: jobs from these sessions continue in the process."""


class Control(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what people want of one partition."""

    paused: bool = False
    seek: str | None = None
    """Position behind which the owner continues, in any form of `last`; the owner removes it once it has done so."""


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record the settings of a queue."""

    priorities: int = 1
    """Number of the queue's partitions that form a strand, see `queueing.partitions`."""


class QueueShapePlace(Dir):
    """Hold the shape of one queue."""

    record = place(QueueSettings, "How it is made; nothing where it has no priorities.", by="worker", own=True)


class QueueProgress(Dir):
    """Hold the progress of one queue."""

    record = place(
        Progress,
        "How far its first partition has been processed; the older forms of `last` are read, too.",
        by="worker",
        own=True,
    )
    partitions = place(
        Progress, "The same of its further partitions, by number.", by="worker", node="keyed", seed=False
    )


class QueueOwners(Dir):
    """Hold the owners of one queue."""

    partition = place(
        Raw,
        "By partition: the worker that processes it.  Its entry is the guard of every progress record it writes.",
        by="worker",
        node="ephemeral keyed",
        own=True,
    )


class QueueControls(Dir):
    """Hold the controls of one queue."""

    partition = place(Control, "By partition: paused, or to go on elsewhere.", by="cli, worker", node="keyed", own=True)


class Application(Dir):
    """Hold the places of one application."""

    workers = place(
        WorkerRecord,
        "Every worker, for as long as it lives, and what it handles.",
        by="worker",
        node="ephemeral sequence",
    )
    queues = each(QueueProgress, key="queue", doc="Every queue there is, and how far it has been processed.")
    owners = each(QueueOwners, key="queue", doc="Who processes what.", seed=False)
    shapes = each(QueueShapePlace, key="queue", doc="Queues with priorities.", seed=False)
    control = each(QueueControls, key="queue", doc="What people asked for.", seed=False)

    def partition_of(self, path: str) -> QueuePartition | None:
        """Return the partition of a progress, owner or control entry, or None for anything else."""
        # Called for every entry of a directory, so the path is taken apart without a search in the map.
        match path[len(self.path) + 1 :].split("/"):
            case ["queues", queue]:
                return QueuePartition(unescape(queue))
            case ["queues", queue, "partitions", number] | ["owners" | "control", queue, number]:
                return QueuePartition(unescape(queue), int(number)) if number.isdecimal() else None
        return None

    def queue_of(self, path: str) -> str | None:
        """Return the queue of the entry of a shape; None for anything else."""
        match path[len(self.path) + 1 :].split("/"):
            case ["shapes", queue]:
                return unescape(queue)
        return None

    def shape(self, queue: str) -> Address[QueueSettings]:
        """Return the place of the shape of the queue."""
        return self.shapes(queue).record

    def progress(self, partition: QueuePartition) -> Address[Progress]:
        queue = self.queues(partition.queue)
        return queue.record if partition.number == 1 else _numbered(queue.partitions, partition)

    def owner(self, partition: QueuePartition) -> Address[Raw]:
        return _numbered(self.owners(partition.queue).partition, partition)

    def controls(self, partition: QueuePartition) -> Address[Control]:
        return _numbered(self.control(partition.queue).partition, partition)


def _numbered(place: Address[R], partition: QueuePartition) -> Address[R]:
    return Address(f"{place.path}/{partition.number}", place.type)


class QueueMap(Dir):
    """Hold the applications that share one namespace."""

    def __init__(self, path: str = ROOT) -> None:
        super().__init__(path)

    app = each(Application, key="app_name", bare=True)
