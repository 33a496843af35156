"""Test files of objects: exported files can be imported, and invalid rows are reported with their line."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.errors import UserError
from headgate.cli.inventory import bulk
from headgate.inventory.wire import inventory_pb2 as pb
from tests.tiers import share

characters = st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t,;' ")
texts = st.text(characters, min_size=1, max_size=6)
keys = texts | st.sampled_from(("name", "tags", "property:name", "uuid", "object_type"))
values = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6) | st.sampled_from(
    ("", '"', '"x"', "=1", " ")
)
described = st.builds(
    pb.Object,
    type=texts,
    name=texts,
    uuid=st.sampled_from(("", "a" * 32)),
    project=st.sampled_from(("", "blue")),
    properties=st.dictionaries(keys, values, max_size=3),
    tags=st.lists(texts, max_size=2, unique=True).map(sorted),
)


@pytest.mark.heavy
@pytest.mark.parametrize("format", bulk.FORMATS)
@given(st.lists(described, max_size=4))
@settings(max_examples=share(100))
def test_written_rows_are_read_again_unchanged(format: str, found: list[pb.Object]) -> None:
    target = io.StringIO(newline="")
    bulk.write(target, found, format, uuids=True)
    again = [one for _, one in bulk.read(io.StringIO(target.getvalue(), newline=""), "f", format, "")] if found else []
    assert again == found


def test_people_s_tables_are_read() -> None:
    text = "\ufeffname,rack,tags,note\nm1,7,fast 'two words',\nm2,,,\"a,b\"\n\n"
    found = [(where, one.name, dict(one.properties), list(one.tags)) for where, one in read(text, "csv")]
    assert found == [("f:2", "m1", {"rack": "7"}, ["fast", "two words"]), ("f:3", "m2", {"note": "a,b"}, [])]
    text = '[{"name": "m1", "properties": {"rack": 7, "on": true}}, {"name": "n", "object_type": "x"}]'
    assert [(one.type, dict(one.properties)) for _, one in read(text, "json")] == [
        ("runm.machine", {"rack": "7", "on": "true"}), ("x", {}),
    ]  # fmt: skip
    text = "- {name: a, tags: [b]}\n- {name: racks, provider_type: static}\n---\nname: c\n"
    assert [(one.type, one.name) for _, one in read(text, "yaml")] == [
        ("runm.machine", "a"), ("runm.machine", "racks"), ("runm.machine", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "text", "why"),
    [
        ("csv", "name\n" + "m" * 90_000, "f:2: the line is longer than"),
        ("json", '{"name": "m"}\n' + " " * 90_000, "f:2: the line is longer than"),
        ("json", "[\n" + '{"name": "m"},\n' * 9_000, "f: the array is longer than"),
        ("yaml", "name: n\n---\n" + "- name: m\n" * 9_000, "f: a document is longer than"),
    ],
)
def test_the_length_of_a_line_an_array_and_a_document_is_limited(
    format: str, text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless line, array or document would fill the memory; endless lines or documents do not."""
    monkeypatch.setattr(bulk, "TEXT_MAX_CHARS", 50_000)
    with pytest.raises(UserError, match=why):
        read(text, format)
    many = {"csv": "name\n" + "m\n" * 90_000, "json": '{"name": "m"}\n' * 9_000, "yaml": "---\nname: m\n" * 9_000}
    assert len(read(many[format], format)) >= 900


@pytest.mark.parametrize(
    ("format", "text", "why"),
    [
        ("csv", "", "is empty"),
        ("csv", "name,name\na,b\n", "f:1: column 'name' occurs twice"),
        ("csv", "name\na,b\n", "f:2: 2 values for 1 columns"),
        ("csv", "name,tags\na,'open\n", "f:2: tags: No closing quotation"),
        ("csv", "rack\n7\n", "f:2: name must be set"),
        ("csv", 'name,rack\na,"""x"\n', "f:2: rack: a value that begins with a quote"),
        ("csv", 'name\n"a\n', "this is not CSV"),
        ("json", '{"name": "a"}\n{', "f:2: this is not JSON"),
        ("json", "[" * 100_000, "this is not JSON"),
        ("json", "7", "f:1: expected a mapping"),
        ("json", '{"name": "a", "rack": 7}', "f:1: unknown key rack"),
        ("json", '{"name": "a", "tags": "b"}', "f:1: tags must be a list"),
        ("yaml", "a: [", "f: this is not YAML: line 2: did not find expected node content while parsing a flow node"),
        ("yaml", "!!python/object/apply:os.system [true]", "this is not YAML"),
        ("yaml", "- name: a\n- 7\n", "f: object 2: expected a mapping"),
    ],
)
def test_unreadable_rows_are_reported_with_their_line(format: str, text: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        read(text, format)
    assert why in str(refused.value)


def test_a_missing_format_is_demanded() -> None:
    assert bulk.format_of("a.CSV", "") == "csv" and bulk.format_of("-", "json") == "json"
    with pytest.raises(UserError, match=r"^standard input and output have no suffix; add --format csv or json or yaml"):
        bulk.format_of("-", "")
    with pytest.raises(UserError, match=r"^a\.txt: the suffix names no known format"):
        bulk.format_of("a.txt", "")


def read(text: str, format: str) -> list[bulk.Row]:
    return list(bulk.read(io.StringIO(text, newline=""), "f", format, "runm.machine"))
