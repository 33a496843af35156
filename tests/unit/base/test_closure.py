"""Test the search for everything that a node of a graph needs."""

from __future__ import annotations

from headgate.base.closure import closure


def test_needs_are_followed_in_any_order() -> None:
    assert closure({"c": ["b", "a"], "a": [], "b": ["a"], "d": ["c"]}) == {"a": 0, "b": 0b10, "c": 0b110, "d": 0b111}


def test_names_that_are_no_nodes_are_left_out() -> None:
    assert closure({"a": ["x"], "b": ["a", "x"]}) == {"a": 0, "b": 0b1}


def test_the_search_of_a_circle_ends() -> None:
    assert closure({"a": ["b"], "b": ["a"]}).keys() == {"a", "b"}


def test_a_chain_may_be_of_any_length() -> None:
    length = 5_000
    found = closure({f"n{number}": [f"n{number + 1}"] for number in range(length)})
    assert found["n0"] == 2**length - 2
