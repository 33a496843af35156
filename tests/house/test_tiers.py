"""Test which sets of parameters `make test` leaves to `make soak`."""

from __future__ import annotations

from typing import cast

import pytest

from tests import tiers


class Item:
    """Represent one set of parameters of a test."""

    def __init__(self, nodeid: str, marker: pytest.Mark | None) -> None:
        self.nodeid = nodeid
        self._marker = marker

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marker if self._marker and self._marker.name == name else None


def items(name: str, sets: int, marker: pytest.Mark | None) -> list[pytest.Item]:
    return [cast(pytest.Item, Item(f"{name}[{number}[]", marker)) for number in range(sets)]


def chosen(name: str, sets: int, *args: int) -> list[int]:
    those = items(name, sets, pytest.mark.sampled(*args).mark)
    return [those.index(item) for item in tiers.sampled(those)]


@pytest.fixture(autouse=True)
def in_make_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SOAK", False)


def test_as_many_are_chosen_as_the_marker_says_and_always_the_same() -> None:
    for sets in range(1, 9):
        for count in range(1, 10):
            found = chosen("a::b", sets, count)
            assert len(found) == min(sets, count) == len(set(found)) and found == chosen("a::b", sets, count)
    assert len(chosen("a::b", 5)) == 1


def test_tests_with_the_same_parameters_run_with_each_of_them() -> None:
    assert {chosen(f"a::test_{number}", 3)[0] for number in range(30)} == {0, 1, 2}


def test_a_test_without_the_marker_runs_with_all_and_nothing_changes_places() -> None:
    plain, marked = items("a::plain", 4, None), items("a::marked", 4, pytest.mark.sampled(2).mark)
    mixed = [item for pair in zip(plain, marked, strict=True) for item in pair]
    found = tiers.sampled(mixed)
    assert [item for item in found if item in plain] == plain
    assert found == [item for item in mixed if item in found] and len(found) == 6


def test_of_the_mutants_of_a_module_two_are_chosen_whatever_their_names_are() -> None:
    mutants = [item for name in ("a::b", "a::c", "a::d", "e::f") for item in items(name, 2, pytest.mark.mutant.mark)]
    found = [item.nodeid[0] for item in tiers.sampled(mutants)]
    assert found.count("a") == tiers.MUTANTS == 2 and found.count("e") == 2


def test_of_the_long_tests_each_is_in_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [item for name in "abcdefghij" for item in items(f"a::{name}", 3, pytest.mark.long.mark)]
    short = items("a::short", 3, None)
    found = []
    for number in range(tiers.SHARES):
        monkeypatch.setattr(tiers, "share_of_commit", lambda number=number: number)
        chosen = tiers.in_share([*short, *long])
        assert chosen[:3] == short and 3 < len(chosen) < 3 + len(long)
        found += chosen[3:]
    assert sorted(found, key=long.index) == long
    monkeypatch.setattr(tiers, "share_of_commit", lambda: None)
    assert tiers.in_share([*short, *long]) == [*short, *long]


def test_the_files_of_a_commit_decide_which_share_runs_unless_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = tiers.share_of_commit.__wrapped__
    shares = set(range(tiers.SHARES))
    monkeypatch.setattr(tiers, "LONG", "")
    assert decide() in shares and decide() == decide()
    monkeypatch.setattr(tiers, "LONG", "all")
    assert decide() is None
    monkeypatch.setattr(tiers, "LONG", "1")
    assert decide() == 1
    monkeypatch.setattr(tiers, "LONG", "")
    monkeypatch.setattr(tiers, "SOAK", True)
    assert decide() is None


def test_make_soak_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SOAK", True)
    assert chosen("a::b", 5) == [0, 1, 2, 3, 4]
