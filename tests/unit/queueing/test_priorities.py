"""Test the priorities of partitions, and which partition comes next."""

from __future__ import annotations

import pytest

from headgate.queueing.partitions import (
    QueuePartition,
    comes_next,
    head_of,
    partition_of,
    priority_named,
    priority_of,
    strand_of,
)


def test_partitions_that_follow_one_another_are_a_strand_the_highest_priority_first() -> None:
    assert [priority_of(n, 3) for n in range(1, 8)] == [1, 2, 3, 1, 2, 3, 1]
    assert [str(head_of(QueuePartition("q", n), 3)) for n in range(1, 8)] == ["q", "q", "q", "q:4", "q:4", "q:4", "q:7"]
    assert strand_of(QueuePartition("q", 5), 3) == (
        QueuePartition("q", 4),
        QueuePartition("q", 5),
        QueuePartition("q", 6),
    )
    assert strand_of(QueuePartition("q", 5), 1) == (QueuePartition("q", 5),) and head_of(
        QueuePartition("q", 5), 1
    ) == QueuePartition("q", 5)
    assert [partition_of(strand, priority, 2) for strand in (1, 2) for priority in (1, 2)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, {"": 1, "normal": 1, "1": 1}),
        (2, {"": 2, "high": 1, "normal": 2, "low": 2, "1": 1, "2": 2}),
        (3, {"": 2, "high": 1, "normal": 2, "low": 3, "3": 3}),
        (4, {"": 3, "high": 1, "normal": 3, "low": 4}),
        (10, {"": 6, "high": 1, "low": 10, "10": 10}),
    ],
)
def test_priorities_have_names(count: int, named: dict[str, int]) -> None:
    assert {name: priority_named(name, count) for name in named} == named


@pytest.mark.parametrize(
    ("name", "count"), [("4", 3), ("99", 3), ("high", 1), ("low", 1), ("2", 1), ("0", 3), ("up", 3)]
)
def test_a_priority_that_the_queue_does_not_have_is_an_error(name: str, count: int) -> None:
    with pytest.raises(ValueError):
        priority_named(name, count)


def test_the_highest_comes_first_and_one_in_five_is_the_oldest_late_one() -> None:
    now_ms, young, late, later = 1_000_000, 999_000, 900_000, 800_000
    assert comes_next([None, None], now_ms, 0) is None
    assert comes_next([young, young, young], now_ms, 9) == (0, 5), "nobody is late"
    assert comes_next([None, late, young], now_ms, 9) == (1, 5)
    passed, chosen = 0, []
    for _ in range(11):
        found = comes_next([young, late, later], now_ms, passed)
        assert found is not None
        chosen.append(found.which)
        passed = found.passed
    assert chosen == [0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0]
    assert comes_next([late, None, later], now_ms, 0) == (0, 1), "the highest may be late, too"
    assert comes_next([young, now_ms - 60_000, None], now_ms, 9) == (0, 5), "not before it is older than a minute"
