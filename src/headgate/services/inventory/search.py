"""Finding objects by the indexes.

Every answer shows one moment: what changed while the store was read is undone with the journal, which is also how
later pages show the moment of the first.  Posting lists are read side by side, in growing pieces, until one has
ended: nothing longer than a small multiple of the shortest is ever read, and what was long the last time comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headgate.inventory.filters import Filter, Posting, postings
from headgate.inventory.journal import undone
from headgate.inventory.model import Object
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.journal import Journal
from headgate.store.store import Store
from headgate.store.types import Entry

FIRST_PIECE_MAX = 1_500
"""Of each posting list; then GROWTH times as many."""
GROWTH = 8
LENGTHS_MAX = 10_000
"""Lists whose length is remembered."""
LISTED_PIECE_MIN, LISTED_PIECE_MAX = 20, 200
"""Names read at a time when all objects of a type are wanted."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object, its generation (0: as it was at an earlier moment), and where it stands in the order."""

    object: Object
    generation: int
    position: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter, in one partition, for one type."""

    partition: str
    type: str
    per_project: bool
    filter: Filter


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions, of which one must hold; `shown` is what the one who asks may see of an object."""

    conditions: Sequence[Condition]
    scopes: dict[str, bool]
    """Type -> are its names unique in a project?"""
    shown: Callable[[Object], Object]

    def matches(self, object: Object) -> bool:
        seen = self.shown(object)
        return any(
            one.partition == object.partition and one.type == object.type and one.filter.matches(seen)
            for one in self.conditions
        )


@dataclass(slots=True)
class Moment:
    """What is shown: the state at `revision`, by undoing what came later."""

    revision: int
    before: dict[str, Object | None] = field(default_factory=dict)


