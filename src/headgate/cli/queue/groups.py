"""Tell how far groups of workers are: those with a store of their own, and those that lease partitions over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.cli.queue.operator import Operator
from headgate.map.workers import WorkerRecord
from headgate.ports.messages import PostRefused, QueueGone
from headgate.queue.messages.leaseclient import MessageLeasing
from headgate.queue.workers.status import PartitionShape, PartitionStatus, time_of
from headgate.queueing.ids import START, Position, position_of
from headgate.queueing.lanes import Lane
from headgate.queueing.progress import position

STORE, SERVER = "store", "server"


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """Describe one group in one partition."""

    lane: Lane
    name: str
    """Empty: workers with a store that name none."""
    kept_by: str
    """STORE or SERVER."""
    worker: str
    """Who has it; empty: nobody."""
    at: Position
    retrying: int

    def shape(self) -> PartitionShape:
        """Return it as partitions of workers with a store are shown."""
        state = "processed" if self.worker else "waiting"
        return PartitionShape(str(self.lane), state, self.worker, time_of(self.at), self.retrying)


async def of_server(at: Operator, lanes: list[Lane], only: str = "") -> list[GroupStanding]:
    """Return how groups over HTTP stand; with `only` that one, also where it has not begun."""
    found: list[GroupStanding] = []
    for queue in sorted({lane.queue for lane in lanes}):
        try:
            partitions = await MessageLeasing(at.client).partition_status(queue, only)
        except (QueueGone, PostRefused):
            continue  # it is gone; or the server is another one, which has no groups
        for one in partitions:
            lane = Lane(queue, one.partition)
            groups = [
                GroupStanding(
                    lane,
                    known.group,
                    SERVER,
                    known.worker if known.held else "",
                    position_of(known.processed) if known.processed else START,
                    known.retrying,
                )
                for known in one.groups
            ]
            found += groups or ([GroupStanding(lane, only, SERVER, "", START, 0)] if only else [])
    return found


async def of_store(at: Operator) -> list[GroupStanding]:
    """Return how groups stand that share the store of the file; none where it has no store."""
    if at.file.leases:
        return []
    return [
        of_progress(lane, partition_status or PartitionStatus(), group, workers)
        for group, partition_statuses, workers in await at.groups()
        for lane, partition_status in partition_statuses.items()
    ]


def of_progress(
    lane: Lane, partition_status: PartitionStatus, group: str = "", workers: Mapping[str, WorkerRecord] | None = None
) -> GroupStanding:
    """Return how a group with a store stands."""
    record = (workers or {}).get(partition_status.owner)
    worker = f"{partition_status.owner} {record.name}" if record is not None else partition_status.owner
    return GroupStanding(
        lane, group, STORE, worker, position(partition_status.progress), len(partition_status.progress.parked)
    )
