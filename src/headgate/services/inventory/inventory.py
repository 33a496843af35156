"""Perform the operations of the inventory for callers, independently of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from headgate.inventory import filters, names
from headgate.inventory.journal import InventoryEvent, ObjectChange
from headgate.inventory.model import Caller, Object
from headgate.inventory.permissions import visible
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory import questions
from headgate.services.inventory.admin import Admin
from headgate.services.inventory.draft import Remove, Step, numbered_parts, owned, parts
from headgate.services.inventory.errors import Broad, InventoryError, MomentExpired, NotFound, Stale, Unmet
from headgate.services.inventory.facts import Basis, InventoryFacts
from headgate.services.inventory.index import IndexQuery, Position
from headgate.services.inventory.journal import Journal, JournalCommit, Writer, Written
from headgate.services.inventory.search import DEFAULTS, FoundObject, Search, SearchBounds, SearchMoment, SearchPlan
from headgate.store.store import PORTION_MAX, Store
from headgate.store.types import TooLarge

LIMIT_DEFAULT, LIMIT_MAX = 100, 1_000
"""Default and greatest number of objects on one page."""
BATCH_MAX = 100
"""Limit on the changes that a watcher gets at a time."""
PARTS_MAX = 16
"""Limit on the concurrent commits of one request."""
Outcome = tuple[Object, int] | Exception | None
"""Outcome of one step: the object and its generation, or the error."""


@dataclass(frozen=True, slots=True)
class ObjectPage:
    objects: Sequence[FoundObject]
    next_token: str
    revision: int
    count: int | None
    count_is_least: bool = False
    """Whether the true count may be higher, because counting is limited."""
    bounded: bool = False
    """Whether a limit ended the page, so that there may be more matches although the page is not full."""


class Inventory:
    """Serve callers, whatever the protocol. `journal.run()` must be running."""

    def __init__(
        self,
        store: Store,
        places: InventoryMap,
        clock: Callable[[], int],
        *,
        compatible: bool = False,
        bounds: SearchBounds = DEFAULTS,
    ) -> None:
        """Create an inventory. `compatible` uses the definitions of runm-metadata, which validates a provider before
        its type is deleted."""
        self.places, self.clock = places, clock
        self.journal = Journal(store, places)
        self.facts = InventoryFacts(store, places)
        self.journal.on_facts(self.facts.forget)
        self.admin = Admin(self.facts, self.journal, clock, compatible=compatible)
        self._questions = questions.Questions(self.facts)
        self._writer = Writer(self.facts, self.journal, clock, compatible=compatible)
        self._search = Search(store, places, self.journal, bounds)
        self._bounds = bounds
        self._seal = questions.Seal(store, places)

    async def begin(self) -> None:
        await self.admin.begin()

    # ---- reading

    async def get(self, caller: Caller, uuid: str) -> tuple[Object, int]:
        """Return an object and its generation. Raise NotFound, also for an object that the caller may not see."""
        address = self.places.objects.by_uuid(uuid).record
        entry = await self.facts.store.get(address.path)
        # An object that the caller may not see gets the same answer as a missing one, so as not to reveal that it
        # exists.
        found = owned(address.decode(entry.value), caller) if entry else None
        if found is None or entry is None:
            raise NotFound(f"there is no object {uuid}")
        return await self._seen(found, caller), entry.version

    async def get_named(self, caller: Caller, type: str, project: str, name: str) -> tuple[Object, int]:
        """Return an object of the caller's partition by name. Raise NotFound, or Unmet if the type does not exist."""
        found_type = await Basis(self.facts).object_type(type)
        if found_type is None:
            raise Unmet(f"there is no object type {type!r}")
        of_type = self.places.partitions.tree(caller.partition).objects.by_type(type)
        by_name = of_type.by_project(project or caller.project).by_name if found_type.per_project else of_type.by_name
        address = by_name(name).record
        entry = await self.facts.store.get(address.path)
        if entry is None:
            raise NotFound(f"there is no {type} {name}")
        return await self.get(caller, address.decode(entry.value).uuid)

    async def history(self, caller: Caller, uuid: str) -> list[InventoryEvent]:
        """Return the events of an object, oldest first. Raise NotFound."""
        await self.get(caller, uuid)
        address = self.places.history.object(uuid).record
        entry = await self.facts.store.get(address.path)
        events = address.decode(entry.value).events if entry else ()
        # Past states are shown by the current rules, so a property that was hidden later is hidden there, too.
        return [msgspec.structs.replace(event, object=await self._seen(event.object, caller)) for event in events]

    # ---- searching

    async def filter(self, caller: Caller, expression: filters.Expression) -> filters.Filter:
        """Resolve a filter like `Questions.filter`."""
        return await self._questions.filter(caller, expression)

    async def partition(self, named: str, caller: Caller | None = None) -> str:
        """Resolve a partition like `Questions.partition`."""
        return await self._questions.partition(named, caller)

    async def page(
        self,
        caller: Caller,
        any: Sequence[filters.Filter],
        *,
        limit: int = 0,
        token: str = "",
        sorts: Sequence[filters.Sort] = (),
        count: bool = False,
    ) -> ObjectPage:
        """Return one page of the objects that match any of the filters. Raise Invalid, or MomentExpired for an old
        token."""
        limit = self._limit(limit)
        search_digest = questions.digest(caller, any, sorts)
        at = await questions.PageToken.read(token, search_digest, self._seal) if token else None
        query = await self._questions.query(caller, any)
        moment = await self._search.moment(at.revision if at else None)
        plan = SearchPlan(at.plan, at.values) if at else await self._search.plan(query, moment)
        # The token's plan refers to conditions by number; with other types or partitions, these would be other ones.
        if not len(plan.chosen) == len(plan.values) == len(query.conditions):
            raise MomentExpired("partitions or types have changed since the last page; start again")
        if sorts:
            begun = at or questions.PageToken(moment.revision, plan.chosen, 0, "", 0, search_digest, plan.values)
            return await self._sorted_page(query, plan, moment, sorts, begun, limit)
        part = await self._search.page(query, plan, moment, at.after if at else None, limit)
        reached = (
            questions.PageToken(moment.revision, plan.chosen, *part.reached, 0, search_digest, plan.values)
            if part.reached
            else None
        )
        next_token = await reached.text(self._seal) if reached else ""
        page = ObjectPage(self._shown(query, part.found), next_token, moment.revision, None, bounded=part.bounded)
        if not count:
            return page
        gathered = await self._search.gathered(query, plan, moment)
        return replace(page, count=len(gathered.found), count_is_least=gathered.reached is not None)

    async def several(self, caller: Caller, any: Sequence[filters.Filter], limit: int) -> list[FoundObject]:
        """Return the first `limit` matches."""
        return [one async for one in self.every(caller, any, limit=limit)]

    async def _sorted_page(
        self,
        query: IndexQuery,
        plan: SearchPlan,
        moment: SearchMoment,
        sorts: Sequence[filters.Sort],
        at: questions.PageToken,
        limit: int,
    ) -> ObjectPage:
        """Return a page in an order that has no index. Raise Broad, Invalid."""
        found = self._sorted(query, await self._search.every(query, plan, moment), sorts)
        part, returned = found[at.returned : at.returned + limit], at.returned + limit
        more = (
            questions.PageToken(moment.revision, plan.chosen, 0, "", returned, at.search_digest, plan.values)
            if returned < len(found)
            else None
        )
        return ObjectPage(
            self._shown(query, part), await more.text(self._seal) if more else "", moment.revision, len(found)
        )

    async def every(
        self,
        caller: Caller,
        any: Sequence[filters.Filter],
        *,
        limit: int = 0,
        marker: str = "",
        sorts: Sequence[filters.Sort] = (),
    ) -> AsyncIterator[FoundObject]:
        """Yield all matching objects after the one with the uuid `marker`, at most `limit` if that is set.

        Raise Broad if it takes too long, or has too many matches for an order that no index has.
        """
        query = await self._questions.query(caller, any)
        moment = await self._search.moment(None)
        plan = await self._search.plan(query, moment)
        left = limit or None
        if sorts:
            found = self._sorted(query, await self._search.every(query, plan, moment), sorts)
            for one in self._shown(query, questions.after_marker(found, marker)[:left]):
                yield one
            return
        after = await self._marked(query, plan, marker) if marker else None
        loop, spent_s = asyncio.get_running_loop(), 0.0
        # Only the search itself counts towards the limit; the reader may be slow.
        while spent_s < self._bounds.every_max_s:
            began_s = loop.time()
            part = await self._search.page(query, plan, moment, after, min(left or LIMIT_MAX, LIMIT_MAX))
            spent_s += loop.time() - began_s
            for one in self._shown(query, part.found):
                yield one
            left = left - len(part.found) if left else None
            if part.reached is None or left == 0:
                return
            after = part.reached
        raise Broad(
            f"this took longer than {self._bounds.every_max_s:.0f} s; request pages, with a limit and the marker at "
            "which to continue"
        )

    async def _marked(self, query: IndexQuery, plan: SearchPlan, marker: str) -> Position:
        """Return the position of the object with this uuid. Raise Invalid if it does not match."""
        if names.is_uuid(marker):
            address = self.places.objects.by_uuid(names.normal(marker)).record
            entry = await self.facts.store.get(address.path)
            object = address.decode(entry.value) if entry else None
            if object is not None and query.matches(object):
                position = self._search.position(query, plan, object)
                if position is not None:
                    return position
        raise questions.wrong_marker(marker)

    async def changes(
        self, caller: Caller, any: Sequence[filters.Filter], revision: int, *, quiet_s: float
    ) -> AsyncIterator[tuple[list[tuple[ObjectChange, JournalCommit]], int]]:
        """Yield the changes of matching objects after a revision (0: from now on), and the revision reached.

        An object that starts to match is yielded in its new state, one that stops matching in its old state. Raise
        MomentExpired.
        """
        query = await self._questions.query(caller, any)
        if not revision:
            # The journal must have reached the present before it can report changes since then.
            revision = await self.journal.now()
            await self.journal.wait_for(revision)
        async for commits, reached in self.journal.follow(revision, quiet_s=quiet_s):
            # First, not afterwards: one of these commits may hide a property that a later one changes.
            if questions.changes_facts(commits):
                query = await self._questions.query(caller, any)
            batch: list[tuple[ObjectChange, JournalCommit]] = []
            for commit in commits:
                batch += [(one, commit) async for one in questions.seen(query, commit, self._questions.watch_turns)]
                # A watcher that is far behind gets the changes in portions, cut between commits.
                if len(batch) >= BATCH_MAX:
                    yield batch, commit.revision
                    batch = []
                    await self._search.turns.turn()
            yield batch, reached

    # ---- writing

    async def apply(self, caller: Caller, steps: Sequence[Step], *, validate_only: bool = False) -> Written:
        """Apply steps like `Writer.apply`, and return the parts of the objects that the caller may see."""
        if not steps:
            raise names.Invalid("the request has no steps; give at least one")
        written = await self._writer.apply(caller, steps, validate_only=validate_only)
        objects = [(await self._seen(one, caller), generation) for one, generation in written.objects]
        return Written(tuple(objects), written.revision)

    async def apply_in_parts(self, caller: Caller, steps: Sequence[Step]) -> tuple[list[Outcome], int]:
        """Apply each step independently of the others, in as few commits as possible, several at a time and in no
        order.

        Return the outcome of each step, and the latest revision of the applied steps.
        """
        outcomes: list[Outcome] = [None] * len(steps)
        revisions = [0]
        places = asyncio.Semaphore(PARTS_MAX)

        async def one(numbers: Sequence[int]) -> None:
            async with places:
                await self._search.turns.turn()
                try:
                    written = await self.apply(caller, [steps[number] for number in numbers])
                # A step of this part was refused, so nothing of the part was written.
                except (InventoryError, names.Invalid, TooLarge) as error:
                    if len(numbers) == 1:
                        outcomes[numbers[0]] = error
                        return
                else:
                    revisions.append(written.revision)
                    for number, made in zip(numbers, written.objects, strict=True):
                        outcomes[number] = made
                    return
            # The semaphore is released first: if parts that retry held all places, their retries could never start.
            for number in numbers:
                # Single steps show which of them was refused.
                await one([number])

        await asyncio.gather(*(one(numbers) for numbers in numbered_parts(steps)))
        return outcomes, max(revisions)

    async def remove(self, caller: Caller, uuids: Sequence[str]) -> int:
        """Delete the objects in as few commits as possible and return how many existed. Delete nothing if the caller
        may not see one of them.

        Raise NotFound for an object that the caller may not see, PermissionDenied or Stale.
        """
        found: list[Object] = []
        several = list(dict.fromkeys(uuids))
        for start in range(0, len(several), PORTION_MAX):
            wanted = [self.places.objects.by_uuid(uuid).record for uuid in several[start : start + PORTION_MAX]]
            await self._search.turns.turn()
            read = await self.facts.store.get_many([address.path for address in wanted])
            found += [address.decode(entry.value) for address, entry in zip(wanted, read, strict=True) if entry]
        # All objects are read before any is deleted, so that a list with a wrong uuid deletes nothing.
        if foreign := [one.uuid for one in found if owned(one, caller) is None]:
            raise NotFound(f"there is no object {foreign[0]} that {caller.user} may delete; nothing was deleted")
        removed = 0
        for part in parts(found):
            await self._search.turns.turn()
            removed += await self._remove(caller, part)
        return removed

    async def _remove(self, caller: Caller, uuids: Sequence[str]) -> int:
        """Delete the objects in one commit and return their number, without those that others delete in the
        meantime."""
        for _ in range(len(uuids) + 1):
            try:
                await self._writer.apply(caller, [Remove(uuid) for uuid in uuids])
                return len(uuids)
            except NotFound:
                read = await self.facts.store.get_many([self.places.objects.by_uuid(u).record.path for u in uuids])
                uuids = [uuid for uuid, entry in zip(uuids, read, strict=True) if entry]
                if not uuids:
                    return 0
        raise Stale("these objects change faster than they can be deleted; try again")

    # ---- parts

    async def _seen(self, object: Object, caller: Caller) -> Object:
        definition = await Basis(self.facts).definition(object.partition, object.type, object.kind)
        return visible(object, definition, caller)

    def _limit(self, limit: int) -> int:
        if limit > LIMIT_MAX:
            raise names.Invalid(f"limit is {limit}; a page has at most {LIMIT_MAX} objects")
        return limit or LIMIT_DEFAULT

    def _sorted(
        self, query: IndexQuery, found: Sequence[FoundObject], sorts: Sequence[filters.Sort]
    ) -> list[FoundObject]:
        for sort in sorts:
            if sort.field not in filters.PLAIN_FIELDS and not sort.field.startswith(filters.KEYED_FIELDS):
                known = ", ".join(filters.PLAIN_FIELDS)
                raise names.Invalid(
                    f"cannot sort by {sort.field!r}; possible are {known}, properties.<key> and numbers.<key>"
                )
        by_uuid = {one.object.uuid: one for one in found}
        shown = filters.ordered([query.shown(one.object) for one in found], sorts)
        return [by_uuid[one.uuid] for one in shown]

    def _shown(self, query: IndexQuery, found: Iterable[FoundObject]) -> list[FoundObject]:
        return [FoundObject(query.shown(one.object), one.generation, one.position) for one in found]