class Search:
    def __init__(self, store: Store, places: InventoryMap, journal: Journal) -> None:
        self._store, self._places, self._journal = store, places, journal
        self._lengths: _Lengths = {}

    async def moment(self, revision: int | None) -> Moment:
        """Of a page's token, or now.  Raises Expired."""
        return Moment(await self._journal.now() if revision is None else revision)

    async def every(self, query: Query, moment: Moment) -> list[Found]:
        """All matches, in order."""
        direct = [one for one in query.conditions if self._direct(one)]
        listed = [one for one in query.conditions if not self._direct(one)]
        found: dict[str, Found] = {}
        lists: _Lists = {}
        for uuids in await asyncio.gather(*(self._uuids(one, lists) for one in direct)):
            found |= await self._fetched(query, [uuid for uuid in uuids if uuid not in found])
        for root in self._roots(listed):
            piece = await self._names(root, "", LISTED_PIECE_MAX)
            while piece:
                found |= await self._fetched(query, [_uuid(entry) for entry in piece])
                piece = await self._names(root, piece[-1].path, LISTED_PIECE_MAX)
        await self._undo(moment)
        kept = [one for one in found.values() if one.object.uuid not in moment.before]
        kept += self._earlier(query, moment)
        return sorted(kept, key=lambda one: one.position)

    async def page(self, query: Query, moment: Moment, after: str, limit: int) -> tuple[list[Found], str]:
        """The next matches in order after a position, and the position to go on from; empty: there is nothing more.

        Fewer than `limit` may come although there are more.
        """
        if all(self._direct(one) for one in query.conditions):
            found = [one for one in await self.every(query, moment) if one.position > after]
            return found[:limit], found[limit - 1].position if len(found) > limit else ""
        found, reached = await self._listed(query, after, limit)
        await self._undo(moment)
        kept = [one for one in found if one.object.uuid not in moment.before]
        earlier = self._earlier(query, moment)
        kept += [one for one in earlier if one.position > after and (not reached or one.position <= reached)]
        kept.sort(key=lambda one: one.position)
        if len(kept) > limit:
            return kept[:limit], kept[limit - 1].position
        return kept, reached

    async def _listed(self, query: Query, after: str, limit: int) -> tuple[list[Found], str]:
        """As `page`, as things are: by the names of every type that may match."""
        found: list[Found] = []
        piece_max = min(LISTED_PIECE_MAX, max(limit, LISTED_PIECE_MIN))
        for root in self._roots(query.conditions):
            if after > f"{root}/\U0010ffff":
                continue
            position = after if after.startswith(f"{root}/") else ""
            while piece := await self._names(root, position, piece_max):
                fetched = await self._fetched(query, [_uuid(entry) for entry in piece])
                found += sorted(fetched.values(), key=lambda one: one.position)
                position = piece[-1].path
                if len(found) >= limit:
                    return found, position
                if len(piece) < piece_max:
                    break
        return found, ""

    def _roots(self, conditions: Iterable[Condition]) -> list[str]:
        """Directories of names that hold every match, in order, none inside another."""
        roots = set()
        for one in conditions:
            project = one.filter.project if one.per_project and one.filter.project else None
            roots.add(entries.names_of(self._places, one.partition, one.type, project))
        apart = [root for root in roots if not any(root.startswith(f"{other}/") for other in roots)]
        return sorted(apart, key=lambda root: f"{root}/")

    async def _names(self, root: str, after: str, piece_max: int) -> Sequence[Entry]:
        return await self._store.scan(root, after=after.removeprefix(f"{root}/"), limit=piece_max)

    def _direct(self, condition: Condition) -> bool:
        """Is there an index that leads to its matches, without going through all objects of the type?"""
        wanted = condition.filter
        return (
            wanted.uuids is not None
            or wanted.uuid_prefix is not None
            or (wanted.name is not None and self._named(condition) is not None)
            or bool(postings(wanted.wanted))
        )

    def _named(self, condition: Condition) -> str | None:
        """The directory in which the name of a match is; None when it may be in several."""
        wanted = condition.filter
        if condition.per_project and not wanted.project:
            return None
        of_type = self._places.partitions.tree(condition.partition).objects.by_type(condition.type)
        names = of_type.by_project(wanted.project or "").by_name if condition.per_project else of_type.by_name
        return names.path

    async def _uuids(self, condition: Condition, lists: _Lists) -> Sequence[str]:
        """Of a superset of the matches; by the index that leads there soonest."""
        wanted = condition.filter
        if wanted.uuids is not None:
            return list(dict.fromkeys(wanted.uuids))
        directory = self._named(condition)
        if wanted.name is not None and directory is not None:
            return await self._by_name(directory, wanted.name, wanted.name_prefix)
        if wanted.uuid_prefix is not None:
            records = self._places.objects.by_uuid.path
            return [entries.last(one.path) for one in await self._whole(records, wanted.uuid_prefix)]
        return await self._intersected(condition, lists)

    async def _by_name(self, directory: str, name: str, prefix: bool) -> list[str]:
        begins = entries.component(name, prefix=prefix)
        if prefix:
            return [_uuid(entry) for entry in await self._whole(directory, begins)]
        entry = await self._store.get(f"{directory}/{begins}")
        return [_uuid(entry)] if entry else []

    async def _whole(self, directory: str, begins: str) -> list[Entry]:
        """All entries that begin so."""
        found: list[Entry] = []
        piece_max = FIRST_PIECE_MAX
        while True:
            after = found[-1].path.removeprefix(f"{directory}/") if found else ""
            piece = await self._store.scan(directory, begins=begins, after=after, limit=piece_max)
            found += piece
            if len(piece) < piece_max:
                return found
            piece_max *= GROWTH

    async def _intersected(self, condition: Condition, lists: _Lists) -> Sequence[str]:
        """Uuids that are in one list of every union, as far as the lists were read when the first union ended."""
        unions = [
            _Union([self._list(condition, posting, lists) for posting in union])
            for union in postings(condition.filter.wanted)
        ]
        piece_max = FIRST_PIECE_MAX
        while True:
            promising = [union for union in unions if not any(one.long(piece_max) for one in union.lists)]
            await asyncio.gather(*(one.read(piece_max) for union in promising or unions for one in union.lists))
            whole = sorted((union for union in unions if union.ended), key=lambda union: len(union.uuids))
            if whole:
                found = set(whole[0].uuids)
                for union in whole[1:]:
                    found &= union.uuids
                return sorted(found)
            piece_max *= GROWTH

    def _list(self, condition: Condition, posting: Posting, lists: _Lists) -> _List:
        """One for all conditions that need it."""
        directory = entries.listed(self._places, condition.partition, condition.type, posting)
        begins = entries.component(posting.value, prefix=True) if posting.prefix else ""
        return lists.setdefault((directory, begins), _List(self._store, directory, begins, self._lengths))

    async def _fetched(self, query: Query, uuids: Sequence[str]) -> dict[str, Found]:
        """Those of them that match, as they are."""
        addresses = [self._places.objects.by_uuid(uuid).record for uuid in uuids]
        read = await self._store.get_many([address.path for address in addresses])
        found = {}
        for address, entry in zip(addresses, read, strict=True):
            if entry is not None and query.matches(object := address.decode(entry.value)):
                found[object.uuid] = Found(object, entry.version, self._position(query, object))
        return found

    async def _undo(self, moment: Moment) -> None:
        """What changed after the moment, until now, is shown as it was before.  Raises Expired."""
        await self._journal.reach(await self._journal.now())
        moment.before = undone(commit.recorded for commit in self._journal.since(moment.revision))

    def _earlier(self, query: Query, moment: Moment) -> list[Found]:
        objects = [one for one in moment.before.values() if one is not None and query.matches(one)]
        return [Found(one, 0, self._position(query, one)) for one in objects]

    def _position(self, query: Query, object: Object) -> str:
        return entries.name(self._places, object, query.scopes[object.type]).path


