"""Define filters of objects and their meaning. Every index that finds objects must agree with `matches`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec

from headgate.inventory.model import Object
from headgate.inventory.names import Invalid
from headgate.inventory.numbers import number

ORDERS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ZERO = Decimal()


class PropertyFilter(msgspec.Struct, frozen=True):
    """Match a property with this value; with `prefix`, one that begins with it; with an order, a number compared with
    it.

    Raise Invalid for an order without a number, or with `prefix`.
    """

    key: str
    value: str
    prefix: bool = False
    order: str = ""
    """One of ORDERS; empty: the value is compared as a text."""

    def __post_init__(self) -> None:
        if not self.order:
            return
        if self.order not in ORDERS:
            raise Invalid(f"{self.order!r} is no order of numbers; it is {', '.join(ORDERS)}")
        if self.prefix or number(self.value) is None:
            raise Invalid(f"{self.key} {self.order} {self.value!r}: there must be a number, such as 64, -1.5 or 2e6")

    def holds(self, object: Object) -> bool:
        value = object.properties.get(self.key)
        return value is not None and self.allows(value)

    def allows(self, value: str) -> bool:
        """Return whether a property with this value matches."""
        if self.order:
            found, bound = number(value), number(self.value)
            return found is not None and bound is not None and ORDERS[self.order](found, bound)
        return value.startswith(self.value) if self.prefix else value == self.value


class PropertyConditions(msgspec.Struct, frozen=True):
    """Match properties and tags: all of `require`, one of each non-empty `any`, none of `forbid`."""

    require_items: tuple[PropertyFilter, ...] = ()
    require_keys: tuple[str, ...] = ()
    any_items: tuple[PropertyFilter, ...] = ()
    any_keys: tuple[str, ...] = ()
    forbid_items: tuple[PropertyFilter, ...] = ()
    forbid_keys: tuple[str, ...] = ()
    require_tags: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    forbid_tags: tuple[str, ...] = ()

    @property
    def terms(self) -> int:
        """Return the number of conditions."""
        items = len(self.require_items) + len(self.any_items) + len(self.forbid_items)
        keys = len(self.require_keys) + len(self.any_keys) + len(self.forbid_keys)
        return items + keys + len(self.require_tags) + len(self.any_tags) + len(self.forbid_tags)

    def holds(self, object: Object) -> bool:
        keys, tags = object.properties, object.tags
        return (
            all(item.holds(object) for item in self.require_items)
            and all(key in keys for key in self.require_keys)
            and (not self.any_items or any(item.holds(object) for item in self.any_items))
            and (not self.any_keys or any(key in keys for key in self.any_keys))
            and not any(item.holds(object) for item in self.forbid_items)
            and not any(key in keys for key in self.forbid_keys)
            and all(tag in tags for tag in self.require_tags)
            and (not self.any_tags or any(tag in tags for tag in self.any_tags))
            and not any(tag in tags for tag in self.forbid_tags)
        )


class Filter(msgspec.Struct, frozen=True):
    """Match objects for which every given member matches; None means not given.

    Partitions are uuids.  A project is wanted only of objects that have one.
    """

    partitions: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    """Exact codes of types."""
    project: str | None = None
    uuids: tuple[str, ...] | None = None
    uuid_prefix: str | None = None
    name: str | None = None
    name_prefix: bool = False
    wanted: PropertyConditions = PropertyConditions()

    @property
    def terms(self) -> int:
        """Return the approximate number of comparisons that one object needs."""
        return 1 + self.wanted.terms + len(self.uuids or ()) // 10

    def matches(self, object: Object) -> bool:
        return (
            (self.partitions is None or object.partition in self.partitions)
            and (self.types is None or object.type in self.types)
            and (not self.project or not object.project or object.project == self.project)
            and (self.uuids is None or object.uuid in self.uuids)
            and (self.uuid_prefix is None or object.uuid.startswith(self.uuid_prefix))
            and self._names(object)
            and self.wanted.holds(object)
        )

    def _names(self, object: Object) -> bool:
        if self.name is None:
            return True
        return object.name.startswith(self.name) if self.name_prefix else object.name == self.name


class Sort(msgspec.Struct, frozen=True):
    field: str
    descending: bool = False


PLAIN_FIELDS = ("name", "uuid", "type", "project", "partition")


KEYED_FIELDS = ("properties.", "numbers.")
"""Prefixes of a property key in the field of a sort."""


def sort_key(object: Object, field: str) -> tuple[Decimal, str]:
    """Return a key for sorting: `properties.<key>` sorts by a property, `numbers.<key>` by its numeric value.
    Objects without it come first."""
    if field.startswith("numbers."):
        found = number(object.properties.get(field.removeprefix("numbers."), ""))
        return Decimal("-Infinity") if found is None else found, ""
    if field.startswith("properties."):
        return _ZERO, object.properties.get(field.removeprefix("properties."), "")
    return _ZERO, str(getattr(object, field))


def ordered(objects: Sequence[Object], sorts: Sequence[Sort]) -> list[Object]:
    """Sort by the first sort, then the next; equal objects keep their order."""
    found = list(objects)
    # Sorting is stable, so the least important order comes first.
    for sort in reversed(sorts):
        found.sort(key=lambda object: sort_key(object, sort.field), reverse=sort.descending)
    return found


class PostingFilter(msgspec.Struct, frozen=True):
    """Name a list of uuids in the store that contains every matching object. `kind` is item, key or tag."""

    kind: str
    key: str
    value: str = ""
    prefix: bool = False


def postings(wanted: PropertyConditions) -> list[tuple[PostingFilter, ...]]:
    """Return unions of lists such that every match is in each union; it is best to start from the smallest.

    Conditions that no list can answer, such as forbidden tags, are left out.
    """
    found: list[tuple[PostingFilter, ...]] = [(_item(item),) for item in wanted.require_items]
    found += [(PostingFilter("key", key),) for key in wanted.require_keys]
    found += [(PostingFilter("tag", tag),) for tag in wanted.require_tags]
    if wanted.any_items:
        found.append(tuple(_item(item) for item in wanted.any_items))
    if wanted.any_keys:
        found.append(tuple(PostingFilter("key", key) for key in wanted.any_keys))
    if wanted.any_tags:
        found.append(tuple(PostingFilter("tag", tag) for tag in wanted.any_tags))
    return list(dict.fromkeys(found))


def _item(item: PropertyFilter) -> PostingFilter:
    # Texts are not sorted as numbers, so all values of the key are candidates.
    return PostingFilter("key", item.key) if item.order else PostingFilter("item", item.key, item.value, item.prefix)
