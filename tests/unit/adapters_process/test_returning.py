"""Test the data that jobs return, and which of their files are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.process.returns import ReturnError, add, merge, parse, read
from headgate.adapters.work.collection import collect
from headgate.adapters.work.directory import remove

LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
DATA = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=4),
)


@given(DATA, DATA)
def test_new_data_takes_precedence_and_no_other_data_is_lost(old: dict[str, Any], new: dict[str, Any]) -> None:
    merged = merge(old, new)
    assert merge(merged, new) == merged and set(merged) == {*old, *new}
    assert all(merged[key] == value for key, value in new.items() if not isinstance(value, dict) or key not in old)
    assert all(merged[key] == value for key, value in old.items() if key not in new)


def test_lists_that_are_meant_to_grow_do() -> None:
    one, two = {"zuul": {"artifacts": [1], "other": [1]}}, {"zuul": {"artifacts": [2], "other": [2]}}
    assert merge(one, two) == {"zuul": {"artifacts": [1, 2], "other": [2]}}
    first, more = {"zuul": {"file_comments": {"a": [1]}}}, {"zuul": {"file_comments": {"a": [2], "b": [3]}}}
    assert merge(first, more) == {"zuul": {"file_comments": {"a": [1, 2], "b": [3]}}}
    assert merge({"artifacts": [1]}, {"artifacts": [2]}) == {"artifacts": [2]}, "only those that are Zuul's"


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (["a=1", "b=text", "c=[1, 2]"], {"a": 1, "b": "text", "c": [1, 2]}),
        (["zuul.log_url=http://x/?a=b"], {"zuul": {"log_url": "http://x/?a=b"}}),
        (["a.b=1", "a.c=true"], {"a": {"b": 1, "c": True}}),
        (["a="], {"a": ""}),
    ],
)
def test_arguments_are_keys_and_values(arguments: list[str], data: dict[str, Any]) -> None:
    assert parse(arguments) == data


@pytest.mark.parametrize("arguments", [["novalue"], ["=1"], ["a..b=1"], [".a=1"]])
def test_an_argument_that_is_not_a_key_with_a_value_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="is not KEY=VALUE"):
        parse(arguments)


def test_an_empty_return_is_empty_and_a_too_large_one_is_reported(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ({}, {})
    add(tmp_path / "r", {"a": {"b": 1}})
    add(tmp_path / "r", {"a": {"c": 2}})
    assert read(tmp_path / "r").data == {"a": {"b": 1, "c": 2}}
    for size in (200_000, 300_000):
        with pytest.raises(ReturnError, match="limit of 256 kB"):
            add(tmp_path / "r", {"b": "x" * 100_000, "much": "x" * size})
    assert read(tmp_path / "r").data == {"a": {"b": 1, "c": 2}}, "what was refused is not there"


def test_secret_data_is_separate_from_other_data_and_in_no_error(tmp_path: Path) -> None:
    file = tmp_path / "r"
    add(file, {"open": 1})
    add(file, {}, {"login": {"user": "ada"}})
    add(file, {"open": 2}, {"login": {"token": "treasure"}})
    assert read(file) == ({"open": 2}, {"login": {"user": "ada", "token": "treasure"}})
    assert file.stat().st_mode & 0o777 == 0o600
    for much in (
        {"treasure": "x" * 64_000},
        {"treasure": "\ud800"},
        {"treasure": float("nan")},
        {"login": {"a": 2**300}},
    ):
        with pytest.raises(ReturnError, match="secret data is not a JSON object of at most 64 kB") as refused:
            add(file, {}, much)
        assert "treasure" not in str(refused.value)
    assert read(file).secret == {"login": {"user": "ada", "token": "treasure"}}
    file.write_text('{"data": {}, "secret_data": ["treasure"]}')
    with pytest.raises(ReturnError, match="secret data is not a JSON object") as refused:
        read(file)
    assert "treasure" not in str(refused.value)


def test_a_returned_file_does_not_overwrite_one_of_headgate(tmp_path: Path) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    for place, text in ((source, "theirs"), (dest, "ours")):
        (place / "sub").mkdir(parents=True)
        (place / "sub/file").write_text(text)
    (source / "new").write_text("new")
    assert collect(source, dest, 1_000) == ["sub/file is not stored: Headgate uses this name itself"]
    assert (dest / "sub/file").read_text() == "ours" and (dest / "new").read_text() == "new"


def test_a_directory_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("treasure")
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to(tmp_path / "secret")
    collect(source, tmp_path / "dest", 1_000)
    assert not list((tmp_path / "dest").rglob("key")) and (tmp_path / "secret/key").exists()


def test_trees_that_resist_are_removed(tmp_path: Path) -> None:
    deep = tmp_path / "tree/a/b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (tmp_path / "tree/link").symlink_to(tmp_path)
    for place in (deep, deep.parent):
        place.chmod(0o500)
    remove(tmp_path / "tree")
    assert not (tmp_path / "tree").exists() and tmp_path.exists()
    remove(tmp_path / "tree")
