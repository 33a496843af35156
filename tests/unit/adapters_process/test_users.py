"""Test which user ids builds get."""

from __future__ import annotations

import pytest

from headgate.adapters.process.confinement.users import (
    DEFAULT,
    DEFAULT_IN_CONTAINER,
    Numbers,
    claim,
    claim_any,
    numbers_of_root,
    subordinate,
)

ALL_IDS = "         0          0 4294967295\n"
CONTAINER = "0 100000 65536\n"


def test_a_number_is_one_process_s_at_a_time() -> None:
    held = claim("test", 7)
    assert held is not None and claim("test", 7) is None and claim("other", 7) is not None
    held.close()
    assert claim("test", 7) is not None


def test_a_free_number_that_fits_is_found() -> None:
    held = [claim("span", number) for number in (10, 11)]
    found = claim_any("span", 10, 4, lambda number: number != 12)
    assert found is not None and found.number == 13
    assert claim_any("span", 10, 4, lambda number: number != 12) is None
    assert all(held)


@pytest.mark.parametrize(
    ("wanted", "uid_map", "found"),
    [
        (None, ALL_IDS, DEFAULT),
        (None, CONTAINER, DEFAULT_IN_CONTAINER),
        (None, "0 1000 1\n", None),
        (Numbers(70_000, 10), ALL_IDS, Numbers(70_000, 10)),
        (Numbers(70_000, 10), CONTAINER, None),
        (None, "0 1000 1\n1 100000 65535\n", DEFAULT_IN_CONTAINER),
    ],
)
def test_root_uses_only_ids_that_are_mapped(wanted: Numbers | None, uid_map: str, found: Numbers | None) -> None:
    assert numbers_of_root(wanted, uid_map) == found


def test_a_range_of_user_ids_is_parsed() -> None:
    assert Numbers.read("2000-2999") == Numbers(2000, 1000)
    for wrong in ("", "5", "9-3", "0-10", "a-b", "1-4294967295"):
        with pytest.raises(ValueError):
            Numbers.read(wrong)


def test_the_largest_range_of_subordinate_ids_of_a_user_is_used() -> None:
    lines = ["ann:100000:65536", "1000:300000:10", "ann:200000:100000", "bob:1:9", "", "# ann:1:1", "ann:x:1", "ann:5"]
    assert subordinate(lines, ["ann", "1000"]) == Numbers(200_000, 100_000)
    assert subordinate(lines, ["1000"]) == Numbers(300_000, 10)
    assert subordinate(lines, ["eve"]) is None
