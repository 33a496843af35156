"""Test definitions of the inventory whose check would keep the process busy that serves everybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headgate.inventory.definitions import Schema
from headgate.inventory.names import Invalid
from tests.unit.inventory.objects import an_object

Json = Any
AGAIN: dict[str, Json] = {"unevaluatedProperties": {"type": "string"}}


def chain(levels: int, part: Callable[[Json], Json]) -> Json:
    """Return a schema whose first part refers to the second, that to the third, and so on."""
    parts = {f"p{n}": part({"$ref": f"#/$defs/p{n + 1}"}) for n in range(levels)}
    return {"$ref": "#/$defs/p0", "$defs": {**parts, f"p{levels}": {}}}


def nest(levels: int, part: Callable[[Json], Json]) -> Json:
    """Return a schema with one part in the other."""
    found: Json = {}
    for _ in range(levels):
        found = part(found)
    return found


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (chain(30, lambda ref: {"allOf": [ref, ref]}), "steps"),
        (chain(20, lambda ref: {"oneOf": [ref, ref, {"type": "string"}]}), "steps"),
        (chain(30, lambda ref: {"properties": {"properties": {"allOf": [ref, ref]}}}), "steps"),
        (nest(25, lambda inner: {"allOf": [inner], **AGAIN}), "steps"),
        (nest(25, lambda inner: {"oneOf": [inner, False]}), "steps"),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "leads back"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads back"),
        (chain(3_000, lambda ref: ref), "too deeply"),
        ({"$ref": "#/%24defs/a", "$defs": {"a": {}}}, "names no part"),
        ({"$ref": "#/allOf/9", "allOf": [{}]}, "names no part"),
        ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "is not part"),
        (
            {"$defs": {"a": {"$id": "b", "$ref": "#/$defs/c", "$defs": {"c": {}}}}, "allOf": [{"$ref": "#/$defs/a"}]},
            "part",
        ),
        ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, "dynamicRef"),
    ],
)
def test_a_schema_that_takes_endless_time_to_check_is_refused(document: Json, why: str) -> None:
    """A definition of an operator of one partition is checked in the process that serves all of them."""
    with pytest.raises(Invalid, match=why):
        Schema(json.dumps(document))


def test_a_schema_with_references_is_checked_as_before() -> None:
    """Many uses of one part, keys that look like references, and escaped ones are no reason to refuse it."""
    text = {"$ref": "#/$defs/a~1b"}
    properties = {f"k{n}": text for n in range(500)} | {"$ref": {"type": "string"}}
    document = {
        "$id": "https://example.com/box",
        "properties": {"properties": {"properties": properties}},
        "$defs": {"a/b": {"oneOf": [{"minLength": 2}, {"enum": ["x"]}]}},
    }
    schema = Schema(json.dumps(document))
    schema.check(an_object(properties={"k1": "x", "k2": "long", "$ref": "#"}))
    with pytest.raises(Invalid, match="k3"):
        schema.check(an_object(properties={"k3": "y"}))
