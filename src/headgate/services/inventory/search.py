"""Find objects by the indexes, a portion at a time.

Every answer shows one moment: changes made while the store is read are undone with the help of the journal. Later pages
show the moment of the first page in the same way. A page reads one index after the other (`scans`), each in its own
order, starting where the previous page ended: its cost depends on its size, not on the number of matches. All other
reads are limited, and a page that ends early because of a limit reports that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.inventory import names
from headgate.inventory.filters import PostingFilter
from headgate.inventory.model import Object
from headgate.map.inventory.places import InventoryMap
from headgate.map.tree import unescape
from headgate.services.inventory import index
from headgate.services.inventory.errors import Broad
from headgate.services.inventory.journal import Journal
from headgate.store.store import Store
from headgate.store.types import Entry

PIECE_MIN, PIECE_MAX = 20, 100
"""Least and greatest number of index entries read at a time."""
COMPARED_MAX = 20_000
"""Comparisons made before other tasks get a turn; a question of many terms therefore reads fewer entries at a time."""
PORTION_MAX = 2 * PIECE_MAX
"""Entries read before other tasks get a turn: those of an index, and the objects that they lead to."""
PROBED_MAX = 100
"""Entries of a posting list that are read in order to find the shortest list."""
VALUES_MAX = 64
"""Limit on the different values of a property that are checked against a range; beyond it, the order is by number."""
PROBES_MAX = 16
"""Limit on the posting lists whose lengths are compared."""
MOMENTS_MAX = 8
"""Limit on the remembered past moments, each with the changes since."""


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """Bound what one answer may cost."""

    examined_max: int = 5_000
    """Limit on the index entries that one page examines; at the limit the page ends, with fewer matches or none."""
    gathered_max: int = 20_000
    """The same limit for searches that need all matches together: orders without an index, and counts."""
    page_max_s: float = 5.0
    """Time limit of one page."""
    every_max_s: float = 60.0
    """Time limit of a search whose answer is a single stream, without the time that the client takes to read."""


DEFAULTS = SearchBounds()


@dataclass(frozen=True, slots=True)
class FoundObject:
    """Hold an object, its generation (0: as it was at an earlier moment) and its position in the order."""

    object: Object
    generation: int
    position: index.Position


@dataclass(slots=True)
class SearchMoment:
    """Describe the state to show: that at `revision`, with later changes up to `reached` undone."""

    revision: int
    reached: int = 0
    before: dict[str, Object | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Record for each condition which union of its posting lists leads to its matches; -1 means none does."""

    chosen: tuple[int, ...]
    values: tuple[tuple[str, ...], ...]
    """For each condition, the numbers within its range, in order, if they are few."""
    read: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    """First entries of the lists that were compared, by directory and prefix."""


@dataclass(frozen=True, slots=True)
class SearchPart:
    """Hold matches in order, where to continue if there may be more, and whether a bound ended the part."""

    found: list[FoundObject]
    reached: index.Position | None
    bounded: bool = False


@dataclass(slots=True)
class _Budget:
    """Limit what the search may still read."""

    entries: int
    until_s: float

    @property
    def spent(self) -> bool:
        return self.entries <= 0 or asyncio.get_running_loop().time() > self.until_s


