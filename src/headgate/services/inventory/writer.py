"""Change objects: one guarded commit for the record, its indexes, its history and the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.base.ids import fresh
from headgate.inventory.journal import Recorded
from headgate.inventory.model import Caller, Object
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create, InventoryDraft, Step
from headgate.services.inventory.errors import AlreadyExists, Stale
from headgate.services.inventory.facts import Basis, InventoryFacts
from headgate.services.inventory.journal import Journal
from headgate.store.store import Store
from headgate.store.types import At, Conflict, Entry

ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Written:
    """Hold one object per step with its generation (0 if deleted, then as it last was), and the revision."""

    objects: tuple[tuple[Object, int], ...]
    revision: int


class Writer:
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

        Raises Invalid, NotFound, AlreadyExists, PermissionDenied, Unmet, or Stale: an object is not at the generation
        expected, or changed again and again while it was tried.
        """
        for attempt in range(ATTEMPTS_MAX):
            draft = await self._draft(caller, steps)
            ops = draft.ops()
            # Nothing is committed, so what the commit would have checked is read.
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
                # What failed may be a cached fact; the next attempt reads all of them again.
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
        # A name that is taken stays taken; another attempt could only fail again.
        if check.path in draft.created and (entry := await self._store.get(check.path)) is not None:
            self._vacant([entry])
        if last:
            raise Stale("its dependencies change too fast for it to be written; try again")

    def _vacant(self, entries: Sequence[Entry | None]) -> None:
        """Check that the names are free. Raise AlreadyExists."""
        records = self._places.objects.by_uuid.path
        for entry in entries:
            if entry is not None:
                what = "uuid" if entry.path.startswith(f"{records}/") else "name"
                raise AlreadyExists(f"an object of this {what} exists: {entry.path.rpartition('/')[2]}")

    def _written(self, draft: InventoryDraft, entries: Sequence[Entry | None]) -> Written:
        versions = {entry.path: entry.version for entry in entries if entry is not None}
        paths = [self._places.objects.by_uuid(one.uuid).record.path for one in draft.results]
        objects = tuple((one, versions.get(path, 0)) for one, path in zip(draft.results, paths, strict=True))
        return Written(objects, versions[self._places.journal.revision.path])
