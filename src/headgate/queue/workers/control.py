"""Record what operators want for a partition, where its owner sees it."""

from __future__ import annotations

from headgate.map.workers import Application, Control
from headgate.queueing.partitions import QueuePartition
from headgate.store.store import Store, Txn


async def steer(
    store: Store, app: Application, partition: QueuePartition, *, paused: bool | None = None, seek: str | None = None
) -> Control:
    """Change the control record of a partition; arguments that are not given leave it unchanged. Raise LookupError
    if there is no such partition, or StoreError."""
    place = app.controls(partition)

    async def body(txn: Txn) -> Control:
        # A control record of a misspelled partition would wait in the store for ever.
        if await txn.get(app.progress(partition).path) is None:
            raise LookupError(f"no worker knows a partition {partition}; `headgate queue list` shows those there are")
        entry = await txn.get(place.path)
        now = place.decode(entry.value) if entry is not None else Control()
        then = Control(now.paused if paused is None else paused, now.seek if seek is None else seek)
        if then != Control():
            txn.put(place.path, place.encode(then))
        elif entry is not None:
            txn.delete(place.path)
        return then

    return await store.transact(body)
