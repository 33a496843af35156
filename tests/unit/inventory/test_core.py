"""Test names, filters, permissions, definitions and expressions with examples."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from headgate.inventory import definitions, names
from headgate.inventory.definitions import Nonconforming, Schema
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, Sort, ordered, parse
from headgate.inventory.journal import (
    HISTORY_MAX,
    InventoryEvent,
    JournalKind,
    ObjectChange,
    ObjectHistory,
    Recorded,
    undone,
)
from headgate.inventory.model import READ, WRITE, Caller, Definition, Object, Permission
from headgate.inventory.names import Invalid
from headgate.inventory.permissions import may_read, unwritable, visible
from headgate.inventory.wire import inventory_pb2, runm_pb2
from tests.unit.inventory.objects import an_object

WIRE = Path(names.__file__).parent / "wire"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("54B8D8D7-E24C-4379-9BBF-70C16E921E52", "54b8d8d7e24c43799bbf70c16e921e52"),
        ("54b8d8d7e24c43799bbf70c16e921e52", "54b8d8d7e24c43799bbf70c16e921e52"),
    ],
)
def test_a_uuid_has_one_form(text: str, stored: str) -> None:
    assert names.uuid(text) == stored


@pytest.mark.parametrize("text", ["", "x", "a" * 36, "g" * 32, "a" * 31 + "/", "a" * 33])
def test_an_invalid_uuid_is_reported(text: str) -> None:
    with pytest.raises(Invalid, match="is not a uuid"):
        names.uuid(text)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": "n" * 1_000_000}, "1000000 bytes; at most 255"),
        ({"name": "a\x00b"}, "contains NUL"),
        ({"name": "\ud800"}, "not valid Unicode"),
        ({"properties": {f"k{n}": "" for n in range(5_000)}}, "5001 properties and tags; an object has at most 64"),
        ({"properties": {"": "v"}}, "property key is empty"),
        ({"properties": {"k": "v" * 2_000}}, "value of property k has 2000 bytes; at most 1024"),
        ({"tags": ("t", "t")}, "a tag twice"),
        ({"properties": {f"k{n}": "v" * 1_000 for n in range(63)}}, "bytes in all; at most 60000"),
    ],
)
def test_an_object_that_exceeds_a_limit_is_refused_with_the_figure(changed: dict[str, object], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        names.check(an_object(**changed))


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (PropertyConditions(), True),
        (PropertyConditions(require_items=(PropertyFilter("arch", "x86"),)), True),
        (PropertyConditions(require_items=(PropertyFilter("arch", "x8"),)), False),
        (PropertyConditions(require_items=(PropertyFilter("arch", "x8", True),)), True),
        (PropertyConditions(require_keys=("arch", "arch")), True),
        (PropertyConditions(any_keys=("other", "arch")), True),
        (PropertyConditions(any_items=(PropertyFilter("arch", "arm"),)), False),
        (PropertyConditions(forbid_keys=("arch",)), False),
        (PropertyConditions(forbid_items=(PropertyFilter("arch", "arm"),)), True),
        (PropertyConditions(require_tags=("fast",), forbid_tags=("slow",)), True),
        (PropertyConditions(any_tags=("slow",)), False),
        (PropertyConditions(require_items=(PropertyFilter("memory", "64", order=">="),)), True),
        (PropertyConditions(require_items=(PropertyFilter("memory", "64", order=">"),)), False),
        (
            PropertyConditions(
                require_items=(PropertyFilter("memory", "9", order=">"), PropertyFilter("memory", "6.4e1", order="<="))
            ),
            True,
        ),
        (PropertyConditions(require_items=(PropertyFilter("memory", "100", order="<"),)), True),
        (PropertyConditions(forbid_items=(PropertyFilter("memory", "-1", order=">"),)), False),
        (PropertyConditions(any_items=(PropertyFilter("arch", "0", order=">"),)), False),
        (
            PropertyConditions(
                any_items=(PropertyFilter("arch", "0", order="<="), PropertyFilter("absent", "0", order="<="))
            ),
            False,
        ),
        (
            PropertyConditions(
                require_items=(PropertyFilter("exact", "0.1", order="<="), PropertyFilter("exact", "0.1", order=">="))
            ),
            True,
        ),
    ],
)
def test_a_filter_matches_exactly_its_conditions(wanted: PropertyConditions, matches: bool) -> None:
    properties = {"arch": "x86", "memory": "64", "exact": "0.10"}
    assert Filter(wanted=wanted).matches(an_object(properties=properties)) is matches


@pytest.mark.parametrize("text", ["", "64Gi", "0x40", "1_000", "٣", "NaN", "Infinity", "1e9999", "1.", " 1", "9" * 41])
def test_a_filter_refuses_an_invalid_number_and_never_matches_one(text: str) -> None:
    with pytest.raises(Invalid, match="there must be a number"):
        PropertyFilter("memory", text, order=">=")
    assert not PropertyFilter("memory", "-9e999", order=">=").holds(an_object(properties={"memory": text}))


def test_numbers_are_sorted_by_value_and_other_values_come_first() -> None:
    values = {"a": "100", "b": "20", "c": "-3", "d": "many", "e": "2e1"}
    objects = [an_object(name=name, properties={"size": value}) for name, value in values.items()]
    by_number = ordered(objects, [Sort("numbers.size"), Sort("name", descending=True)])
    assert [one.name for one in by_number] == ["d", "c", "e", "b", "a"]
    assert [one.name for one in ordered(objects, [Sort("properties.size")])] == ["c", "a", "b", "e", "d"]


def test_an_object_without_properties_has_no_forbidden_key() -> None:
    assert Filter(wanted=PropertyConditions(forbid_keys=("x",))).matches(an_object(properties={}, tags=()))


def test_a_project_filter_also_matches_objects_without_a_project() -> None:
    assert Filter(project="red").matches(an_object(project=""))
    assert not Filter(project="red").matches(an_object(project="blue"))


ALICE, ROOT = Caller("alice", "blue", ""), Caller("root", "ops", "", frozenset({"admin"}))
SECRET = Definition("d", permissions={"key": (Permission(), Permission(role="admin", mask=READ | WRITE))})


def test_the_most_specific_rule_counts() -> None:
    assert not may_read(SECRET, "key", ALICE) and may_read(SECRET, "key", ROOT)
    assert may_read(SECRET, "other", ALICE)
    both = Definition("d", permissions={"k": (Permission("blue", "", READ), Permission("", "admin", 0))})
    assert may_read(both, "k", Caller("a", "blue", "", frozenset({"admin"})))


def test_hidden_properties_are_neither_seen_nor_found() -> None:
    object = an_object(properties={"key": "s3cret", "arch": "x"})
    assert visible(object, SECRET, ALICE).properties == {"arch": "x"}
    probe = Filter(wanted=PropertyConditions(require_items=(PropertyFilter("key", "s", True),)))
    assert not probe.matches(visible(object, SECRET, ALICE)) and probe.matches(visible(object, SECRET, ROOT))


def test_only_changed_properties_must_be_writable() -> None:
    assert unwritable({"key": "1"}, {"key": "1", "n": ""}, SECRET, ALICE) == []
    assert unwritable({"key": "1"}, {"n": ""}, SECRET, ALICE) == ["key"]
    assert unwritable({"key": "1"}, {}, SECRET, ROOT) == []


LOCATED = {
    "location.rack": {"schema": {"type": "integer", "minimum": 1}, "required": True},
    "vendor": {"schema": {"enum": ["acme", "other"]}, "permissions": [{"permission": "r"}]},
    "asset": {"schema": {"type": "string", "pattern": "^A[0-9]+$"}},
    "since": {"schema": {"type": "string", "format": "date"}},
}


@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ({"location.rack": "7", "free-text_key": "x"}, ""),
        ({"location.rack": "7", "vendor": "acme", "asset": "A1", "since": "2026-02-03"}, ""),
        ({}, '"location.rack" is a required property'),
        ({"location.rack": "seven"}, "properties.location.rack"),
        ({"location.rack": "0"}, "less than the minimum"),
        ({"location.rack": "7", "vendor": "none"}, "properties.vendor"),
        ({"location.rack": "7", "asset": "B1"}, "properties.asset"),
        ({"location.rack": "7", "since": "soon"}, "properties.since"),
    ],
)
def test_a_definition_is_enforced_as_it_was_written(properties: dict[str, str], wrong: str) -> None:
    schema = Schema(definitions.compiled("d", LOCATED).schema)
    if not wrong:
        schema.check(an_object(properties=properties))
        return
    with pytest.raises(Nonconforming, match=wrong):
        schema.check(an_object(properties=properties))


def test_the_same_definition_is_always_the_same_text() -> None:
    backwards = dict(reversed(LOCATED.items()))
    assert definitions.compiled("d", LOCATED) == definitions.compiled("d", backwards)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"k": {"schema": {"type": "array"}}}, "type is one or several of string"),
        ({"k": {"schema": {"minLength": 3}}}, "minLength is not known; expected one of type, types, enum"),
        ({"k": {"schema": {"format": "colour"}}}, "format is one of"),
        ({"k": {"schema": {"pattern": "(a"}}}, "not JSON Schema"),
        ({"k": {"required": "yes"}}, "required is true or false"),
        ({"k": {"permissions": [{"permission": "x"}]}}, "permission is empty, r, w or rw"),
        ({"k": []}, "is a mapping"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(written: dict[str, object], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        definitions.compiled("d", written)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"type": "objct"}', "not JSON Schema"),
        ('{"$ref": "http://192.0.2.1/schema"}', "nothing is fetched"),
        ('{"$schema": "http://example.com/own"}', "not JSON Schema"),
        ('{"items":' * 5_000 + "{}" + "}" * 5_000, "not JSON"),
        (" " * 300_000, "300000 bytes; at most 200000"),
    ],
)
def test_an_invalid_schema_is_reported(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Schema(text)


def original(properties: dict[str, object]) -> Schema:
    """Build the original schema of a complete object with these properties."""
    return Schema(json.dumps({"properties": {"properties": {"properties": properties}, "provider_type": {}}}))


def test_a_property_without_a_type_may_have_any() -> None:
    """Accept an empty type, as compilers of runm-metadata write it; an unknown type stays an error."""
    original({"vendor": {"type": []}}).check(an_object(properties={"vendor": "acme"}))
    with pytest.raises(Nonconforming, match="acme"):
        original({"vendor": {"type": [], "enum": ["other"]}}).check(an_object(properties={"vendor": "acme"}))
    with pytest.raises(Invalid, match="not JSON Schema"):
        original({"vendor": {"type": ["objct"]}})


def test_the_first_definition_of_the_original_knows_plain_keys_alone() -> None:
    schema = Schema(definitions.ORIGINAL_DEFAULT.schema)
    for properties, good in (
        ({"kind": "runm.compute", "rack": "7", "parent": "row"}, True),
        ({"kind": "runm.compute", "location.rack": "7"}, False),
        ({"rack": "7"}, False),
    ):
        with contextlib.nullcontext() if good else pytest.raises(Nonconforming):
            schema.check(an_object(type="runm.provider", project="", properties=properties))


def test_schemas_of_both_drafts_are_supported() -> None:
    site = "json-schema.org"
    seventh = f'"$schema": "http://{site}/draft-07/schema#", "properties": {{"tags": {{"items": [{{"const": "a"}}]}}}}'
    tags = '{"tags": {"prefixItems": [{"const": "a"}]}}'
    latest = f'"$schema": "https://{site}/draft/2020-12/schema", "properties": {tags}'
    for text in (f"{{{seventh}}}", f"{{{latest}}}"):
        Schema(text).check(an_object(tags=("a", "b")))
        with pytest.raises(Nonconforming):
            Schema(text).check(an_object(tags=("b",)))


def test_an_expression_says_a_filter() -> None:
    expression = parse(
        "type=runm.machine name=web* zone=eu* gpu !reserved 'note=two words' tag:fast !tag:old any:a=1 any:b"
    )
    assert expression == Expression(
        types=("runm.machine",),
        name="web",
        name_prefix=True,
        wanted=PropertyConditions(
            require_items=(PropertyFilter("zone", "eu", True), PropertyFilter("note", "two words")),
            require_keys=("gpu",),
            forbid_keys=("reserved",),
            any_items=(PropertyFilter("a", "1"),),
            any_keys=("b",),
            require_tags=("fast",),
            forbid_tags=("old",),
        ),
    )
    assert parse("uuid=AB-12* project=*") == Expression(uuid_prefix="ab12", every_project=True)
    assert parse("property:name=x").wanted.require_items == (PropertyFilter("name", "x"),)
    numbers = parse("memory>=64 cores<8 !load>0.5 any:disk<=2e3 note=<b>")
    assert numbers.wanted == PropertyConditions(
        require_items=(
            PropertyFilter("memory", "64", order=">="),
            PropertyFilter("cores", "8", order="<"),
            PropertyFilter("note", "<b>"),
        ),
        forbid_items=(PropertyFilter("load", "0.5", order=">"),),
        any_items=(PropertyFilter("disk", "2e3", order="<="),),
    )
    assert parse("tag:a<b").wanted.require_tags == ("a<b",)


@pytest.mark.parametrize("text", ["name=a name=b", "type=", "'open", "=x", "!", "tag:", "memory>many", ">=8", "a<"])
def test_an_expression_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="filter"):
        parse(text)


def test_undoing_commits_restores_the_state_before_the_first() -> None:
    one, two, three = (an_object(name=name) for name in ("one", "two", "three"))
    other = an_object(uuid="2" * 32)
    commits = [
        Recorded(
            (ObjectChange(JournalKind.UPDATED, one, two), ObjectChange(JournalKind.CREATED, None, other)), "", "", 0
        ),
        Recorded(
            (ObjectChange(JournalKind.UPDATED, two, three), ObjectChange(JournalKind.DELETED, other, None)), "", "", 0
        ),
    ]
    assert undone(commits) == {one.uuid: one, other.uuid: None}


def test_a_history_is_bounded_by_number_and_size() -> None:
    history = ObjectHistory()
    for n in range(HISTORY_MAX + 5):
        history = history.and_then(InventoryEvent(JournalKind.UPDATED, an_object(name=str(n)), "u", "p", n))
    assert [event.at_ms for event in history.events] == list(range(5, HISTORY_MAX + 5))
    large = {f"k{n}": "v" * 900 for n in range(60)}
    for n in range(5):
        history = history.and_then(InventoryEvent(JournalKind.UPDATED, an_object(properties=large), "u", "p", n))
    assert len(history.events) == 2 and len(history.to_wire()) < 120_000


objects = st.builds(
    Object, *[st.text(max_size=5)] * 5, st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.just(("t",))
)


@given(objects)
def test_an_object_is_stored_as_the_message_others_know(object: Object) -> None:
    assert Object.from_wire(object.to_wire()) == object
    message = runm_pb2.Object.FromString(object.to_wire())
    assert {one.key: one.value for one in message.properties} == object.properties and message.uuid == object.uuid


@pytest.mark.parametrize(("name", "made"), [("runm", runm_pb2), ("inventory", inventory_pb2)])
def test_generated_code_agrees_with_its_definition(name: str, made: object, tmp_path: Path) -> None:
    from grpc_tools import protoc

    out = tmp_path / "set"
    path = f"headgate/inventory/wire/{name}.proto"
    assert protoc.main(["", f"-I{WIRE.parents[2]}", f"--descriptor_set_out={out}", path]) == 0
    (defined,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    generated = descriptor_pb2.FileDescriptorProto.FromString(made.DESCRIPTOR.serialized_pb)  # type: ignore[attr-defined]
    for found in (defined, generated):
        for message in found.message_type:
            for field in (*message.field, *(one for nested in message.nested_type for one in nested.field)):
                field.ClearField("json_name")
    assert defined == generated, "run: make proto"
