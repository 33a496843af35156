"""Filters as people write them: `type=runm.machine zone=eu* gpu !reserved tag:fast`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import msgspec

from headgate.inventory.filters import ORDERS, PropertyConditions, PropertyFilter
from headgate.inventory.names import Invalid

_SIGN = re.compile("[<>]=?|=")
FIELDS = ("partition", "type", "project", "uuid", "name")


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
        if equals and field in FIELDS:
            _field(found, field, value, text)
        else:
            _attribute(wanted, word, text)
    held = PropertyConditions(**{name: tuple(values) for name, values in wanted.items()})  # type: ignore[arg-type]  # by name
    return Expression(wanted=held, **found)  # type: ignore[arg-type]  # by name


def _field(found: dict[str, object], field: str, value: str, text: str) -> None:
    names = {"partition": "partitions", "type": "types", "uuid": "uuids"}
    if names.get(field, field) in found:
        raise Invalid(f"filter {text!r}: {field} is said twice; give several values with commas, or two filters")
    if not value:
        raise Invalid(f"filter {text!r}: {field} has no value")
    if field == "project":
        found |= {"every_project": True} if value == "*" else {"project": value}
    elif field == "name":
        found |= {"name": value.removesuffix("*"), "name_prefix": value.endswith("*")}
    elif field == "uuid" and value.endswith("*"):
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
