"""Define filters of objects and their meaning, and parse them as people write them."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec

from headgate.inventory.model import Object
from headgate.inventory.names import Invalid, number

ORDERS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EXPRESSION_FIELDS = ("partition", "type", "project", "uuid", "name")
"""Fields that an expression may name; every other name is a property."""
PLAIN_FIELDS = ("name", "uuid", "type", "project", "partition")
"""Fields by which objects can be sorted, besides properties."""
KEYED_FIELDS = ("properties.", "numbers.")
"""Prefixes of a property key in the field of a sort."""
_SIGN = re.compile("[<>]=?|=")
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
    """One of ORDERS; empty: the value is compared as a string."""

    def __post_init__(self) -> None:
        if not self.order:
            return
        if self.order not in ORDERS:
            raise Invalid(f"{self.order!r} is not a comparison of numbers; use one of {', '.join(ORDERS)}")
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

    Partitions are uuids.  A project is compared only for objects that have one.
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
        # Finding a uuid in a tuple is cheap compared with a condition.
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


def sort_key(object: Object, field: str) -> tuple[Decimal, str]:
    """Return a key for sorting: `properties.<key>` sorts by a property, `numbers.<key>` by its numeric value.
    Objects without it come first."""
    if field.startswith("numbers."):
        found = number(object.properties.get(field.removeprefix("numbers."), ""))
        # Properties are texts, of which some may not be numbers.
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


class Expression(msgspec.Struct, frozen=True):
    """Represent one expression. Names of partitions are not resolved yet; types may end in `*`."""

    partitions: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    project: str = ""
    every_project: bool = False
    uuids: tuple[str, ...] = ()
    uuid_prefix: str = ""
    name: str = ""
    name_prefix: bool = False
    wanted: PropertyConditions = PropertyConditions()


def parse(text: str) -> Expression:
    """Parse terms separated by blanks, all of which must match; quote values that contain blanks. Raise Invalid.

    `field=value` for partition, type, project, uuid and name (several values with commas for partition, type, uuid);
    `key=value` for any other property, `property:key=value` for one named like a field; `key` alone: has the property;
    `tag:t`: has the tag.  `!` before a property or tag: must not.  `*` at the end of a value: begins so.
    `key<8`, `key<=8`, `key>8`, `key>=8`: the property is a number, and less than 8, ….
    `any:key=value`, `any:key`, `any:tag:t`: at least one of the terms of that kind.  `project=*`: of every project.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Invalid(f"filter {text!r}: {error}; close the quotes") from error
    found: dict[str, object] = {}
    wanted: dict[str, list[object]] = {}
    for word in words:
        field, equals, value = word.partition("=")
        if equals and field in EXPRESSION_FIELDS:
            _field(found, field, value, text)
        else:
            _attribute(wanted, word, text)
    held = PropertyConditions(**{name: tuple(values) for name, values in wanted.items()})  # type: ignore[arg-type]  # by name
    return Expression(wanted=held, **found)  # type: ignore[arg-type]  # by name


def _field(found: dict[str, object], field: str, value: str, text: str) -> None:
    names = {"partition": "partitions", "type": "types", "uuid": "uuids"}
    # No object has two different values of one field, so this would match nothing.
    if names.get(field, field) in found:
        raise Invalid(
            f"filter {text!r}: {field} is given twice; separate several values with commas, or use two filters"
        )
    if not value:
        raise Invalid(f"filter {text!r}: {field} has no value")
    if field == "project":
        found |= {"every_project": True} if value == "*" else {"project": value}
    elif field == "name":
        found |= {"name": value.removesuffix("*"), "name_prefix": value.endswith("*")}
    elif field == "uuid" and value.endswith("*"):
        # Stored uuids have neither hyphens nor capitals.
        found["uuid_prefix"] = value.removesuffix("*").lower().replace("-", "")
    else:
        found[names[field]] = tuple(value.split(","))


def _split(thing: str) -> tuple[str, str, str]:
    """Return key, sign and value, split at the first sign; without a sign, only a key."""
    found = _SIGN.search(thing)
    return (thing[: found.start()], found[0], thing[found.end() :]) if found else (thing, "", "")


def _attribute(wanted: dict[str, list[object]], word: str, text: str) -> None:
    must, rest = "require", word
    if rest.startswith("!"):
        must, rest = "forbid", rest[1:]
    elif rest.startswith("any:"):
        must, rest = "any", rest.removeprefix("any:")
    add: Callable[[str, object], None] = lambda kind, one: wanted.setdefault(f"{must}_{kind}", []).append(one)  # noqa: E731
    if rest.startswith("tag:"):
        kind, thing = "tags", rest.removeprefix("tag:")
    else:
        kind, thing = "items", rest.removeprefix("property:")
    key, order, value = (thing, "", "") if kind == "tags" else _split(thing)
    if not key:
        raise Invalid(f"filter {text!r}: {word!r} names no property or tag")
    if kind == "tags":
        add("tags", thing)
    elif order in ORDERS:
        try:
            add("items", PropertyFilter(key, value, order=order))
        except Invalid as error:
            raise Invalid(f"filter {text!r}: {error}") from error
    elif order:
        add("items", PropertyFilter(key, value.removesuffix("*"), value.endswith("*")))
    else:
        add("keys", key)
