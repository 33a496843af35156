"""Generate objects and filters: small worlds in which names, values and filters often match."""

from __future__ import annotations

from hypothesis import strategies as st

from headgate.inventory.filters import ORDERS, Filter, PropertyConditions, PropertyFilter
from headgate.inventory.model import Object

PARTITIONS = ("a" * 32, "b" * 32)
TYPES = {"runm.provider": False, "runm.image": True}
PROJECTS = ("blue", "red")
KEYS = ("arch", "zone/x", "arch.level", "..")
VALUES = ("", "x", "xy", "x/y", ".", "..", "é", "a b%2F", "7", "10", "-1.5", "1e1")
TAGS = ("fast", "fast/er", "~")
NAMES = ("n", "na", "na/b", ".", "é", "N")

properties = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
tags = st.lists(st.sampled_from(TAGS), unique=True, max_size=2).map(tuple)
texts = st.builds(PropertyFilter, st.sampled_from(KEYS), st.sampled_from(VALUES), st.booleans())
numbers = st.sampled_from(("7", "9.5", "10", "-2"))
items = texts | st.builds(
    PropertyFilter, st.sampled_from(KEYS), numbers, st.just(False), st.sampled_from(sorted(ORDERS))
)
few = st.integers(0, 1) | st.just(0)


def some(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    """Draw an empty value most of the time."""
    return st.just(()) | st.lists(values, min_size=1, max_size=2).map(tuple)


wanted = st.builds(
    PropertyConditions,
    require_items=some(items),
    require_keys=some(st.sampled_from(KEYS)),
    any_items=some(items),
    any_keys=some(st.sampled_from(KEYS)),
    forbid_items=some(items),
    forbid_keys=some(st.sampled_from(KEYS)),
    require_tags=some(st.sampled_from(TAGS)),
    any_tags=some(st.sampled_from(TAGS)),
    forbid_tags=some(st.sampled_from(TAGS)),
)


def filters(uuids: st.SearchStrategy[str]) -> st.SearchStrategy[Filter]:
    return st.builds(
        Filter,
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2, unique=True).map(tuple),
        types=st.none() | st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=2, unique=True).map(tuple),
        project=st.none() | st.sampled_from(PROJECTS),
        uuids=st.none() | st.none() | st.lists(uuids, max_size=3).map(tuple),
        uuid_prefix=st.none() | st.none() | uuids.map(lambda uuid: uuid[:1]),
        name=st.none() | st.sampled_from(NAMES),
        name_prefix=st.booleans(),
        wanted=wanted,
    )


def an_object(**changed: object) -> Object:
    given = {
        "partition": PARTITIONS[0], "type": "runm.image", "project": "blue", "uuid": "1" * 32, "name": "n",
        "properties": {"arch": "x"}, "tags": ("fast",),
    }  # fmt: skip
    return Object(**{**given, **changed})  # type: ignore[arg-type]  # by name