class ReadTurns:
    """Let only one reader run at a time, and let the loop serve other tasks between two of its steps."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    async def turn(self) -> None:
        async with self._line:
            await asyncio.sleep(0)


class Search:
    """Search objects through the indexes, as of one moment of the journal."""

    def __init__(self, store: Store, places: InventoryMap, journal: Journal, bounds: SearchBounds) -> None:
        self._store, self._places, self._journal, self._bounds = store, places, journal, bounds
        self.turns = ReadTurns()
        self._moments: dict[int, SearchMoment] = {}

    async def moment(self, revision: int | None) -> SearchMoment:
        """Return the moment of a page's token, or the current one. Raise MomentExpired."""
        revision = await self._journal.now() if revision is None else revision
        moment = self._moments.pop(revision, None) or SearchMoment(revision, revision)
        while len(self._moments) >= MOMENTS_MAX:
            # The oldest moment is forgotten. A later page of its search reads the journal again, which only costs time.
            del self._moments[next(iter(self._moments))]
        self._moments[revision] = moment
        return moment

    async def plan(self, query: index.IndexQuery, moment: SearchMoment) -> SearchPlan:
        """Return the indexes by which matches are found; among posting lists, the shortest."""
        read: dict[str, Sequence[Entry]] = {}
        chosen = tuple([await self._chosen(query, one, read) for one in query.conditions])
        ranges = [index.ranged(query, one, number) for one, number in zip(query.conditions, chosen, strict=True)]
        values: list[tuple[str, ...]] = []
        for condition, posting in zip(query.conditions, ranges, strict=True):
            values.append(await self._values(condition, posting) if posting else ())
        if any(values) and await self._journal.now() != moment.revision:
            values = [()] * len(values)  # a value that existed at that moment may be gone
        return SearchPlan(chosen, tuple(values), read)

    async def _values(self, condition: index.Condition, posting: PostingFilter) -> tuple[str, ...]:
        """Return the numbers within a range that objects have, in order; empty if there are too many."""
        directory = index.scan(self._places, condition, posting).directory
        found: list[str] = []
        after, every = "", 0
        while every < VALUES_MAX:
            await self.turns.turn()
            read = await self._store.scan(directory, after=after, limit=1)
            if not read:
                return tuple(sorted(found, key=lambda value: (names.number(value) or 0, value)))
            component = read[0].path[len(directory) + 1 :].partition("/")[0]
            value = unescape(component)
            found += [value] if index.in_range(condition, posting.key, value) else []
            # One read per value, whatever the number of objects that have it.
            after, every = f"{component}/~", every + 1  # after the last object with this value
        return ()

    async def page(
        self, query: index.IndexQuery, plan: SearchPlan, moment: SearchMoment, after: index.Position | None, limit: int
    ) -> SearchPart:
        """Return the next matches in order."""
        return await self._part(query, plan, moment, after, limit, self._bounds.examined_max)

    async def gathered(self, query: index.IndexQuery, plan: SearchPlan, moment: SearchMoment) -> SearchPart:
        """Return all matches or, if `bounded`, those found before a limit was reached."""
        return await self._part(query, plan, moment, None, self._bounds.gathered_max, self._bounds.gathered_max)

    async def every(self, query: index.IndexQuery, plan: SearchPlan, moment: SearchMoment) -> list[FoundObject]:
        """Return all matches.  Raise Broad."""
        part = await self.gathered(query, plan, moment)
        if part.reached is not None:
            raise Broad(
                f"more than {self._bounds.gathered_max} objects, or for longer than {self._bounds.page_max_s:.0f} s, "
                "would have to be read before the first one in this order is known; restrict the filter, or omit "
                "the order"
            )
        return part.found

    def position(self, query: index.IndexQuery, plan: SearchPlan, object: Object) -> index.Position | None:
        """Return the position of the object in the order; None if the order does not contain it."""
        return self._first(query, index.scans(self._places, query, plan.chosen, plan.values), object)

    # ---- going through scans

    async def _part(
        self,
        query: index.IndexQuery,
        plan: SearchPlan,
        moment: SearchMoment,
        after: index.Position | None,
        limit: int,
        most: int,
    ) -> SearchPart:
        going = index.scans(self._places, query, plan.chosen, plan.values)
        budget = _Budget(most, asyncio.get_running_loop().time() + self._bounds.page_max_s)
        found: list[FoundObject] = []
        reached: index.Position | None = None
        number, within = after or (0, "")
        while number < len(going):
            ended, within = await self._through(query, going, (number, within), limit, found, budget, plan)
            if ended:
                number, within = number + 1, ""
            # Even a page at its limit ends only if there may be more matches.
            if number < len(going) and (len(found) >= limit or budget.spent):
                reached = (number, within)
                break
        await self._undo(moment)
        # Objects that have changed since the moment are shown in their state at that moment.
        matches = [one for one in found if one.object.uuid not in moment.before]
        for one in await self._earlier(query, going, moment):
            # Only those between the ends of this page, because the others are on earlier or later pages.
            if (after is None or one.position > after) and (reached is None or one.position <= reached):
                matches.append(one)
        matches.sort(key=lambda one: one.position)
        if len(matches) > limit:
            return SearchPart(matches[:limit], matches[limit - 1].position)
        return SearchPart(matches, reached, reached is not None and len(matches) < limit)

    async def _through(
        self,
        query: index.IndexQuery,
        going: Sequence[index.IndexScan],
        after: index.Position,
        limit: int,
        found: list[FoundObject],
        budget: _Budget,
        plan: SearchPlan,
    ) -> tuple[bool, str]:
        """Add the matches of one scan from a position on; return whether the scan is complete, and how far it was
        read."""
        number, within = after
        scan = going[number]
        # The more comparisons an entry costs, the fewer are read before other tasks get a turn.
        weighed = COMPARED_MAX // (query.terms + len(going))
        begun, looked = len(found), 0
        while True:
            await self.turns.turn()
            # The share of matches so far predicts how many entries are needed for the rest of the page.
            enough = (limit - len(found)) * (1 + looked) // (1 + len(found) - begun)
            piece_max = max(1, min(PIECE_MAX, max(PIECE_MIN, enough), weighed))
            piece = await self._piece(scan, within, piece_max, plan)
            for place, object, generation in await self._objects(scan, piece):
                if query.matches(object) and self._claimed(query, going, number, object):
                    found.append(FoundObject(object, generation, (number, place)))
            # An empty read also counts, so that a search over thousands of empty lists ends.
            budget.entries -= max(1, len(piece))
            looked += len(piece)
            if piece:
                within = piece[-1][0]
            if len(piece) < piece_max or scan.exact:
                return True, within
            if len(found) >= limit or budget.spent:
                return False, within

    async def _piece(
        self, scan: index.IndexScan, after: str, piece_max: int, plan: SearchPlan
    ) -> Sequence[tuple[str, str, Entry | None]]:
        """Return the next entries: the position of each, the uuid of its object, and the record if it was read at the
        same time."""
        if scan.uuids:
            return [(uuid, uuid, None) for uuid in scan.uuids if uuid > after][:piece_max]
        start = len(scan.directory) + 1
        if scan.exact:
            entry = None if after else await self._store.get(f"{scan.directory}/{scan.begins}")
            return [(scan.begins, scan.uuid(entry), None)] if entry else []
        # The plan read the beginning of this list to find its length.
        begun = None if after else plan.read.get(scan.path)
        read = (
            begun[:piece_max]
            if begun is not None
            else await self._store.scan(scan.directory, begins=scan.begins, after=after, limit=piece_max)
        )
        records = scan.directory == self._places.objects.by_uuid.path
        return [(one.path[start:], scan.uuid(one), one if records else None) for one in read]

    async def _objects(
        self, scan: index.IndexScan, piece: Sequence[tuple[str, str, Entry | None]]
    ) -> list[tuple[str, Object, int]]:
        """Return the existing objects of these entries, each with its position and generation."""
        addresses = [self._places.objects.by_uuid(uuid or "0").record for _, uuid, _ in piece]
        if piece and piece[0][2] is not None:
            entries: Sequence[Entry | None] = [one[2] for one in piece]
        else:
            entries = await self._store.get_many([address.path for address in addresses])
        return [
            (place, address.decode(entry.value), entry.version)
            for (place, _, _), address, entry in zip(piece, addresses, entries, strict=True)
            if entry is not None
        ]

    def _claimed(self, query: index.IndexQuery, going: Sequence[index.IndexScan], number: int, object: Object) -> bool:
        """Return whether this scan yields a match: it meets the scan's condition, and no earlier scan yields it."""
        scan = going[number]
        if len(going) == 1 and (scan.condition is None or len(query.conditions) == 1):
            return True
        if scan.condition is not None and not scan.condition.matches(query.shown(object)):
            return False
        # Several scans may yield an object; it belongs to the first one only, or pages would show it twice.
        first = self._first(query, going[:number], object) if number else None
        return first is None

    def _first(
        self, query: index.IndexQuery, going: Sequence[index.IndexScan], object: Object
    ) -> index.Position | None:
        """Return the position of the object in the first scan that yields it."""
        seen = query.shown(object)
        for number, one in enumerate(going):
            if one.condition is None or one.condition.matches(seen):
                place = one.place(self._places, object, query.scopes[object.type])
                if place is not None:
                    return number, place
        return None

    # ---- which list is the shortest

    async def _chosen(
        self, query: index.IndexQuery, condition: index.Condition, read: dict[str, Sequence[Entry]]
    ) -> int:
        if index.direct(condition):
            return -1
        # Each union contains all matches, so the shortest is the cheapest.
        choice = index.unions(query, condition)
        if len(choice) < 2:
            return len(choice) - 1
        sizes: list[float] = []
        probes = PROBES_MAX
        # For more unions, finding the shortest would cost more than it saves.
        for union in choice:
            probes -= len(union)
            sizes.append(await self._size(condition, union, read) if probes >= 0 else float("inf"))
        return sizes.index(min(sizes))

    async def _size(
        self, condition: index.Condition, union: Sequence[PostingFilter], read: dict[str, Sequence[Entry]]
    ) -> float:
        """Return the approximate number of entries of the lists; that of a long list is estimated from the density of
        uuids when it starts."""
        total = 0.0
        for posting in union:
            one = index.scan(self._places, condition, posting)
            if one.path not in read:
                await self.turns.turn()
                read[one.path] = await self._store.scan(one.directory, begins=one.begins, limit=PROBED_MAX)
            total += _estimated(posting, [entry.path[-32:] for entry in read[one.path]])
        return total

    # ---- one moment

    async def _undo(self, moment: SearchMoment) -> None:
        """Undo, for the reader, all changes after the moment. Raise MomentExpired."""
        # The reads may have returned newer states than the journal has shown so far.
        await self._journal.wait_for(await self._journal.now())
        self._journal.since(moment.revision)  # is all of it still kept?
        undone = 0
        for commit in self._journal.since(moment.reached):
            for change in commit.recorded.changes:
                moment.before.setdefault(change.object.uuid, change.old)
                undone += 1
            moment.reached = max(moment.reached, commit.revision)
            if undone >= PIECE_MAX:
                undone = 0
                await self.turns.turn()

    async def _earlier(
        self, query: index.IndexQuery, going: Sequence[index.IndexScan], moment: SearchMoment
    ) -> list[FoundObject]:
        """Return the objects that matched at the moment and have changed since, in their state at that moment."""
        found = []
        for number, object in enumerate(list(moment.before.values()), 1):
            if object is not None and query.matches(object):
                place = self._first(query, going, object)
                if place is not None:
                    found.append(FoundObject(object, 0, place))
            if number % PIECE_MAX == 0:
                await self.turns.turn()
        return found


def _estimated(posting: PostingFilter, uuids: Sequence[str]) -> float:
    """Estimate the number of entries of a list from its first ones, by the density of their uuids."""
    if len(uuids) < PROBED_MAX:
        return len(uuids)
    # These lists are in the order of values, not of uuids, so their first entries show no density.
    if posting.kind == "key" or posting.prefix:
        return 1e12
    try:
        # Uuids are spread evenly: if the first 100 cover a hundredth of all uuids, the list has some 10,000.
        first, last = int(uuids[0], 16), int(uuids[-1], 16)
    except ValueError:  # written by a program that accepts any string as a uuid
        return 1e12
    return len(uuids) * float(2**128) / max(1, last - first) if last > first else 1e12
