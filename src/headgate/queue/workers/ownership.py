"""Own a partition: hold its progress, and the guard that every commit to it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.map.workers import Application, Control
from headgate.queue.workers.calls import log
from headgate.queueing import progress as steps
from headgate.queueing.partitions import QueuePartition
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import At, Conflict, Delete, Entry, Op, Put, Unavailable

RETRY_MAX_S = 5.0


@dataclass(slots=True)
class Ownership:
    """Own a partition until a commit raises GuardLost, in which case nothing was written."""

    store: Store
    session: Session
    app: Application
    partition: QueuePartition
    guard: At
    name: str
    """Name of this worker."""
    stored: steps.Progress
    """Progress as it was last written to the store."""
    version: int | None
    """Version of the progress entry; None: there is no entry."""

    async def commit(self, progress: steps.Progress) -> None:
        """Write the progress. Raise GuardLost or SessionLost."""
        await self._write([self.app.progress(self.partition).put(progress)])
        self.stored = progress

    async def seek(self, progress: steps.Progress) -> steps.Progress | None:
        """Move the position as an operator requested; the request is deleted in the same commit. Return None if
        the request has disappeared."""
        place = self.app.controls(self.partition)
        entry = await self._read(place.path)
        control = place.decode(entry.value) if entry is not None else Control()
        if entry is None or control.seek is None:
            return None
        try:
            there = steps.sought(progress, control.seek)
        except ValueError as error:
            log.error("%s: cannot continue after %r: %s", self.partition, control.seek, error)
            # A request that cannot be understood is dropped, too; it would stop the partition at every step.
            there = progress
        left = Control(paused=control.paused)
        ops: list[Op] = [
            self.app.progress(self.partition).put(there),
            # In the same commit as the position: a crash in between would seek again and repeat everything since.
            place.put(left) if left != Control() else place.delete(),
        ]
        try:
            await self._write(ops, At(place.path, entry.version))
        except GuardLost:
            raise
        except Conflict:
            return None  # the request has changed in the meantime: the caller reads it again
        self.stored = there
        return there

    async def release(self, progress: steps.Progress) -> None:
        """Give the partition back, so that another worker can take it immediately."""
        left = steps.released(progress)
        await self._write([self.app.progress(self.partition).put(left), Delete(self.guard.path)])

    async def _write(self, ops: list[Op], *checks: At) -> None:
        """Write operations, the first of which is the progress. Raise Conflict if one of `checks` fails.

        An answer may be lost, and the request may arrive much later: the guard refuses it if another worker owns
        the partition by then, the version if this worker has written since.
        """
        path, value = self.app.progress(self.partition).path, ops[0].value if isinstance(ops[0], Put) else b""
        wait_s = 0.05
        while True:
            self.session.check()
            try:
                entries = await self.store.commit([At(path, self.version), *checks], ops, guards=[self.guard])
                self.version = entries[0].version if entries[0] is not None else None
                return
            except GuardLost:
                raise
            except Conflict as conflict:
                entry = await self._read(path)
                self.version = entry.version if entry is not None else None
                # Our own earlier request, whose answer was lost, has arrived after all.
                if entry is not None and entry.value == value:
                    return
                # Another check failed, so repeating cannot help; a conflict on the progress itself is tried with the
                # new version.
                if conflict.check.path != path:
                    raise
            except Unavailable:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _read(self, path: str) -> Entry | None:
        wait_s = 0.05
        while True:
            self.session.check()
            try:
                return await self.store.get(path)
            except Unavailable:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)


async def take(
    store: Store,
    session: Session,
    app: Application,
    partitions: Sequence[QueuePartition],
    name: str,
    unreadable: Callable[[QueuePartition, ValueError], None],
) -> list[Ownership]:
    """Take the partitions if nobody owns any of them; one that this worker owns, from a commit whose answer was lost,
    counts as taken. Return an empty list if another worker owns one. A partition with unreadable progress is reported
    and left out."""
    checks, ops, found = list[At](), list[Op](), list[Ownership]()
    fresh = list[tuple[QueuePartition, steps.Progress]]()
    for partition in partitions:
        owner, place = app.owner(partition), app.progress(partition)
        owned, stored = await store.get(owner.path), await store.get(place.path)
        if owned is not None and owned.value != name.encode():  # a name belongs to a single session
            return []
        # No worker has discovered it yet. Without a record there is no version to check.
        if stored is None:
            continue
        try:
            now = place.decode(stored.value)
            steps.position(now)
        except ValueError as error:
            unreadable(partition, error)
            continue
        if owned is not None:
            found.append(
                Ownership(store, session, app, partition, At(owner.path, owned.version), name, now, stored.version)
            )
            continue
        fresh.append((partition, steps.taken(now, name)))
        checks += [At(owner.path, None), At(place.path, stored.version)]
        ops += [Put(owner.path, name.encode(), session.lease), place.put(fresh[-1][1])]
    try:
        entries = await store.commit(checks, ops) if ops else []
    # Another worker was quicker, or the answer is lost. In that case the owner entry has our name at the next check.
    except (Conflict, Unavailable):
        return []
    # Each partition has two operations: its owner entry, then its progress.
    for (partition, mine), entry, progress in zip(fresh, entries[::2], entries[1::2], strict=True):
        assert entry is not None and progress is not None, "a put answers with its entry"
        guard = At(entry.path, entry.version)
        found.append(Ownership(store, session, app, partition, guard, name, mine, progress.version))
    return found
