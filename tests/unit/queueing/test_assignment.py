"""Test that assignments are complete, balanced within one, stable, the same everywhere, and move as little as
possible."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from headgate.queueing.partitions import assign

workers = st.sets(st.integers(0, 40).map(lambda n: f"worker-{n:010d}"), min_size=1, max_size=9)
partitions = st.sets(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12)), max_size=60)


def owners(shares: dict[str, tuple[tuple[str, int], ...]]) -> dict[tuple[str, int], str]:
    return {partition: worker for worker, has in shares.items() for partition in has}


@st.composite
def situations(draw: st.DrawFn) -> tuple[set[str], set[tuple[str, int]], dict[tuple[str, int], str]]:
    """Draw any state: owners that have left, partitions that no longer exist, one worker with everything."""
    some, every = draw(workers), draw(partitions)
    known = [*sorted(every), ("gone", 1)]
    held = draw(st.dictionaries(st.sampled_from(known), st.sampled_from([*sorted(some), "worker-left"])))
    return some, every, held


@given(situations())
def test_every_partition_has_one_worker_and_loads_differ_by_one_at_most(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    assert sorted(partition for has in shares.values() for partition in has) == sorted(every)
    sizes = [len(has) for has in shares.values()]
    assert set(shares) == some
    assert max(sizes) - min(sizes) <= 1


@given(situations())
def test_a_worker_within_its_share_keeps_all_its_partitions(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    for worker, has in shares.items():
        had = {partition for partition, owner in held.items() if owner == worker and partition in every}
        assert had <= set(has) or len(has) == len(had & set(has)), "gives up partitions only when it has too many"


@given(situations())
def test_an_assignment_that_has_been_applied_stays_the_same(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    assert assign(some, every, owners(shares)) == shares


@given(situations(), st.data())
def test_an_assignment_stays_the_same_while_its_moves_are_made_one_by_one(situation, data: st.DataObject) -> None:
    some, every, held = situation
    want = owners(assign(some, every, held))
    now = {partition: owner for partition, owner in held.items() if partition in every}
    for _ in range(4 * len(every)):
        shares = owners(assign(some, every, now))
        release = [partition for partition, owner in now.items() if shares[partition] != owner]
        take = [partition for partition in every if partition not in now]
        if not release and not take:
            break
        partition = data.draw(st.sampled_from(sorted(release + take)))
        if partition in release:
            del now[partition]
        else:
            now[partition] = shares[partition]
    assert set(now) == every
    moved = sum(now[partition] != held.get(partition) for partition in every)
    assert moved == sum(want[partition] != held.get(partition) for partition in every)


@given(workers, partitions, st.integers(41, 50))
def test_a_joining_worker_moves_at_most_its_share(some, every, number: int) -> None:
    before = owners(assign(some, every, {}))
    after = owners(assign({*some, f"worker-{number:010d}"}, every, before))
    assert sum(after[partition] != before[partition] for partition in every) <= ceil(len(every) / len(some))
    assert all(after[partition] in (before[partition], f"worker-{number:010d}") for partition in every)


@given(workers, partitions, st.data())
def test_a_leaving_worker_moves_only_its_own_partitions(some, every, data: st.DataObject) -> None:
    before = owners(assign(some, every, {}))
    leaver = data.draw(st.sampled_from(sorted(some)))
    rest = some - {leaver}
    after = owners(assign(rest, every, before))
    if rest:
        moved = {partition for partition in every if after[partition] != before[partition]}
        assert moved == {partition for partition in every if before[partition] == leaver}
        assert len(moved) <= ceil(len(every) / len(some))


def test_twenty_seven_partitions_and_a_fourth_worker_move_six() -> None:
    every = [f"q{n:02d}" for n in range(27)]
    three = assign(["w1", "w2", "w3"], every, {})
    before = {partition: worker for worker, has in three.items() for partition in has}
    four = assign(["w1", "w2", "w3", "w4"], every, before)
    assert sum(before[partition] != worker for worker, has in four.items() for partition in has) == 6


def test_from_three_and_two_to_three_workers_one_partition_moves() -> None:
    shares = assign(["a", "b", "c"], "12345", dict(zip("12345", "aaabb", strict=True)))
    assert shares == {"a": ("1", "2"), "b": ("4", "5"), "c": ("3",)}


def test_more_workers_than_partitions_leaves_none_of_the_partitions_alone() -> None:
    assert assign(["a", "b", "c"], ["x", "y"], {}) == {"a": ("x",), "b": ("y",), "c": ()}


def test_without_workers_there_is_nothing_to_say() -> None:
    assert assign([], ["x"], {}) == {}
