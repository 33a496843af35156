"""Declare the places of queue workers. Paths match the seed map byte for byte; additions to it are marked."""

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
    """Record a worker. `queues` is only information: a worker owns a partition by its owner entry."""

    queues: tuple[str, ...]
    """The partitions that it processes: a queue's name for its first partition, otherwise `<queue>:<n>`."""
    name: str = ""
    """Host and process of the worker, as information."""
    takes: tuple[str, ...] = ()
    """Patterns of the queues that the worker has jobs for; empty: all queues."""
    manual: bool = False
    """Whether the worker processes exactly the queues that it names, and takes no part in their distribution."""
    url: str = ""
    """Address at which the worker listens; empty if it does not."""
    leaving: bool = False
    """Whether the worker is stopping: it takes no further partitions, and releases those that it has."""
    was: tuple[str, ...] = ()
    """Names of this process in earlier sessions, which it lost: jobs of these sessions continue in the process."""


class Control(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record people's orders for one partition."""

    paused: bool = False
    seek: str | None = None
    """Position after which the owner must continue, in any form of `last`; the owner then removes the order."""


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record the settings of a queue."""

    priorities: int = 1
    """Number of the queue's partitions that form a strand; see `queueing.partitions`."""


class QueueShapePlace(Dir):
    """Hold the shape of one queue."""

    record = place(QueueSettings, "Settings of the queue; absent without priorities.", by="worker", own=True)


class QueueProgress(Dir):
    """Hold the progress of one queue."""

    record = place(
        Progress,
        "How far its first partition has been processed; older forms of `last` are accepted, too.",
        by="worker",
        own=True,
    )
    partitions = place(Progress, "The same for its other partitions, by number.", by="worker", node="keyed", seed=False)


class QueueOwners(Dir):
    """Hold the owners of one queue."""

    partition = place(
        Raw,
        "By partition: the worker that processes it.  Every write of progress checks this entry.",
        by="worker",
        node="ephemeral keyed",
        own=True,
    )


class QueueControls(Dir):
    """Hold the controls of one queue."""

    partition = place(
        Control,
        "By partition: orders to pause, or to continue at another position.",
        by="cli, worker",
        node="keyed",
        own=True,
    )


class Application(Dir):
    """Hold the places of one application."""

    workers = place(
        WorkerRecord,
        "Every running worker, and the partitions that it processes.",
        by="worker",
        node="ephemeral sequence",
    )
    queues = each(QueueProgress, key="queue", doc="Every queue, and how far it has been processed.")
    owners = each(QueueOwners, key="queue", doc="The owners of partitions.", seed=False)
    shapes = each(QueueShapePlace, key="queue", doc="Queues with priorities.", seed=False)
    control = each(QueueControls, key="queue", doc="Commands of people.", seed=False)

    def partition_of(self, path: str) -> QueuePartition | None:
        """Return the partition of a progress, owner or control entry; None: it is another entry."""
        # Called for every entry of a directory, so the path is parsed without a search in the map.
        match path[len(self.path) + 1 :].split("/"):
            case ["queues", queue]:
                return QueuePartition(unescape(queue))
            case ["queues", queue, "partitions", number] | ["owners" | "control", queue, number]:
                return QueuePartition(unescape(queue), int(number)) if number.isdecimal() else None
        return None

    def queue_of(self, path: str) -> str | None:
        """Return the queue of a settings entry; None: it is another entry."""
        match path[len(self.path) + 1 :].split("/"):
            case ["shapes", queue]:
                return unescape(queue)
        return None

    def shape(self, queue: str) -> Address[QueueSettings]:
        """Return the place of the queue's settings."""
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
