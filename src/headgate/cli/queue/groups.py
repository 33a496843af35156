"""Show the progress of groups of workers: those with a store of their own, and those that lease partitions over
HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.cli.queue.operator import Operator
from headgate.map.workers import WorkerRecord
from headgate.ports.messages import PostRefused, QueueGone
from headgate.queue.messages.leaseclient import MessageLeasing
from headgate.queue.workers.status import PartitionShape, PartitionStatus, time_of
from headgate.queueing.ids import START, Position, position_of
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import position

STORE, SERVER = "store", "server"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Describe one group in one partition."""

    partition: QueuePartition
    name: str
    """Name of the group; empty: workers with a store that name none."""
    kept_by: str
    """STORE or SERVER: which of them keeps the progress."""
    worker: str
    """Worker that has the partition; empty: none has."""
    at: Position
    retrying: int

    def shape(self) -> PartitionShape:
        """Convert to the form in which partitions of workers with a store are shown."""
        state = "processed" if self.worker else "waiting"
        return PartitionShape(str(self.partition), state, self.worker, time_of(self.at), self.retrying)


async def of_server(at: Operator, partitions: list[QueuePartition], only: str = "") -> list[GroupStatus]:
    """Return the state of groups over HTTP; with `only`, of that one, even if it has not started."""
    found: list[GroupStatus] = []
    for queue in sorted({partition.queue for partition in partitions}):
        try:
            rows = await MessageLeasing(at.client).partition_status(queue, only)
        except (QueueGone, PostRefused):
            continue  # the queue was removed; or the server is of another kind, without groups
        for one in rows:
            partition = QueuePartition(queue, one.partition)
            groups = [
                GroupStatus(
                    partition,
                    known.group,
                    SERVER,
                    known.worker if known.held else "",
                    position_of(known.processed) if known.processed else START,
                    known.retrying,
                )
                for known in one.groups
            ]
            found += groups or ([GroupStatus(partition, only, SERVER, "", START, 0)] if only else [])
    return found


async def of_store(at: Operator) -> list[GroupStatus]:
    """Return the state of groups that share the store of the file; empty if it names none."""
    # The server keeps their progress, and `of_server` reports it.
    if at.file.leases:
        return []
    return [
        of_progress(partition, partition_status or PartitionStatus(), group, workers)
        for group, partition_statuses, workers in await at.groups()
        for partition, partition_status in partition_statuses.items()
    ]


def of_progress(
    partition: QueuePartition,
    partition_status: PartitionStatus,
    group: str = "",
    workers: Mapping[str, WorkerRecord] | None = None,
) -> GroupStatus:
    """Return the state of one group with a store."""
    record = (workers or {}).get(partition_status.owner)
    worker = f"{partition_status.owner} {record.name}" if record is not None else partition_status.owner
    return GroupStatus(
        partition, group, STORE, worker, position(partition_status.progress), len(partition_status.progress.parked)
    )
