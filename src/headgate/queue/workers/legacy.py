"""Take over progress as the original qdo recorded it: from messages of its status queue, and from its later tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headgate.map.workers import Application
from headgate.ports.messages import MessageSource
from headgate.queueing import progress as steps
from headgate.queueing.ids import START, parse_last, position_of
from headgate.queueing.partitions import PARTITIONS_MAX, QUEUE_NAME, QueuePartition
from headgate.queueing.progress import NEW
from headgate.store.store import Store, Txn
from headgate.store.types import Entry

STATUS = "qdo_status"
TREE = "partitions"
"""Name of the tree; `<namespace>/partitions/<queue>-<n>` holds seconds since 1970 as text."""
PAGE = 500


class _Status(msgspec.Struct):
    """Represent the body of a message of the status queue."""

    partition: str
    processed: str = ""


def partition_named(name: str) -> QueuePartition | None:
    """Parse `<queue>-<n>`, or return None."""
    queue, _, number = name.rpartition("-")
    good = QUEUE_NAME.fullmatch(queue) and number.isdecimal() and 1 <= int(number) <= PARTITIONS_MAX
    return QueuePartition(queue, int(number)) if good else None


async def recorded(source: MessageSource) -> dict[QueuePartition, str]:
    """Map each partition to the greatest `last` that the status queue says. Raise SourceDown or QueueGone."""
    found: dict[QueuePartition, str] = {}
    for partition in await source.partitions():
        after = START
        while partition.queue == STATUS and (page := await source.read(partition, after, PAGE)):
            after = position_of(page[-1].message_id)
            for message in page:
                _keep(found, *_parsed_status(message.body))
    return found


def with_tree(known: Mapping[QueuePartition, str], entries: Iterable[Entry]) -> dict[QueuePartition, str]:
    """Add the positions in the entries below TREE; the greater position wins."""
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
        now = place.decode(entry.value) if entry is not None else NEW
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
        status = msgspec.json.decode(body, type=_Status)
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
