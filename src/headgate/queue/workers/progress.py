"""Describe the progress of partitions, steer them, and take over what the original qdo recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headgate.map.tree import Undecodable
from headgate.map.workers import Application, Control, WorkerRecord
from headgate.ports.messages import MessageSource
from headgate.queueing import progress as steps
from headgate.queueing.ids import START, TICKS_A_SECOND, UNIX_EPOCH_TICKS, Position, parse_last, position_of
from headgate.queueing.partitions import PARTITIONS_MAX, QUEUE_NAME, QueuePartition
from headgate.store.store import Store, Txn
from headgate.store.types import Entry

LEGACY_STATUS = "qdo_status"
"""Name of the queue to which the original qdo posted its progress."""
LEGACY_TREE = "partitions"
"""Name of the tree of the original qdo's progress; `<namespace>/partitions/<queue>-<n>` holds seconds since 1970 as
text.
"""
LEGACY_PAGE = 500
UNSTEERED = Control()


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Describe one partition."""

    progress: steps.Progress = steps.NEW
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
            # A record may be valid JSON but name an impossible position.
            steps.position(progress)
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
        time_of(steps.position(partition_status.progress)),
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


async def steer(
    store: Store, app: Application, partition: QueuePartition, *, paused: bool | None = None, seek: str | None = None
) -> Control:
    """Change the control record of a partition, and return it; arguments that are not given leave it unchanged. Raise
    LookupError if there is no such partition, or StoreError."""
    place = app.controls(partition)

    async def body(txn: Txn) -> Control:
        # A control record of a misspelled partition would wait in the store forever.
        if await txn.get(app.progress(partition).path) is None:
            raise LookupError(f"no worker knows a partition {partition}; `headgate queue list` shows the partitions")
        entry = await txn.get(place.path)
        now = place.decode(entry.value) if entry is not None else Control()
        then = Control(now.paused if paused is None else paused, now.seek if seek is None else seek)
        # Most partitions are never steered, so the default is not stored.
        if then != Control():
            txn.put(place.path, place.encode(then))
        elif entry is not None:
            txn.delete(place.path)
        return then

    return await store.transact(body)


class _LegacyStatus(msgspec.Struct):
    """Represent the body of a message of the status queue."""

    partition: str
    processed: str = ""


def partition_named(name: str) -> QueuePartition | None:
    """Parse `<queue>-<n>`, or return None."""
    queue, _, number = name.rpartition("-")
    good = QUEUE_NAME.fullmatch(queue) and number.isdecimal() and 1 <= int(number) <= PARTITIONS_MAX
    return QueuePartition(queue, int(number)) if good else None


async def legacy_progress(source: MessageSource) -> dict[QueuePartition, str]:
    """Map each partition to the greatest `last` in the status queue. Raise SourceDown or QueueGone."""
    found: dict[QueuePartition, str] = {}
    for partition in await source.partitions():
        after = START
        # The source may have many other queues.
        while partition.queue == LEGACY_STATUS and (page := await source.read(partition, after, LEGACY_PAGE)):
            after = position_of(page[-1].message_id)
            for message in page:
                _keep(found, *_parsed_status(message.body))
    return found


def with_legacy_tree(known: Mapping[QueuePartition, str], entries: Iterable[Entry]) -> dict[QueuePartition, str]:
    """Add the positions in the entries below LEGACY_TREE; the greater position wins."""
    found = dict(known)
    for entry in entries:
        _keep(found, partition_named(entry.path.rpartition("/")[2]), entry.value.decode(errors="replace").strip())
    return found


async def take_over(store: Store, app: Application, partition: QueuePartition, last: str) -> str:
    """Take over a position and return the outcome: taken over, further already, or in use by a worker, which then
    continues unaffected. Raise StoreError."""
    place, owner = app.progress(partition), app.owner(partition)

    async def body(txn: Txn) -> str:
        entry = await txn.get(place.path)
        now = place.decode(entry.value) if entry is not None else steps.NEW
        # Its owner writes the record from memory, and would put back the older position.
        if await txn.get(owner.path) is not None:
            return "in use"
        if steps.position(now) >= parse_last(last):
            return "further already"
        txn.do(place.put(steps.sought(now, last)))
        return "taken over"

    return await store.transact(body)


def _parsed_status(body: str) -> tuple[QueuePartition | None, str]:
    try:
        status = msgspec.json.decode(body, type=_LegacyStatus)
    except (msgspec.DecodeError, ValueError):
        return None, ""
    return partition_named(status.partition), status.processed


def _keep(found: dict[QueuePartition, str], partition: QueuePartition | None, last: str) -> None:
    """Keep the greater position; ignore unreadable ones."""
    try:
        if partition is not None and parse_last(last) > parse_last(found.get(partition, "")):
            found[partition] = last
    except ValueError:
        return
