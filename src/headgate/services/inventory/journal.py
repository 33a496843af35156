"""Change objects in guarded commits that write the journal, and cache its latest changes for watchers.

One watch of the store feeds the journal. Readers never wait for one another, and a slow reader gets an error if it has
missed something. Writers trim the journal, because the number and the size of its entries are limited.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from headgate.base.ids import fresh
from headgate.inventory.journal import Recorded, of_facts
from headgate.inventory.model import Caller, Object
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create, InventoryDraft, Step
from headgate.services.inventory.errors import AlreadyExists, MomentExpired, Stale
from headgate.services.inventory.facts import Basis, InventoryFacts
from headgate.store.store import PORTION_MAX, Store
from headgate.store.types import At, Conflict, Delete, Entry, EntryChanged, EntryGone, Op, Put, Snapshot, Unavailable

REVISIONS_MAX = 10_000
CACHE_MAX_BYTES = 32_000_000
TRIMMED_MAX = 4
"""Limit on the old entries that one writer removes with its own commit."""
RETRY_MAX_S = 10.0
WAIT_TIMEOUT_S = 10.0
GENESIS = "genesis"
"""Name of the very first entry: while it exists, nothing was trimmed."""
ATTEMPTS_MAX = 8


@dataclass(order=True, slots=True, frozen=True)
class JournalCommit:
    """Represent one commit of the journal; `revision` is its moment. Its content is decoded on demand."""

    revision: int
    path: str
    value: bytes = field(compare=False)
    facts: bool = field(compare=False)
    """Whether the commit changed partitions, types or definitions."""

    @property
    def recorded(self) -> Recorded:
        return Recorded.from_wire(self.value)


class Journal:
    """Cache the latest changes; `run()` must be running."""

    def __init__(self, store: Store, places: InventoryMap) -> None:
        self._store, self._places, self._entries_max = store, places, REVISIONS_MAX
        self._commits: list[JournalCommit] = []
        self._by_path: dict[str, JournalCommit] = {}
        self._size_bytes = 0
        self._revision = 0
        self._complete = False
        self._floor = 0
        self._moved = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def revision(self) -> int:
        """Return the revision that this process has seen."""
        return self._revision

    @property
    def latest(self) -> int:
        """Return the last seen revision at which an object, or an entity that objects depend on, changed."""
        return self._commits[-1].revision if self._commits else 0

    def on_facts(self, listener: Callable[[], None]) -> None:
        """Register a listener that is called when partitions, types or definitions may have changed."""
        self._listeners.append(listener)

    async def begin(self) -> None:
        """Write the first entry unless the journal has one."""
        first = self._places.journal.changes(GENESIS).record
        ops: list[Op] = [first.put(Recorded((), "", "", 0)), self.mark()]
        # At most startups the journal already exists, and this check saves a commit.
        if not await self._store.scan(self._places.journal.changes.path, limit=1):
            try:
                await self._store.commit([At(first.path, None)], ops)
            except Conflict:
                return  # another process was faster

    async def run(self) -> None:
        """Follow the store until cancelled. If the watch breaks, start it again after a bounded wait."""
        wait_s = 0.1
        while True:
            try:
                async for change in self._store.watch(self._places.journal.path):
                    await self._apply(change)
                    wait_s = 0.1
            except Unavailable:
                self._notify()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    def ops(self, name: str, recorded: Recorded) -> list[Op]:
        """Return the operations that a writer appends to its commit: the new entry, and the deletion of a few of the
        oldest."""
        # The number of deletions per writer is limited, so that no single writer bears the cost of all.
        over = len(self._commits) + 1 - self._entries_max
        large = self._size_bytes > CACHE_MAX_BYTES
        # Several writers may trim the same entries, because deleting a missing entry is not an error.
        trimmed = self._commits[: min(max(over, int(large)), TRIMMED_MAX)]
        put = self._places.journal.changes(name).record.put(recorded)
        return [*(Delete(one.path) for one in trimmed), put, self.mark()]

    def mark(self) -> Put:
        """Return the operation that every commit of an inventory includes, so that followers of the journal check
        again."""
        revision = self._places.journal.revision
        return Put(revision.path, b"")

    async def now(self) -> int:
        """Return the current revision of the store."""
        # Read from the store, because this process may lag behind; `wait_for` closes the gap.
        entry = await self._store.get(self._places.journal.revision.path)
        return entry.version if entry else 0

    async def wait_for(self, revision: int) -> None:
        """Wait until this process has seen the revision. Raise Unavailable after WAIT_TIMEOUT_S."""
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while self._revision < revision:
                    await self._moves()
        except TimeoutError as error:
            raise Unavailable("the store does not report its changes; try again") from error

    async def passed(self, revision: int) -> None:
        """Wait until this process has seen a later revision."""
        while self._revision <= revision:
            await self._moves()

    def since(self, revision: int) -> list[JournalCommit]:
        """Return the commits after the revision, oldest first. Raise MomentExpired if some are no longer stored."""
        if self._trimmed(revision):
            raise MomentExpired(f"the changes after revision {revision} are no longer stored; start again")
        return self._commits[bisect_right(self._commits, revision, key=lambda one: one.revision) :]

    async def follow(self, revision: int, *, quiet_s: float) -> AsyncIterator[tuple[list[JournalCommit], int]]:
        """Keep yielding the commits after the revision, with the revision reached; yield an empty list after `quiet_s`
        without any."""
        while True:
            reached = self._revision
            # An entry may arrive before its revision: it is yielded once the revision is reached, and only once.
            commits = [one for one in self.since(revision) if one.revision <= reached]
            revision = max(revision, reached)
            yield commits, revision
            # More commits arrived while the reader was busy, so it need not wait.
            if self._revision > revision:
                continue
            try:
                async with asyncio.timeout(quiet_s):
                    while self._revision <= revision:
                        await self._moves()
            except TimeoutError:
                continue

    async def _moves(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _trimmed(self, revision: int) -> bool:
        # Nothing was ever trimmed, so any moment after the last unreadable entry is available.
        if self._complete:
            return revision < self._floor
        # Entries before the oldest remaining one may have been trimmed.
        oldest = self._commits[0].revision if self._commits else self._revision
        return revision < max(oldest, self._floor)

    async def _apply(self, change: Snapshot | EntryChanged | EntryGone) -> None:
        match change:
            case Snapshot(entries):
                await self._restart(entries)
            case EntryChanged(entry):
                self._take(entry)
            case EntryGone(path):
                gone = self._by_path.pop(path, None)
                if gone is not None:
                    self._commits.remove(gone)
                    self._size_bytes -= len(gone.value)
        genesis = self._places.journal.changes(GENESIS).record.path
        self._complete = genesis in self._by_path
        self._moved.set()

    async def _restart(self, entries: Sequence[Entry]) -> None:
        """Load the existing entries, in portions between which other tasks get turns."""
        revision, commits = self._revision, list[JournalCommit]()
        for number, entry in enumerate(entries, 1):
            if entry.path == self._places.journal.revision.path:
                revision = max(revision, entry.version)
            elif (commit := self._read(entry)) is not None:
                commits.append(commit)
            # Decoding ten thousand entries takes a while, and sessions must be renewed in the meantime.
            if number % PORTION_MAX == 0:
                await asyncio.sleep(0)
        self._commits = sorted(commits)
        self._by_path = {one.path: one for one in commits}
        self._size_bytes = sum(len(one.value) for one in commits)
        self._revision = revision
        # Changes of facts may have been missed while the watch was broken.
        self._notify()

    def _take(self, entry: Entry) -> None:
        if entry.path == self._places.journal.revision.path:
            self._revision = max(self._revision, entry.version)
            return
        commit = self._read(entry)
        if commit is None:
            return
        # Entries are never overwritten, so an already known entry comes from a restarted watch.
        if entry.path not in self._by_path:
            self._by_path[entry.path] = commit
            insort(self._commits, commit)
            self._size_bytes += len(commit.value)
        if commit.facts:
            self._notify()

    def _read(self, entry: Entry) -> JournalCommit | None:
        """Return the commit; None if it cannot be read: readers that need it must start again."""
        try:
            return JournalCommit(entry.born, entry.path, entry.value, of_facts(entry.value))
        except ValueError:
            # Moments before it are no longer available, because its changes are unknown.
            self._floor = max(self._floor, entry.born)
            return None

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


@dataclass(frozen=True, slots=True)
class Written:
    """Hold one object per step with its generation, and the revision. A deleted object has its last state and the
    generation 0."""

    objects: tuple[tuple[Object, int], ...]
    revision: int


class Writer:
    """Commit steps on objects together with their entry in the journal."""

    def __init__(
        self, facts: InventoryFacts, journal: Journal, clock: Callable[[], int], *, compatible: bool = False
    ) -> None:
        self._facts, self._journal, self._clock = facts, journal, clock
        self._compatible = compatible

    @property
    def _store(self) -> Store:
        return self._facts.store

    @property
    def _places(self) -> InventoryMap:
        return self._facts.places

    async def apply(self, caller: Caller, steps: Sequence[Step], *, validate_only: bool = False) -> Written:
        """Apply all steps in order, or none.

        Raise Invalid, NotFound, AlreadyExists, PermissionDenied, Unmet, or Stale: an object does not have the expected
        generation, or kept changing during the attempts.
        """
        for attempt in range(ATTEMPTS_MAX):
            draft = await self._draft(caller, steps)
            ops = draft.ops()
            # Nothing is committed, so the conditions that a commit would check are read instead.
            if validate_only:
                self._vacant(await self._store.get_many(sorted(draft.created)))
                return Written(tuple((one, 0) for one in draft.results), 0)
            recorded = Recorded(tuple(draft.changes), caller.user, caller.project, draft.at_ms)
            checks = list({**draft.basis.checks, **draft.checks}.values())
            ops = [*ops, *self._journal.ops(fresh(), recorded)]
            try:
                entries = await self._store.commit(checks, ops)
                return self._written(draft, entries)
            except Conflict as conflict:
                # The cause may be an outdated cached entry; the next attempt reads all of them again.
                self._facts.forget()
                await self._refuse(draft, conflict.check, last=attempt == ATTEMPTS_MAX - 1)
        raise AssertionError("the loop returns or raises")

    async def _draft(self, caller: Caller, steps: Sequence[Step]) -> InventoryDraft:
        uuids = [step.uuid for step in steps if not isinstance(step, Create)]
        records = [self._places.objects.by_uuid(uuid).record.path for uuid in uuids]
        histories = [self._places.history.object(uuid).record.path for uuid in uuids]
        paths = list(dict.fromkeys([*records, *histories]))
        stored = dict(zip(paths, await self._store.get_many(paths), strict=True)) if paths else {}
        draft = InventoryDraft(
            self._places, Basis(self._facts), caller, self._clock(), stored, compatible=self._compatible
        )
        for step in steps:
            await draft.take(step)
        return draft

    async def _refuse(self, draft: InventoryDraft, check: At, *, last: bool) -> None:
        """Raise an error if another attempt would not help."""
        # A taken name stays taken, so another attempt would fail again.
        if check.path in draft.created and (entry := await self._store.get(check.path)) is not None:
            self._vacant([entry])
        if last:
            raise Stale("the entries that it depends on change too fast for it to be written; try again")

    def _vacant(self, entries: Sequence[Entry | None]) -> None:
        """Check that the names are free. Raise AlreadyExists."""
        records = self._places.objects.by_uuid.path
        for entry in entries:
            if entry is not None:
                what = "uuid" if entry.path.startswith(f"{records}/") else "name"
                raise AlreadyExists(f"an object with this {what} already exists: {entry.path.rpartition('/')[2]}")

    def _written(self, draft: InventoryDraft, entries: Sequence[Entry | None]) -> Written:
        versions = {entry.path: entry.version for entry in entries if entry is not None}
        paths = [self._places.objects.by_uuid(one.uuid).record.path for one in draft.results]
        objects = tuple((one, versions.get(path, 0)) for one, path in zip(draft.results, paths, strict=True))
        return Written(objects, versions[self._places.journal.revision.path])
