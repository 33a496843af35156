"""Order the matches of a query: index by index, each in its own order.

The cost of a page therefore depends only on its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.inventory.filters import Filter, PostingFilter, postings
from headgate.inventory.model import Object
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.store.types import Entry

Position = tuple[int, str]
"""Position of a match in the order of a search: the number of its scan, and the place within that scan."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Combine one filter, one partition and one type."""

    partition: str
    type: str
    per_project: bool
    filter: Filter

    def matches(self, seen: Object) -> bool:
        """Return whether the object matches, in the form that the caller sees."""
        return self.partition == seen.partition and self.type == seen.type and self.filter.matches(seen)


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """Hold conditions, one of which must match. `shown` returns the part of an object that the caller may see."""

    conditions: Sequence[Condition]
    scopes: dict[str, bool]
    """Type -> whether its names are unique in a project rather than in a partition."""
    shown: Callable[[Object], Object]
    secret: Callable[[Condition], frozenset[str]] = lambda _: frozenset()
    """Returns the keys of properties that some objects hide from the caller; no index of these is used."""

    @property
    def terms(self) -> int:
        """Return the approximate number of comparisons that one object needs."""
        return sum(one.filter.terms for one in self.conditions)

    def matches(self, object: Object) -> bool:
        seen = self.shown(object)
        return any(one.matches(seen) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class IndexScan:
    """Describe entries of one directory of the store, in order; each leads to an object."""

    directory: str
    begins: str = ""
    condition: Condition | None = None
    """The condition that objects of this scan must meet; None: any condition of the query."""
    posting: PostingFilter | None = None
    """The posting list that is scanned; None: names, or the objects themselves."""
    uuids: tuple[str, ...] = ()
    """Uuids of the objects to read instead of a directory."""
    exact: bool = False
    """Whether only the entry whose name equals `begins` is read."""

    @property
    def path(self) -> str:
        """Return the common prefix of the paths of all its entries."""
        return f"{self.directory}/{self.begins}"

    def uuid(self, entry: Entry) -> str:
        """Return the uuid of the object that an entry leads to."""
        # Name entries contain the uuid as their value; markers and records have it as their own name.
        if self.posting is None and entry.value and len(entry.value) == 32:
            return entry.value.decode("ascii", "replace")
        return entry.path.rpartition("/")[2]

    def place(self, places: InventoryMap, object: Object, per_project: bool) -> str | None:
        """Return the place of the object in the scan; None if the scan does not include it."""
        if self.uuids:
            return object.uuid if object.uuid in self.uuids else None
        if self.posting is not None:
            path = entries.marker(places, object, self.posting)
        elif self.directory == places.objects.by_uuid.path:
            path = places.objects.by_uuid(object.uuid).record.path
        else:
            path = entries.name(places, object, per_project).path
        if path is None or not path.startswith(self.path):
            # An object may be in the list's directory but outside the scanned range.
            return None
        within = path[len(self.directory) + 1 :]
        return None if self.exact and within != self.begins else within


def direct(condition: Condition) -> bool:
    """Return whether an index leads to its matches without a scan of all objects of the type."""
    wanted = condition.filter
    return (
        wanted.uuids is not None
        or wanted.uuid_prefix is not None
        or (wanted.name is not None and _one_directory(condition))
    )


def unions(query: IndexQuery, condition: Condition) -> list[tuple[PostingFilter, ...]]:
    """Return unions of posting lists; each union contains all matches."""
    secret = query.secret(condition)
    found = postings(condition.filter.wanted)
    # The order and the cost of a scan by a hidden property would reveal which objects have the value.
    return [union for union in found if not any(one.kind != "tag" and one.key in secret for one in union)]


Values = Sequence[Sequence[str]]
"""For each condition, the possible values of the property that its matches have, in order; empty if unknown."""


def scans(places: InventoryMap, query: IndexQuery, plan: Sequence[int], values: Values) -> list[IndexScan]:
    """Return the scans that yield all matches. `plan` has, for each condition, the number of the union to use; -1:
    none.

    For a condition without a union, all objects of its type are examined, once for all conditions that need this.
    """
    planned = list(zip(query.conditions, plan, values, strict=True))
    full_roots = {_root(places, one) for one, chosen, _ in planned if chosen < 0 and not direct(one)}
    # If one directory contains another one, only the containing one is scanned.
    apart = {root for root in full_roots if not any(root.startswith(f"{other}/") for other in full_roots)}
    narrow: list[IndexScan] = []
    for condition, chosen, among in planned:
        # The scan of the entire directory finds its objects anyway.
        if any(f"{_root(places, condition)}/".startswith(f"{root}/") for root in apart):
            continue
        if direct(condition):
            narrow.append(_direct_scan(places, condition))
            continue
        union = unions(query, condition)[chosen]
        if among:
            union = tuple(PostingFilter("item", union[0].key, value) for value in among)
        narrow += [scan(places, condition, one) for one in union]
    # A page's position depends on the order of scans, so the order must be the same for each page.
    return [*map(IndexScan, sorted(apart, key=lambda root: f"{root}/")), *dict.fromkeys(narrow)]


def ranged(query: IndexQuery, condition: Condition, chosen: int) -> PostingFilter | None:
    """Return the posting list of a range of numbers, if that is the chosen one."""
    if chosen < 0:
        return None
    union = unions(query, condition)[chosen]
    keys = {item.key for item in condition.filter.wanted.require_items if item.order}
    # Only the order of a single list can be replaced by the order of the numbers.
    return union[0] if len(union) == 1 and union[0].kind == "key" and union[0].key in keys else None


def in_range(condition: Condition, key: str, value: str) -> bool:
    """Return whether a value is in all ranges that the condition requires for a property."""
    items = [item for item in condition.filter.wanted.require_items if item.order and item.key == key]
    return all(item.allows(value) for item in items)


def _root(places: InventoryMap, condition: Condition) -> str:
    """Return the directory that contains the names of all matches."""
    project = condition.filter.project if condition.per_project and condition.filter.project else None
    return entries.names_of(places, condition.partition, condition.type, project)


def scan(places: InventoryMap, condition: Condition, posting: PostingFilter) -> IndexScan:
    """Return the scan of one posting list."""
    directory = entries.listed(places, condition.partition, condition.type, posting)
    begins = entries.component(posting.value, prefix=True) if posting.prefix else ""
    return IndexScan(directory, begins, condition, posting)


def _direct_scan(places: InventoryMap, condition: Condition) -> IndexScan:
    wanted = condition.filter
    if wanted.uuids is not None:
        # An empty list matches nothing, but would turn this into a directory scan; hence a value that is not a uuid.
        return IndexScan("", condition=condition, uuids=tuple(sorted(set(wanted.uuids))) or ("",))
    if wanted.name is not None and _one_directory(condition):
        project = (wanted.project or "") if condition.per_project else None
        directory = entries.names_of(places, condition.partition, condition.type, project)
        if project is None:
            directory = places.partitions.tree(condition.partition).objects.by_type(condition.type).by_name.path
        begins = entries.component(wanted.name, prefix=wanted.name_prefix)
        return IndexScan(directory, begins, condition, exact=not wanted.name_prefix)
    return IndexScan(places.objects.by_uuid.path, wanted.uuid_prefix or "", condition)


def _one_directory(condition: Condition) -> bool:
    """Return whether one directory contains all names that may match."""
    return not condition.per_project or bool(condition.filter.project)
