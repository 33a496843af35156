"""Describe the state of partitions for people, as the store shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headgate.map.tree import Undecodable
from headgate.map.workers import Application, Control, WorkerRecord
from headgate.queueing.ids import START, TICKS_A_SECOND, UNIX_EPOCH_TICKS, Position
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import NEW, Progress, position
from headgate.store.types import Entry

UNSTEERED = Control()


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Describe one partition."""

    progress: Progress = NEW
    owner: str = ""
    control: Control = UNSTEERED


class PartitionShape(msgspec.Struct, frozen=True):
    partition: str
    """QUEUE, or QUEUE:N"""
    state: str
    """new (no worker knows it) | waiting (nobody processes it) | processed | paused | gone | unreadable"""
    worker: str
    processed_until: str
    """Time of the newest message that is done, ISO 8601; empty: none is."""
    retrying: int
    """Messages that wait for another attempt."""


def partition_statuses(app: Application, entries: Iterable[Entry]) -> dict[QueuePartition, PartitionStatus | None]:
    """Describe every partition that workers know, or None where the progress cannot be read."""
    by_path = {entry.path: entry.value for entry in entries}
    found: dict[QueuePartition, PartitionStatus | None] = {}
    for path, value in by_path.items():
        partition = app.partition_of(path)
        # Owners and controls have names of partitions, too.
        if partition is None or path != app.progress(partition).path:
            continue
        control = by_path.get(app.controls(partition).path)
        try:
            progress = app.progress(partition).decode(value)
            position(progress)
            steered = app.controls(partition).decode(control) if control is not None else UNSTEERED
        except ValueError:
            found[partition] = None
            continue
        found[partition] = PartitionStatus(progress, by_path.get(app.owner(partition).path, b"").decode(), steered)
    return found


def workers(app: Application, entries: Iterable[Entry]) -> dict[str, WorkerRecord]:
    """Return the workers whose records can be read."""
    under, found = app.workers.inside(""), dict[str, WorkerRecord]()
    for entry in entries:
        if entry.path.startswith(under):
            with suppress(Undecodable):
                found[entry.path.removeprefix(under)] = app.workers.decode(entry.value)
    return found


def shape(
    partition: QueuePartition, partition_status: PartitionStatus | None, by: Mapping[str, WorkerRecord], *, known: bool
) -> PartitionShape:
    if partition_status is None:
        return PartitionShape(str(partition), "unreadable" if known else "new", "", "", 0)
    record = by.get(partition_status.owner)
    worker = f"{partition_status.owner} {record.name}" if record is not None else partition_status.owner
    return PartitionShape(
        str(partition),
        _state(partition_status),
        worker,
        time_of(position(partition_status.progress)),
        len(partition_status.progress.parked),
    )


def _state(partition_status: PartitionStatus) -> str:
    if partition_status.progress.gone_ms:
        return "gone"
    state = "paused" if partition_status.control.paused else "processed" if partition_status.owner else "waiting"
    return f"{state}, to seek" if partition_status.control.seek is not None else state


def time_of(at: Position) -> str:
    """Return the time of a message, ISO 8601; empty if the position names none."""
    if at == START:
        return ""
    unix_s = (at.ticks - UNIX_EPOCH_TICKS) / TICKS_A_SECOND
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