class _List:
    """One posting list, as far as it was read."""

    def __init__(self, store: Store, directory: str, begins: str, lengths: _Lengths) -> None:
        self._store, self._directory, self._begins = store, directory, begins
        self._lengths = lengths
        self._after = ""
        self._piece_max = 0
        self._reading = asyncio.Lock()
        self.uuids: set[str] = set()
        self.ended = False

    def long(self, piece_max: int) -> bool:
        """Was it longer than this when it was last read?  Then it need not be read before all others were."""
        return not self.ended and self._lengths.get((self._directory, self._begins), 0) >= piece_max

    async def read(self, piece_max: int) -> None:
        """One more piece of this size, if none of it was read yet."""
        async with self._reading:
            if not self.ended and self._piece_max < piece_max:
                self._piece_max = piece_max
                await self._read(piece_max)

    async def _read(self, piece_max: int) -> None:
        piece = await self._store.scan(self._directory, begins=self._begins, after=self._after, limit=piece_max)
        self.uuids.update(entry.path.rpartition("/")[2] for entry in piece)
        self.ended = len(piece) < piece_max
        if piece:
            self._after = piece[-1].path.removeprefix(f"{self._directory}/")
        self._lengths.pop((self._directory, self._begins), None)
        if not self.ended:
            if len(self._lengths) >= LENGTHS_MAX:
                self._lengths.clear()
            self._lengths[self._directory, self._begins] = len(self.uuids)


_Lists = dict[tuple[str, str], _List]
_Lengths = dict[tuple[str, str], int]
"""How far lists were read that did not end there."""


@dataclass(slots=True)
class _Union:
    """Every match is in one of the lists."""

    lists: Sequence[_List]

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.lists)

    @property
    def uuids(self) -> set[str]:
        return set().union(*(one.uuids for one in self.lists))


def _uuid(entry: Entry) -> str:
    return entry.value.decode("ascii", "replace")
